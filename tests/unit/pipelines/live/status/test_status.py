"""How far a run is, from what its workers say."""

from __future__ import annotations

import json

import pytest

from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.status import RunStatus, WorkerStatus
from pipelines.live.workers.report import Report
from pipelines.report.screens.screen import eta_s
from streaming.store.files import read_json, write_json


def status(ingest=None, settled=None, lake_seq=None, readers=()):
    """`ingest`: (fed, of how many); `settled`: rows accounted for; `readers`: positions of teacher and students."""
    run = RunStatus("small", RunState.RUNNING)
    reports = {
        "ingest": Report("ingest", "ingest", progress=ingest),
        "augmentation": Report(
            "augmentation", "augmentation", lake_seq=lake_seq, progress=None if settled is None else (settled, settled)
        ),
    }
    reports |= {f"reader-{n}": Report(f"reader-{n}", "student", lake_seq=seq) for n, seq in enumerate(readers)}
    for name, report in reports.items():
        run.workers[name] = WorkerStatus(name, Kind(report.kind), WorkerState.RUNNING, report=report)
    return run


@pytest.mark.parametrize(
    ("run", "fraction"),
    [
        (status(ingest=(100, 1000)), None),  # augmentation has not said anything
        (status(settled=10, lake_seq=9), None),  # somebody else's stream: nobody knows its length
        (status(ingest=(1000, 1000), settled=0, lake_seq=-1, readers=[-1]), 0.0),
        (status(ingest=(1000, 1000), settled=500, lake_seq=499, readers=[499, 499]), 0.5),
        (status(ingest=(1000, 1000), settled=500, lake_seq=499, readers=[499, 249]), 0.25),  # the slowest counts
        (status(ingest=(1000, 1000), settled=500, lake_seq=499, readers=[499, None]), 0.0),  # it has not begun
        (status(ingest=(1000, 1000), settled=1000, lake_seq=999, readers=[999]), 1.0),
        (status(ingest=(1000, 1000), settled=1100, lake_seq=1299, readers=[1299]), 1.0),  # duplicates count as read
        (status(ingest=(0, 0), settled=0, lake_seq=-1), 0.0),
    ],
)
def test_the_share_done_is_that_of_the_slowest(run, fraction):
    assert run.fraction == fraction


def test_the_time_left_follows_from_the_share_and_is_unknown_at_both_ends():
    half = status(ingest=(1000, 1000), settled=500, lake_seq=499, readers=[499])
    assert eta_s(half) == pytest.approx(half.wall_s, abs=0.5)
    assert eta_s(status(ingest=(1000, 1000), settled=0, lake_seq=-1)) is None
    half.state = RunState.STOPPED
    assert eta_s(half) is None


def test_a_worker_before_its_first_report_is_told_with_nulls():
    told = WorkerStatus("teacher", Kind.TEACHER).as_json()
    assert (told["state"], told["rows"], told["restarts"]) == ("starting", 0, 0)
    for field in ("pid", "node", "rows_per_s", "lake_seq", "lag_rows", "rss_bytes", "ne", "teacher_version"):
        assert told[field] is None


@pytest.mark.parametrize("state", list(WorkerState))
def test_a_process_is_named_only_while_there_is_one(state):
    worker = WorkerStatus("teacher", Kind.TEACHER, state, report=Report("teacher", "teacher", pid=42, rows=7))
    assert worker.as_json()["pid"] == (42 if state in (WorkerState.RUNNING, WorkerState.DONE) else None)
    assert worker.as_json()["rows"] == 7


def test_status_json_is_moved_into_place_and_never_seen_in_half(tmp_path):
    path = tmp_path / "status.json"
    assert read_json(path) is None
    write_json(path, RunStatus("small").as_json())
    before = path.stat().st_ino
    write_json(path, RunStatus("small", RunState.DONE).as_json())
    assert path.stat().st_ino != before  # another file, under the same name
    assert read_json(path)["state"] == "done"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_value_that_is_no_json_leaves_the_old_one(tmp_path):
    path = tmp_path / "status.json"
    write_json(path, {"ne": 0.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"ne": float("nan")})
    assert json.loads(path.read_text()) == {"ne": 0.5}
