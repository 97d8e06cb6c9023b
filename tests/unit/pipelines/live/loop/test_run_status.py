"""What status.json and the tracker are given while a run goes on."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from pipelines.live.rules.states import RunState
from tests.support.pipelines.scripted_run import ENDLESS, Recorder, Run, reasons, report, stop_after, working


def test_status_json_is_rewritten_at_least_every_two_seconds(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(60))
    run.to_the_end()
    times = [at for at, _ in run.told]
    assert max(b - a for a, b in pairwise(times)) <= 2
    stamps = [value["updated_at"] for _, value in run.told]
    assert stamps == sorted(stamps)


def test_status_json_has_every_field_that_others_rely_on(tmp_path):
    said = report(
        "student-feed", 7, lake_seq=5, lag_rows=3, lag_event_time_s=2.5, ne={"ctr": 0.9, "cvr": None},
        teacher_version=4, teacher_lag_rows=11,
    )  # fmt: skip
    (tmp_path / "lake/augmented_examples/vertical=feed/event_date=2024-01-01").mkdir(parents=True)
    (tmp_path / "lake/augmented_examples/vertical=feed/event_date=2024-01-01/part-0.parquet").write_bytes(b"12345")
    lives = ENDLESS | {"student-feed": [[said]], "augmentation": [[report("augmentation", lake_seq=41)]]}
    run = Run(tmp_path, lives, at_tell=stop_after(5))
    run.to_the_end()
    value = json.loads(run.run_dir.status.read_text())
    assert value.keys() >= {"state", "reason", "pid", "updated_at", "workers", "broker", "lake"}
    assert value["broker"].keys() == {"bootstrap_servers", "pid"}
    assert value["lake"] == {"rows": 42, "bytes": 5, "files": 1, "last_lake_seq": 41}
    worker = value["workers"]["student-feed"]
    expected = {
        "pid": 4242, "node": "here", "state": "running", "restarts": 0, "rows": 7, "rows_per_s": 0.0, "lake_seq": 5,
        "lag_rows": 3, "lag_event_time_s": 2.5, "rss_bytes": 1 << 20, "ne": {"ctr": 0.9, "cvr": None},
        "teacher_version": 4, "teacher_lag_rows": 11,
    }  # fmt: skip
    assert {key: worker[key] for key in expected} == expected
    assert value["workers"]["ingest"]["ne"] is None  # does not apply


def test_the_rate_is_that_of_the_last_seconds_not_of_the_whole_life(tmp_path):
    rows = [*range(0, 4000, 100), *[4000] * 200]  # 2,000 rows/s for two seconds, then nothing
    run = Run(tmp_path, ENDLESS | {"teacher": [[report("teacher", n) for n in rows]]}, at_tell=stop_after(8))
    run.to_the_end()
    rates = [value["workers"]["teacher"]["rows_per_s"] for _, value in run.told]
    assert rates[0] is None
    assert max(rate for rate in rates if rate is not None) == pytest.approx(2000, rel=0.05)
    assert rates[-1] == 0


def test_what_tracking_drops_stands_in_the_status_and_stops_nothing(tmp_path):
    tracker = Recorder()
    tracker.dropped, tracker.problem = 1234, "MLflow at http://gone: ConnectionError"
    run = Run(tmp_path, ENDLESS, tracker=tracker, at_tell=stop_after(3))
    assert run.to_the_end() is RunState.STOPPED
    assert run.written["tracking"] == {"dropped": 1234, "problem": "MLflow at http://gone: ConnectionError"}
    assert "1,234 entries of tracking were dropped, training goes on (MLflow at http://gone" in str(reasons(run)[-1])


def test_metrics_of_every_report_and_of_the_closing_one_reach_the_tracker(tmp_path):
    first = report("teacher", metrics=[(1, {"ne_ctr": 0.9}), (2, {"ne_ctr": 0.8})])
    tracker = Recorder()
    run = Run(tmp_path, ENDLESS | {"teacher": [[first, working("teacher")]]}, tracker=tracker, at_tell=stop_after(2))
    run.to_the_end()
    assert [seen for seen in tracker.seen if seen[0] == "teacher"] == [
        ("teacher", 1, {"ne_ctr": 0.9}),
        ("teacher", 2, {"ne_ctr": 0.8}),
        ("teacher", 99, {"closing": 1.0}),
        ("teacher", 99, {"closing": 1.0}),  # augmentation's, which are of the teacher
    ]
