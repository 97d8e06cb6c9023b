"""The broker is gone, the disk is full, a model gives up: the run says so, goes on by itself where it can, and ends as
if nothing had been; where it cannot, the same command goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from exfm.errors import Diverged
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from streaming.broker.broker import LocalBroker
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, assert_same_run, small, to_the_end

pytestmark = pytest.mark.broker

STREAM: dict[str, Any] = {"source__impressions": 3000, "pace__block_rows": 300, "teacher__batch_rows": 150}
Watch = Callable[[RunStatus], None]


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    return to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture(autouse=True)
def _attentive(monkeypatch):
    """Look at the status after every round."""
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


def once_the_lake_has(rows: int, act: Watch) -> Watch:
    acted: list[bool] = []

    def watch(status: RunStatus) -> None:
        if not acted and status.lake.rows >= rows:
            acted.append(True)
            act(status)

    return watch


def end_of(config: Config, root: Path, watch: Watch = lambda status: None) -> RunStatus:
    return run(config, RunDir(root), local=True, until_end=True, watch=watch)[0]


# --- the broker -----------------------------------------------------------------------------------------------------


def kill_the_broker(status: RunStatus) -> None:
    os.kill(status.broker["pid"], signal.SIGKILL)


def test_kill_9_of_the_runs_own_broker_changes_nothing(undisturbed, tmp_path):
    config = small("127.0.0.1:1", **STREAM)
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})
    status = end_of(config, tmp_path, once_the_lake_has(1000, kill_the_broker))
    assert status.state is RunState.DONE, status.reason
    assert status.broker["restarts"] == 1
    finished = Finished(config, tmp_path)
    assert finished.rows.equals(undisturbed.rows)
    assert finished.summary["students"] == undisturbed.summary["students"]
    assert_learned_the_lake(finished)


@pytest.fixture
def foreign(tmp_path) -> Iterator[LocalBroker]:
    """A broker that is none of the run's business."""
    broker = LocalBroker(tmp_path / "foreign", heap_mb=256)
    yield broker
    broker.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broker_that_is_gone_for_a_minute_is_waited_for_and_never_started(undisturbed, foreign, tmp_path):
    config = small(foreign.start().bootstrap_servers, **STREAM, resources__max_restarts=0)
    said: list[str] = []
    back = threading.Timer(60.0, lambda: foreign.start())

    def away(status: RunStatus) -> None:
        running = foreign.status()
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)
        back.start()

    kill = once_the_lake_has(1000, away)

    def watch(status: RunStatus) -> None:
        kill(status)
        said.append(status.reason or "")
        assert back.is_alive() or not back.finished.is_set() or foreign.status() is not None

    try:
        status = end_of(config, tmp_path / "run", watch)
        assert status.state is RunState.DONE, status.reason
        assert_same_run(Finished(config, tmp_path / "run"), undisturbed)
    finally:
        back.cancel()
    assert status.broker == {"bootstrap_servers": foreign.start().bootstrap_servers, "pid": None}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broker_that_stays_away_ends_the_run_in_words_and_the_same_command_goes_on(undisturbed, foreign, tmp_path):
    timeouts = {"connect_timeout_s": 2, "request_timeout_s": 3, "delivery_timeout_s": 5, "give_up_s": 5}
    short = {f"kafka__{name}": seconds for name, seconds in timeouts.items()}
    servers = foreign.start().bootstrap_servers
    config = small(servers, **STREAM, **short)
    status = end_of(config, tmp_path / "run", once_the_lake_has(1000, lambda status: bool(foreign.stop()) and None))
    assert status.state is RunState.FAILED
    assert "5 s are allowed (kafka.give_up_s): bring it back, and resume" in str(status.reason)
    assert servers in str(status.reason)
    foreign.start()
    assert_same_run(to_the_end(config, tmp_path / "run"), undisturbed)


# --- the disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path, request) -> Iterator[Path]:
    """A disk of its own, of 300 MiB or of what the test asks for."""
    size = getattr(request, "param", "300m")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here (it takes root)")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


class Ballast:
    """Takes all the room of a disk, again and again, from when the lake has so many rows until it is let go."""

    def __init__(self, disk: Path, rows: int) -> None:
        self._path, self._rows = disk / "ballast", rows
        self._full_since: float | None = None
        self.let_go = False
        self.told: list[str] = []

    def fill(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while file.write(b"0" * size):
                        pass

    def __call__(self, status: RunStatus) -> None:
        if self.let_go or status.lake.rows < self._rows or status.state is not RunState.RUNNING:
            return
        self._full_since = self._full_since or time.monotonic()
        self.fill()
        written = read_json(self._path.parent / "run" / "status.json")
        if (written["reason"] or "").startswith("disk full"):
            self.told.append(written["reason"])
        deaths = sum(worker.restarts for worker in status.workers.values())
        if deaths > 3 and time.monotonic() - self._full_since > 6:
            self.let_go = True
            self.remove()

    def remove(self) -> None:
        self._path.unlink()


@pytest.mark.check
def test_on_a_disk_that_fills_up_the_run_says_so_and_goes_on_by_itself_when_there_is_room(
    undisturbed, broker, small_disk
):
    config = small(broker.bootstrap_servers, **STREAM, resources__max_restarts=0)
    ballast = Ballast(small_disk, rows=1000)
    status = end_of(config, small_disk / "run", ballast)
    assert status.state is RunState.DONE, status.reason
    assert ballast.let_go
    assert "waiting, nothing is lost" in ballast.told[0]
    assert_same_run(Finished(config, small_disk / "run"), undisturbed)


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_run_in_words_and_the_same_command_goes_on(undisturbed, broker, small_disk):
    config = small(broker.bootstrap_servers, **STREAM, resources__disk_give_up_s=3)
    ballast = Ballast(small_disk, rows=1000)
    ballast.remove = lambda: None  # type: ignore[method-assign]
    status = end_of(config, small_disk / "run", ballast)
    assert status.state is RunState.FAILED
    assert "3 s are allowed (resources.disk_give_up_s): free some, and resume" in str(status.reason)
    assert read_json(small_disk / "run" / "status.json")["reason"] == status.reason
    Ballast.remove(ballast)
    assert_same_run(to_the_end(config, small_disk / "run"), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("small_disk", ["600m"], indirect=True)
def test_a_full_disk_that_ends_the_runs_own_broker_too_is_waited_for(undisturbed, small_disk):
    config = small("127.0.0.1:1", **STREAM)
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})
    ballast = Ballast(small_disk, rows=1000)
    status = end_of(config, small_disk / "run", ballast)
    assert status.state is RunState.DONE, status.reason
    assert ballast.let_go
    finished = Finished(config, small_disk / "run")
    assert finished.rows.equals(undisturbed.rows)
    assert finished.summary["students"] == undisturbed.summary["students"]
    assert_learned_the_lake(finished)


