"""Students that share a process: whoever is there, in whatever order they step, each ends as it would alone."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.logs import LogForm
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.host import Host
from pipelines.live.rules.causes import Died
from pipelines.live.training.predictions import read_predictions
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_runs import everything
from tests.support.pipelines.written_lakes import write_lake

ROWS = 1500


def config_of(**changes: Any) -> Config:
    """Students whose rows overlap, of one task and of both, sampled, of a condition, of all verticals' rows; with
    small windows, so that they part and meet."""
    base = everything("nowhere:1", **changes)
    raw = base.model_dump(mode="json")
    feed = raw["students"][0] | {"checkpoint_every_rows": 400, "batch_rows": 90, "twin": False}
    raw["students"] += [
        feed | {"name": "same", "verticals": ["feed"], "model": feed["model"] | {"arm": {"weight": 3.0}}},
        feed | {"name": "all", "verticals": "all", "negative_rate": {"ctr": 0.5}},
        feed | {"name": "few", "verticals": ["travel"], "where": "bid > 0.2", "tasks": ["ctr"]},
        feed | {"name": "late", "verticals": ["feed", "shop"], "first_seq": 800},
    ]
    return Config.model_validate(raw | {"resources": raw["resources"] | {"read_rows": 200, "students_per_host": 8}})


class Hosted:
    """Students of a config in so many hosts of this process."""

    def __init__(self, config: Config, root: Path, lake: Path, hosts: list[list[str]]) -> None:
        self.config, self.run_dir = config, RunDir(root)
        self.run_dir.lake.parent.mkdir(parents=True)
        self.run_dir.lake.symlink_to(lake)
        self._root = root
        self.hosts = [(Host(f"{root}/host-{n}.log", LogForm(10)), names) for n, names in enumerate(hosts)]
        for host, names in self.hosts:
            for name in names:
                self.open(host, name)

    def open(self, host: Host, name: str) -> None:
        build = partial(self._worker, name)
        host.open(name, build, f"{self._root}/{name}.log", Rendezvous())

    def _worker(self, name: str, _: Rendezvous) -> StudentWorker:
        return StudentWorker(self.config, self.config.student(name), self.run_dir)

    def to_the_end(self, chance: random.Random, kills: float = 0.0) -> dict[str, tuple[Any, ...]]:
        """Turns in any order, of any length; some crash and are opened again."""
        orders = Orders(end_seq=LakeReader(self.run_dir.lake, self.config.rows).last_lake_seq)
        left = [(host, name) for host, names in self.hosts for name in names]
        while left:
            host, name = chance.choice(left)
            if host.advance(name, chance.choice([0.0, 0.05, 0.3]), orders).done:
                left.remove((host, name))
                host.close(name)
            elif chance.random() < kills:
                host.drop(name)
                self.open(host, name)
        return {name: self._end_of(name) for _, names in self.hosts for name in names}

    def _end_of(self, name: str) -> tuple[Any, ...]:
        """Every tensor, what was learned, every prediction."""
        newest = latest_checkpoint(self.run_dir.checkpoints(f"student-{name}"))
        assert newest is not None
        stored = load_checkpoint(newest)
        tensors = {key: tensor.numpy().tobytes() for key, tensor in stored.tensors.items()}
        predictions = read_predictions(self.run_dir.predictions(name)).to_pydict()
        return tensors, stored.meta["learned"], stored.meta["lake_seq"], str(predictions)


def in_turns(host: Host, names: list[str]) -> None:
    """For ever."""
    while True:
        for name in names:
            host.advance(name, 0.1, Orders())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "lake"
    write_lake(path, config_of(), ROWS)
    return path


@pytest.fixture(scope="module")
def alone(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """Each in a process that it has to itself."""
    config, root = config_of(), tmp_path_factory.mktemp("alone")
    ends = {}
    for student in config.students:
        ends |= Hosted(config, root / student.name, lake, [[student.name]]).to_the_end(random.Random(0))
    return ends


@pytest.mark.parametrize("seed", range(2))
def test_no_student_depends_on_who_shares_its_process_or_when_it_has_its_turns(
    lake, alone, tmp_path, seed, monkeypatch
):
    monkeypatch.setattr("pipelines.live.workers.student.reading.LakeReader", partial(LakeReader, chunk_rows=300))
    chance, config = random.Random(seed), config_of(resources__shared_rows_mb=random.Random(seed).choice([0.01, 128]))
    names = [student.name for student in config.students]
    chance.shuffle(names)
    cut = chance.randint(1, len(names))
    ends = Hosted(config, tmp_path / "run", lake, [names[:cut], names[cut:]]).to_the_end(chance, kills=0.02)
    for name, end in alone.items():
        assert [key for key in end[0] if ends[name][0][key] != end[0][key]] == [], name
        assert ends[name] == end, name


def test_a_student_that_fails_is_dropped_alone(lake, alone, tmp_path, monkeypatch):
    hosted = Hosted(config_of(), tmp_path / "run", lake, [["feed", "same", "brand"]])
    ((host, _),) = hosted.hosts
    build = StudentWorker.learn

    def failing(self: StudentWorker, batch: Any) -> None:
        if self.name == "student-same" and self.rows > 300:
            raise RuntimeError("a bad day")
        build(self, batch)

    monkeypatch.setattr(StudentWorker, "learn", failing)
    with pytest.raises(Died, match="a bad day"):
        in_turns(host, ["feed", "same", "brand"])
    monkeypatch.undo()
    hosted.open(host, "same")
    ends = hosted.to_the_end(random.Random(1))
    assert ends == {name: alone[name] for name in ends}


def test_those_with_nothing_to_do_sleep_once_a_round(lake, tmp_path, monkeypatch):
    names = ["feed", "same", "brand", "clicks"]
    hosted = Hosted(config_of(), tmp_path / "run", lake, [names])
    ((host, _),) = hosted.hosts
    slept: list[float] = []
    monkeypatch.setattr("pipelines.live.launch.host.time.sleep", slept.append)
    while not slept:  # to the end of what there is
        for name in names:
            host.advance(name, 5.0, Orders())
    slept.clear()
    for _ in range(3):
        for name in names:
            host.advance(name, 0.5, Orders())
    assert len(slept) == 3
    for name in names:
        host.drop(name)
