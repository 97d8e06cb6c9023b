"""A student that is spawned into a run: born late equals born early, whatever is killed, and nobody else notices."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exfm.snapshots.checkpoint import checkpoint_names
from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.live.training.predictions import read_predictions
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from streaming.store.files import read_json
from tests.support.pipelines.commands import Command, worker_pid
from tests.support.pipelines.kills import KILLED
from tests.support.pipelines.small_runs import (
    Finished,
    assert_replays,
    assert_same_student,
    everything,
    small,
    to_the_end,
)

pytestmark = pytest.mark.broker

STREAM: dict[str, Any] = {"source__impressions": 3000, "pace__block_rows": 256, "teacher__batch_rows": 128}
HOT = SpawnRequest(
    "hot",
    verticals=("all",),
    where="bid > 0 and vertical not in ('travel', 'video')",
    like="feed",
    overrides=("batch_rows=100", "checkpoint_every_rows=300", "own_features={dense: [{name: raw_bid, column: bid}]}"),
)


def born_early(config: Config) -> Config:
    """The config with the section that `HOT` makes of it."""
    feed = config.student("feed").model_dump(mode="json")
    section = feed | {
        "name": "hot",
        "verticals": "all",
        "where": HOT.where,
        "batch_rows": 100,
        "checkpoint_every_rows": 300,
        "own_features": {"dense": [{"name": "raw_bid", "column": "bid"}]},
    }
    raw = config.model_dump(mode="json")
    return parse(raw | {"students": [*raw["students"], section]})


def while_it_runs(config: Config, root: Path, act: Callable[[Pipeline], None], at_rows: int) -> Finished:
    """The run in this process to its end; `act` is called from another thread, as a command would, once the lake has so
    many rows. The run waits for it, so that it never comes too late."""
    failed: list[BaseException] = []

    def acting() -> None:
        try:
            act(Pipeline(root))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=acting)

    def attend(live: Any) -> None:
        if not thread.ident and live.status.lake.rows >= at_rows:
            thread.start()

    def watch(status: Any) -> None:
        if thread.is_alive():
            thread.join(0.05)

    finished = to_the_end(config, root, attend=attend, watch=watch)
    assert thread.ident is not None
    thread.join(60)
    if failed:
        raise failed[0]
    return finished


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


@pytest.fixture(scope="module")
def early(broker, tmp_path_factory) -> Finished:
    """With `hot` from its beginning to its end."""
    config = born_early(small(broker.bootstrap_servers, **STREAM))
    return to_the_end(config, tmp_path_factory.mktemp("early") / "run")


def test_born_late_equals_born_early(early, broker, tmp_path):
    config = small(broker.bootstrap_servers, **STREAM)

    def act(pipeline: Pipeline) -> None:
        spawned = pipeline.spawn(HOT)
        assert spawned.state == "joined"
        assert 0 < spawned.estimate.rows < spawned.estimate.of
        assert pipeline.spawn(HOT).state == "joined"  # asked twice
        with pytest.raises(BadInput, match="a student of this run is named `brand` already"):
            pipeline.spawn(SpawnRequest("brand"))
        assert "paused" in pipeline.pause("brand")
        assert {s.name: s.state for s in pipeline.students()}["brand"] == "paused"
        assert "goes on" in pipeline.resume("brand")
        assert "has left" in pipeline.retire("clicks")

    late = while_it_runs(config, tmp_path / "late", act, at_rows=1500)
    assert late.rows.equals(early.rows)
    assert late.checkpoint("teacher")[0] == early.checkpoint("teacher")[0]
    for student in ("feed", "brand", "hot"):
        assert_same_student(late, early, student)
    assert set(late.summary["students"]) == {"feed", "brand", "hot"}
    assert "student-clicks" not in {reader.name for reader in Readers(late.run_dir.readers).all()}
    # The config that the run was begun with knows nothing of all this, and finds it finished all the same.
    again = to_the_end(config, late.run_dir.root)
    assert set(again.summary["students"]) == {"feed", "brand", "hot"}


@pytest.mark.check
@pytest.mark.parametrize("at_rows", [1200, 10**9])  # in mid-stream; and where the stream is shorter
def test_a_student_of_the_config_that_joins_later_ends_the_same(early, broker, tmp_path, at_rows):
    config = small(broker.bootstrap_servers, **STREAM)
    raw = born_early(config).model_dump(mode="json")
    raw["students"][-1]["joins_at_rows"] = at_rows
    began: list[int] = []

    def watch(status: Any) -> None:
        if not began and "student-hot" in status.workers:
            began.append(status.lake.rows)

    late = to_the_end(parse(raw), tmp_path / "run", watch=watch)
    assert began[0] >= min(at_rows, late.lake.num_rows)
    assert late.summary["students"] == early.summary["students"]
    assert late.checkpoint("student-hot")[0] == early.checkpoint("student-hot")[0]


@pytest.mark.check
def test_a_finished_run_takes_a_student_that_learned_its_lake_without_a_broker(early, broker, tmp_path):
    config = small(broker.bootstrap_servers, **STREAM)
    finished = to_the_end(config, tmp_path / "run")
    pipeline = Pipeline(finished.run_dir.root)
    spawned = pipeline.spawn(HOT)
    assert spawned.state == "remembered"
    told: list[tuple[int, int]] = []
    assert pipeline.learn_offline("hot", lambda done, total: told.append((done, total))) > 0
    assert told[-1][0] == told[-1][1] == finished.lake.num_rows
    assert pipeline.progress("hot").rows > 0
    again = to_the_end(config, finished.run_dir.root)
    assert_same_student(again, early, "hot")
    assert again.summary["students"]["feed"] == finished.summary["students"]["feed"]


@pytest.mark.check
def test_students_that_begin_later_or_with_weights_of_another(broker, tmp_path):
    finished = to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path / "run")
    pipeline, rows = Pipeline(finished.run_dir.root), finished.lake.num_rows
    half = rows // 2
    pipeline.spawn(SpawnRequest("recent", verticals=("feed",), like="feed", since_seq=half))
    pipeline.spawn(SpawnRequest("warm", verticals=("feed",), start="feed", since_seq=half))
    for name in ("recent", "warm"):
        pipeline.learn_offline(name)
    last = to_the_end(finished.config, finished.run_dir.root)
    seqs = {
        name: read_predictions(last.run_dir.predictions(name))["lake_seq"].to_pylist() for name in ("recent", "warm")
    }
    assert seqs["recent"] == seqs["warm"]
    assert min(seqs["warm"]) >= half
    ne = {name: last.summary["students"][name]["ctr"]["student"]["ne"] for name in ("recent", "warm")}
    assert ne["warm"] < ne["recent"]  # it begins with what `feed` has learned
    assert_replays(last.run_dir.root, "recent", "warm")
    with pytest.raises(BadInput, match="--live"):
        pipeline.spawn(SpawnRequest("none", verticals=("nowhere",)))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_born_late_equals_born_early_though_it_and_the_coordinator_are_killed(broker, tmp_path):
    changes = KILLED | {"source__impressions": 6000}
    early = to_the_end(born_early(everything(broker.bootstrap_servers, **changes)), tmp_path / "early")
    config = everything(broker.bootstrap_servers, **changes)
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})
    path, root, log = tmp_path / "run.yaml", tmp_path / "run", tmp_path / "run.log"
    path.write_text(dump(config))
    commands = [Command(path, root, log)]
    try:
        commands[-1].until(lambda status: status["lake"]["rows"] > 2000)
        assert Pipeline(root).spawn(HOT).state == "joined"
        for _ in range(2):
            os.kill(commands[-1].until(worker_pid("student-hot", rows=1)), signal.SIGKILL)
            commands[-1].until(lambda status: status["workers"]["student-hot"]["restarts"] > 0)
        commands[-1].kill()
        commands.append(Command(path, root, log))
        assert commands[-1].wait() == 0, log.read_text()[-3000:]
    finally:
        for command in commands:
            command.clean_up()
    late = Finished(config, root)
    assert late.rows.equals(early.rows)
    for student in ("feed", "brand", "hot"):
        assert_same_student(late, early, student)
    assert checkpoint_names(RunDir(root).served("hot"))
    assert read_json(RunDir(root).status)["workers"]["student-hot"]["state"] == "done"
