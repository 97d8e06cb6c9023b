"""Runs that follow the lake of another: what their students learn, what they keep of the lake, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow.compute as pc
import pytest

from pipelines.cli.tools.lake import LakeCare
from pipelines.core.run_dir.lake_link import read_link
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.loop.lifecycle import run, start_over
from pipelines.live.loop.live_run import CAUGHT_UP
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.training.predictions import read_predictions
from pipelines.live.workers.student.worker import StudentWorker
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from tests.support.pipelines.commands import Command, worker_pid
from tests.support.pipelines.following_runs import following, following_file
from tests.support.pipelines.small_runs import (
    SNAPSHOTS,
    Finished,
    assert_replays,
    assert_same_run,
    assert_same_student,
    everything,
    finished_once,
    slow_commits,
    small,
    stop_after,
    to_the_end,
)

pytestmark = pytest.mark.broker


@pytest.fixture
def leader(broker, tmp_path) -> Finished:
    """A finished run, with students of its own."""
    return finished_once(small, broker.bootstrap_servers, tmp_path / "leads", **SNAPSHOTS)


@contextmanager
def slow_students(seconds: float = 0.15) -> Iterator[None]:
    """For runs of this process that are to be stopped half-way."""
    learn = StudentWorker.learn

    def slow(worker: StudentWorker, batch: StudentBatch) -> None:
        time.sleep(seconds)  # work: a slow machine
        learn(worker, batch)

    with patch.object(StudentWorker, "learn", slow):
        yield


def of_the_lake(leads: Path) -> set[tuple[str, int]]:
    """Every file of a run's lake with its time of change, but for the registry of readers."""
    lake = RunDir(leads).side_tables
    return {
        (path.relative_to(lake).as_posix(), path.stat().st_mtime_ns)
        for path in lake.rglob("*")
        if path.is_file() and "readers" not in path.relative_to(lake).parts
    }


def test_students_of_a_run_that_follows_are_to_the_bit_those_of_the_run_that_leads(broker, tmp_path):
    leader = finished_once(everything, broker.bootstrap_servers, tmp_path / "leads")
    before = of_the_lake(leader.run_dir.root)
    team = to_the_end(following(leader.run_dir.root, tmp_path / "team.yaml"), tmp_path / "team")
    for student in leader.config.students:
        assert_same_student(leader, team, student.name)
    assert team.summary["counts"] == leader.summary["counts"]
    assert team.summary["workers"].keys() == {f"student-{student.name}" for student in leader.config.students}
    assert of_the_lake(leader.run_dir.root) == before
    assert not (team.run_dir.root / "lake").exists()