# --- the state of augmentation --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_augmentation_whose_state_is_lost_says_so_at_once_and_goes_on_when_it_is_put_back(
    undisturbed, broker, tmp_path
):
    config, run_dir = small(broker.bootstrap_servers, **STREAM), RunDir(tmp_path / "run")
    stop = once_the_lake_has(1000, lambda status: os.kill(os.getpid(), signal.SIGTERM))
    assert end_of(config, run_dir.root, stop).state is RunState.STOPPED
    state = run_dir.checkpoints("augmentation")
    state.rename(tmp_path / "elsewhere")
    status = end_of(config, run_dir.root)
    assert status.state is RunState.FAILED
    assert status.workers["augmentation"].restarts == 0
    assert re.match(rf"augmentation: \w+: .*{re.escape(str(state))}", str(status.reason))
    shutil.rmtree(state, ignore_errors=True)
    (tmp_path / "elsewhere").rename(state)
    assert_same_run(to_the_end(config, run_dir.root), undisturbed)


# --- MLflow ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_of_mlflow_that_is_deleted_in_the_middle_costs_metrics_and_nothing_else(undisturbed, broker, tmp_path):
    config = small(broker.bootstrap_servers, **STREAM, tracking={"enabled": True, "interval_s": 0.1})
    database = RunDir(tmp_path).mlflow
    said: list[str] = []

    def watch(status: RunStatus) -> None:
        if database.exists() and status.lake.rows >= 1000:
            database.unlink()

    status, _ = run(config, RunDir(tmp_path), local=True, until_end=True, watch=watch, say=said.append)
    assert status.state is RunState.DONE, status.reason
    assert "entries were dropped, training is not affected" in said[-1]
    assert_same_run(Finished(config, tmp_path), undisturbed)


# --- a model that gives up ------------------------------------------------------------------------------------------


def gives_up(monkeypatch: pytest.MonkeyPatch, worker: type, name: str, steps: int) -> None:
    plain, done = worker.step, [0]

    def step(self: Any) -> bool:
        if self.name == name:
            done[0] += 1
            if done[0] > steps:
                raise Diverged("17 batches one after the other are not finite")
        return bool(plain(self))

    monkeypatch.setattr(worker, "step", step)


@pytest.mark.check
def test_a_student_that_gives_up_stops_nobody_and_the_same_command_goes_on_with_it(
    undisturbed, broker, tmp_path, monkeypatch
):
    config = small(broker.bootstrap_servers, **STREAM)
    with monkeypatch.context() as patch:
        gives_up(patch, StudentWorker, "student-feed", steps=6)
        status = end_of(config, tmp_path)
    assert status.state is RunState.FAILED
    assert status.reason == "student-feed: Diverged: 17 batches one after the other are not finite"
    assert {name: str(worker.state) for name, worker in status.workers.items() if worker.state != "done"} == {
        "student-feed": "failed"
    }
    assert not RunDir(tmp_path).summary.exists()
    before = Finished(config, tmp_path)
    assert before.rows.equals(undisturbed.rows)
    assert before.learned("teacher") == undisturbed.learned("teacher")
    assert_same_run(to_the_end(config, tmp_path), undisturbed)


@pytest.mark.slow
def test_in_free_pace_a_teacher_that_gives_up_stops_neither_lake_nor_students(broker, tmp_path, monkeypatch):
    config = small(
        broker.bootstrap_servers, **STREAM, pace__mode="free", teacher__publish_every_rows=600,
        pace__catchup_rows=100, pace__max_rows_ahead=1000,
    )  # fmt: skip
    told: list[str] = []
    notes: list[str] = []

    def watch(status: RunStatus) -> None:
        told.append(status.reason or "")
        report = status.workers["augmentation"].report
        notes.append((report.note if report else None) or "")

    with monkeypatch.context() as patch:
        gives_up(patch, TeacherWorker, "teacher", steps=8)
        status = end_of(config, tmp_path, watch)
    assert status.state is RunState.FAILED
    assert status.reason == "teacher: Diverged: 17 batches one after the other are not finite"
    assert any(reason.startswith("stale_teacher: teacher has given up, the others go on") for reason in told)
    assert any(note.startswith("stale_teacher: it has given up") for note in notes)
    lake = Finished(config, tmp_path).lake
    assert lake.filter(lake["label_ctr"].is_valid()).num_rows == 3000
    assert lake["teacher_version"].null_count < lake.num_rows  # the last snapshot went on scoring
    assert_learned_the_lake(to_the_end(config, tmp_path))
