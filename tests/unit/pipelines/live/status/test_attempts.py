"""What a resumed run shows: rows, restarts and wall time since it began, whatever ended the start before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import EarlierAttempts, RunStatus, WorkerStatus
from pipelines.live.status.stored import earlier_attempts
from pipelines.live.workers.report import Report
from tests.support.waiting import eventually


def written(root: Path, status: RunStatus, **changes: object) -> None:
    StatusFile(RunDir(root).status).write(lambda: status.as_json() | changes)


def at_work(root: Path, rows: int, restarts: int = 0) -> RunStatus:
    status = RunStatus.resuming("small", earlier_attempts(root))
    report = Report("teacher", "teacher", rows=7, total_rows=rows, busy_s=2.0, phases_s={"train": 1.5}, lag_rows=40)
    report.cpu_s = {"train": 1.25, "other threads": 0.25}
    worker = WorkerStatus("teacher", Kind.TEACHER, WorkerState.RUNNING, restarts, report=report)
    worker.earlier = status.earlier.of("teacher")
    status.workers["teacher"] = worker
    return status


def test_the_second_start_goes_on_counting_where_the_first_ended(tmp_path):
    first = at_work(tmp_path, rows=1000, restarts=2)
    written(tmp_path, first, wall_s=100.0)
    told = at_work(tmp_path, rows=1500, restarts=1).as_json()
    teacher = told["workers"]["teacher"]
    assert (teacher["rows"], teacher["restarts"], teacher["busy_s"]) == (1500, 3, 4.0)
    assert teacher["phases_s"] == {"train": 3.0}
    assert teacher["cpu_s"] == {"train": 2.5, "other threads": 0.5}
    assert (told["legs"], told["started_at"]) == (2, first.started_at)
    assert told["wall_s"] == pytest.approx(100.0, abs=5)
    assert told["leg_wall_s"] < 5


def test_before_its_first_report_a_worker_shows_the_rows_it_had(tmp_path):
    written(tmp_path, at_work(tmp_path, rows=1000))
    status = RunStatus.resuming("small", earlier_attempts(tmp_path))
    worker = WorkerStatus("teacher", Kind.TEACHER, earlier=status.earlier.of("teacher"))
    assert worker.as_json()["rows"] == 1000


def test_a_start_that_is_killed_before_a_worker_has_started_hands_on_what_was_done(tmp_path):
    written(tmp_path, at_work(tmp_path, rows=1000, restarts=2))
    before = earlier_attempts(tmp_path)
    written(tmp_path, RunStatus.resuming("small", before))
    assert earlier_attempts(tmp_path).workers == before.workers
    assert at_work(tmp_path, rows=1500).as_json()["earlier"] == {}


def test_a_new_run_and_one_whose_status_is_damaged_begin_with_nothing(tmp_path):
    assert earlier_attempts(tmp_path) == EarlierAttempts()
    RunDir(tmp_path).status.write_text("{")
    assert earlier_attempts(tmp_path) == EarlierAttempts()


KILLED = """
import sys, time
from pathlib import Path
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.file import Heartbeat, StatusFile
from pipelines.live.status.stored import earlier_attempts
from pipelines.live.status.status import RunStatus
root = Path(sys.argv[1])
status = RunStatus.resuming("small", earlier_attempts(root))
with Heartbeat(StatusFile(RunDir(root).status), status):
    print("began", flush=True)
    time.sleep(600)
"""


def test_kill_9_loses_a_second_or_two_of_the_wall_time(tmp_path):
    for leg in (1, 2):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        before, began = earlier_attempts(tmp_path).wall_s, time.monotonic()
        eventually(lambda before=before: earlier_attempts(tmp_path).wall_s >= before + 0.9)  # a beat has come
        lived = time.monotonic() - began
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = earlier_attempts(tmp_path)
        assert found.attempts == leg
        assert before + lived - 5 < found.wall_s


@pytest.mark.parametrize("kind", [Kind.TEACHER, Kind.STUDENT])
def test_a_reader_that_has_finished_lags_by_nothing_and_holds_up_no_share(kind):
    status = RunStatus("small", RunState.DRAINING)
    reports = {
        Kind.INGEST: Report("ingest", "ingest", progress=(1000, 1000)),
        Kind.AUGMENTATION: Report("augmentation", "augmentation", lake_seq=999, progress=(1000, 1000)),
        kind: Report("reader", str(kind), lake_seq=700, lag_rows=299, lag_event_time_s=12.0),
    }
    for each, report in reports.items():
        state = WorkerState.DONE if each is kind else WorkerState.RUNNING
        status.workers[report.name] = WorkerStatus(report.name, each, state, report=report)
    told = status.as_json()
    assert told["workers"]["reader"]["lag_rows"] == 0
    assert told["workers"]["reader"]["lag_event_time_s"] is None
    assert told["fraction"] == 1.0


def test_until_the_lake_has_rows_it_is_said_what_is_waited_for():
    status = RunStatus("small", stage="starting Ray")
    assert status.waits_for == "starting Ray"
    status.stage = None
    for kind in (Kind.AUGMENTATION, Kind.TEACHER):
        status.workers[str(kind)] = WorkerStatus(str(kind), kind)
    assert status.waits_for == "waiting for augmentation, teacher: their processes start and import torch"
    note = "waiting for the first window to close: 600 s of event time, of which 20 s have passed"
    for worker in status.workers.values():
        worker.state = WorkerState.RUNNING
        worker.report = Report(worker.name, worker.name, note=note if worker.kind is Kind.AUGMENTATION else None)
    assert status.waits_for == note
    status.lake.rows = 1
    assert status.waits_for is None