def test_a_lake_at_an_address_is_followed_as_one_in_a_folder_is(leader, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(leader.run_dir.root, store := tmp_path / "store")
    team = to_the_end(
        following(leader.run_dir.root, tmp_path / "team.yaml", source={"lake": store.as_uri()}), tmp_path / "team"
    )
    for student in leader.config.students:
        assert_same_student(leader, team, student.name)
    assert team.summary["counts"] == leader.summary["counts"]
    link = read_link(team.run_dir.root)
    assert link is not None
    assert {path.name for path in (store / "lake" / "readers" / link.reader).iterdir()} >= {"student-feed.json", "run"}
    start_over(team.run_dir)
    assert not list((store / "lake" / "readers" / link.reader).glob("*"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_of_two_followers_is_killed_and_neither_the_other_nor_the_leader_is_touched(broker, tmp_path):
    """The run that leads stops half-way; two runs of processes of their own follow it; one of them is killed. The run
    that leads goes on and ends while that one is away, which then comes back."""
    settings = {**SNAPSHOTS, "source__malformed_rate": 0.0}
    undisturbed = finished_once(small, broker.bootstrap_servers, tmp_path / "undisturbed", **settings)
    config, leads = small(broker.bootstrap_servers, **settings), RunDir(tmp_path / "leads")
    with slow_commits():
        status, _ = run(config, leads, local=True, until_end=True, watch=stop_after(1500))
    assert status.state is RunState.STOPPED
    file = following_file(leads.root, tmp_path / "team.yaml")
    commands = []

    def start(name: str, *options: str) -> Command:
        commands.append(Command(file, tmp_path / name, tmp_path / f"{name}.log", options=options))
        return commands[-1]

    try:
        stays, killed = start("stays", "--set", "resources.students_per_host=3"), start("killed", "--local")
        for command in (stays, killed):
            command.until(worker_pid("student-feed", rows=300))
        killed.kill_everything()
        leading = to_the_end(config, leads.root)
        assert stays.wait() == 0
        again = start("killed", "--local")
        assert again.wait() == 0
    finally:
        for command in commands:
            command.clean_up()
    assert_same_run(undisturbed, leading)
    for name in ("stays", "killed"):
        team = Finished(config, tmp_path / name)
        for student in config.students:
            assert_same_student(leading, team, student.name)


def test_a_run_that_follows_keeps_the_rows_that_it_needs_and_stops_where_they_are_taken_away(leader, tmp_path):
    leads, team = leader.run_dir.root, RunDir(tmp_path / "team")
    config = following(leads, tmp_path / "team.yaml")

    def early(status: RunStatus) -> None:
        if not status.over and status.workers["student-feed"].rows >= 700:
            os.kill(os.getpid(), signal.SIGTERM)

    with slow_students():
        status, _ = run(config, team, local=True, until_end=True, watch=early)
    assert status.state is RunState.STOPPED, status.reason
    stands = {reader.name: reader.position for reader in Readers(team.readers).all()}
    link, care = read_link(team.root), LakeCare(leads)
    assert link is not None
    rows = {row["name"]: row for row in care.reader_rows()}
    for name, position in stands.items():
        assert rows[f"{link.reader}/{name}"]["position"] == position
    for name in leader.models:  # those of the run that leads have read the lake to its end
        care.retire(name)
        Readers(leader.run_dir.readers).register(name, leader.lake.num_rows - 1)
    held = care.retain(days=1e-6, force=())
    assert held.held_by is not None
    assert link.reader in held.held_by
    assert (held.first_seq or 0) <= min(stands.values()) + 1

    care.retain(days=1e-6, force=[f"{link.reader}/{name}" for name in stands])
    status, summary = run(config, team, local=True, until_end=True)
    assert (status.state, summary) == (RunState.FAILED, None)
    assert status.permanent
    assert "are deleted (lake.retention_days)" in str(status.reason)


def test_it_goes_on_following_after_the_end_and_spawns_pauses_and_retires(leader, tmp_path):
    leads, team = leader.run_dir.root, RunDir(tmp_path / "team")
    config = following(leads, tmp_path / "team.yaml")
    config = config.having([student.model_dump(mode="json") for student in config.students if student.name == "feed"])
    status, summary = run(config, team, local=True, until_idle_s=1.0)
    assert (status.state, status.reason, summary) == (RunState.STOPPED, CAUGHT_UP, None)
    assert status.follows == {"run": str(leads), "state": "done", "ended": True}

    pipeline = Pipeline(team.root)
    request = SpawnRequest("brand", verticals=("feed", "video"), overrides=("batch_rows=256",), twin=False)
    assert pipeline.spawn(request).state == "remembered"
    finished = to_the_end(config, team.root)
    assert {student.name: student.state for student in pipeline.students()} == {"feed": "done", "brand": "done"}
    assert_same_student(leader, finished, "feed")
    assert_replays(team.root, "feed")

    names = {reader.name for reader in Readers(team.readers).all()}
    assert names == {"student-feed", "student-brand"}
    pipeline.retire("brand")
    run(config, team, local=True, until_idle_s=1.0)
    assert {reader.name for reader in Readers(team.readers).all()} == {"student-feed"}
    start_over(team)
    assert [reader.name for reader in Readers(leader.run_dir.readers).all() if reader.follows] == []


def test_it_begins_where_it_is_told_to(leader, tmp_path):
    leads, first = leader.run_dir.root, 2000
    config = following(leads, tmp_path / "team.yaml", source={"lake": str(leads), "from": first})
    team = to_the_end(config, tmp_path / "team")
    predictions = {name: read_predictions(team.run_dir.predictions(name))["lake_seq"] for name in ("feed", "clicks")}
    of_feed = pc.and_(pc.equal(leader.lake["vertical"], "feed"), pc.greater_equal(leader.lake["lake_seq"], first))
    assert predictions["feed"].to_pylist() == leader.lake.filter(of_feed)["lake_seq"].to_pylist()
    assert predictions["clicks"][0].as_py() >= first
    assert min(config.student(name).first_seq for name in ("feed", "brand", "clicks")) == first
    last = leader.lake.num_rows - 1
    for wrong in (last + 2, last + 100):
        config = following(leads, tmp_path / "late.yaml", source={"lake": str(leads), "from": wrong})
        with pytest.raises(BadInput, match=f"ends at {last:,}"):
            run(config, RunDir(tmp_path / "late"), local=True, until_end=True)
        assert not (tmp_path / "late").exists()


def test_a_lake_that_was_started_over_is_not_followed(leader, tmp_path):
    leads = leader.run_dir.root
    config = following(leads, tmp_path / "team.yaml")
    team = RunDir(to_the_end(config, tmp_path / "team").run_dir.root)
    team.summary.unlink()
    shutil.rmtree(leader.run_dir.lake)
    with pytest.raises(BadInput, match="has no lake yet"):
        run(config, team, local=True, until_end=True)
    with pytest.raises(BadInput, match="is the run whose lake is to be followed"):
        run(config, RunDir(leads), local=True)
