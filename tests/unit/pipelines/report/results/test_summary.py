"""The summary of a finished run: students' parts from their files, and counts that add up."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import WorkerState
from pipelines.live.status.counts import counts_hold
from pipelines.live.status.status import RunStatus, WorkerStatus
from pipelines.live.training.predictions import PredictionLog
from pipelines.live.workers.report import Report
from pipelines.report.results.figures import ModelFigures, TaskFigures, WindowFigures
from pipelines.report.results.stored import read_summary
from pipelines.report.results.summary import final_metrics, students_of, summarise
from pipelines.report.results.verdict import verdict_on
from streaming.lake.writer import LakeTable
from streaming.sources.synthetic.truth import TRUTH_SCHEMA, TruthWriter
from streaming.store.files import write_json
from tests.support.pipelines.predictions import ROWS, logit, naive_ne, predictions, with_column
from tests.support.pipelines.raw_configs import small

COUNTERS = {
    "impressions_read": 110,
    "settled": {"ctr": 100, "cvr": 12},
    "not_applicable": {"ctr": 0, "cvr": 85},
    "pending": {"ctr": 0, "cvr": 3},
    "unknown_labels": {"ctr": 0, "cvr": 0},
    "dead_letters": {
        "impression": {"null:user_id": 4, "undecodable": 2},
        "feedback": {"unknown_impression": 5, "x": 2},
    },
    "duplicates_dropped": 4,
    "lake_rows": 112,
    "teacher_inferences": 112,
    "feedback_read": 40,
    "matched_feedback": 30,
    "late_feedback": 1,
    "duplicate_feedback": 2,
    "waiting_feedback": 0,
    "verticals": {"feed": 112},
    "dead_letter_examples": {"impression": {}, "feedback": {}},
}


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def spill(run_dir, student, table):
    log = PredictionLog(run_dir.predictions(student))
    log.open(-1)
    for batch in table.to_batches(max_chunksize=700):
        log.append(batch)
        log.write(log.take())


CONFIG = parse(small(students=[{"name": "feed", "tasks": ["ctr"], "twin": True}, {"name": "idle", "tasks": ["ctr"]}]))


def test_the_last_half_is_that_of_the_stream_not_of_the_students_rows(run_dir):
    table, _ = predictions()
    table = with_column(table, "lake_seq", pa.array(np.arange(ROWS) + 7000))  # a student whose rows came late
    spill(run_dir, "feed", table)
    found = students_of(CONFIG, run_dir, last_seq=15_999)["feed"]["ctr"]
    assert (found.rows, found.last_half.rows) == (8000, 7000)
    kept = slice(1000, None)  # lake_seq 8000 and later
    expected = naive_ne(table["student_ctr"].to_numpy()[kept], table["label_ctr"].to_numpy()[kept])
    assert found.last_half.student.ne == pytest.approx(expected, rel=1e-9)
    assert found.rows_left_out == 0
    assert found.optimum is None


def test_the_optimum_is_read_from_the_truth_beside_the_stream(run_dir):
    table, p = predictions()
    spill(run_dir, "feed", table)
    columns = {name: np.zeros(ROWS) for name in TRUTH_SCHEMA.names}
    columns |= {"impression_id": np.arange(ROWS) * 7, "p_settled_ctr": p, "vertical": ["feed"] * ROWS}
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in TRUTH_SCHEMA]
    with TruthWriter(run_dir.truth) as writer:
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=TRUTH_SCHEMA))
    found = students_of(CONFIG, run_dir, ROWS - 1)["feed"]["ctr"]
    assert found.optimum.ne == pytest.approx(naive_ne(logit(p), table["label_ctr"].to_numpy()), rel=1e-6)


def test_a_student_that_saw_no_row_has_its_line_all_the_same(run_dir):
    found = students_of(CONFIG, run_dir, 10)
    assert found.keys() == {"feed", "idle"}
    for student in found.values():
        for part in (student["ctr"], student["ctr"].last_half):
            assert (part.rows, part.positives, part.too_few) == (0, 0, "positives (0)")
            assert part.teacher is None or part.teacher.ne is None
        assert verdict_on(student) == "saw no row"


def finished(run_dir):
    status = RunStatus("small")
    for name, kind in [("augmentation", "augmentation"), ("student-feed", "student"), ("late", "student")]:
        status.workers[name] = WorkerStatus(name, Kind(kind), WorkerState.DONE, restarts=2)
    status.workers["augmentation"].report = Report(
        "augmentation", "augmentation", rows=110, busy_s=2.0, counts=COUNTERS
    )
    status.workers["student-feed"].report = Report(
        "student-feed", "student", rows=50, busy_s=0.5, peak_rss_bytes=1 << 20, phases_s={"train": 0.41111},
        counts={"learned": {}, "trained_rows": 100, "quarantined_rows": 12, "quarantined_rows_no_teacher": 0},
    )  # fmt: skip
    table, _ = predictions(rows=112)
    spill(run_dir, "feed", table)
    LakeTable(run_dir.lake, CONFIG.rows).open_writer()
    return summarise(CONFIG, run_dir, status)


def test_the_summary_holds_every_field_that_others_rely_on(run_dir):
    summary = finished(run_dir)
    write_json(run_dir.summary, summary.as_json())
    assert json.dumps(read_summary(run_dir).as_json()) == json.dumps(summary.as_json())
    value = json.loads(run_dir.summary.read_text())
    assert value.keys() == {"format", "run", "counts", "workers", "students", "cells", "columns", "losses"}
    assert value["run"].keys() >= {"name", "config_hash", "versions", "started_at", "wall_s", "pace", "seed"}
    assert value["run"]["config_hash"] == CONFIG.hash
    assert value["workers"]["student-feed"] == {
        "rows": 50, "busy_s": 0.5, "rows_per_s": 100.0, "peak_rss_bytes": 1 << 20, "restarts": 2,
        "phases_s": {"train": 0.411}, "given_rows": 112, "trained_rows": 100, "quarantined_rows": 12,
        "quarantined_rows_no_teacher": 0,
    }  # fmt: skip
    assert "late" not in value["workers"]  # it never reported
    assert value["counts"].keys() >= {
        "impressions_read", "settled", "not_applicable", "pending", "dead_letters", "duplicates_dropped", "lake_rows",
        "teacher_inferences", "feedback_read", "late_feedback", "unmatched_feedback", "feedback_dead_letters",
    }  # fmt: skip
    result = value["students"]["feed"]["ctr"]
    assert result["rows"] == 112
    assert result["last_half"].keys() >= {"rows", "positives", "student", "no_teacher", "teacher", "optimum", "gain"}
    assert result["gain"].keys() >= {"difference", "low", "high", "too_few"}
    (user,) = (column for column in value["columns"] if column["name"] == "user_id")
    nothing = {"rows": 0, "nulls": 0, "smallest": None, "largest": None, "distinct": 0}
    assert user == {"name": "user_id", "type": "int64", "refused": 4} | nothing


def test_counts_add_up_for_every_settlement_group(run_dir):
    counts = finished(run_dir).counts
    assert counts.dead_letters == 6  # of impressions; those of feedback are counted apart
    assert (counts.unmatched_feedback, counts.feedback_dead_letters) == (5, 2)
    assert counts_hold(counts)


@pytest.mark.parametrize(
    "broken",
    [
        {"impressions_read": 111},
        {"settled": {"ctr": 99, "cvr": 13}},
        {"not_applicable": {"ctr": 0, "cvr": 84}},
        {"pending": {"ctr": 1, "cvr": 3}},
        {"dead_letters": 5},
        {"duplicates_dropped": 3},
        {"lake_rows": 111},
    ],
)
def test_a_row_lost_anywhere_is_noticed(run_dir, broken):
    assert not counts_hold(replace(finished(run_dir).counts, **broken))


def test_a_row_that_a_model_neither_learned_nor_left_out_is_noticed(run_dir):
    workers = finished(run_dir).workers
    assert all(worker.holds for worker in workers.values())
    assert not replace(workers["student-feed"], quarantined_rows=11).holds


def test_rows_that_sampling_left_out_are_of_those_given(run_dir):
    student = finished(run_dir).workers["student-feed"]
    worker = replace(student, trained_rows=30, quarantined_rows=2, left_out_by_sampling=68, given_rows=100)
    assert worker.holds
    assert not replace(worker, left_out_by_sampling=67).holds


def test_figures_for_mlflow_leave_out_what_is_undefined():
    half = WindowFigures(rows=900, positives=70, student=ModelFigures(ne=None, auc=0.5))
    figures = TaskFigures(rows=1800, positives=150, last_half=half)
    assert final_metrics("ctr", figures) == {"final/ctr/student/auc": 0.5, "final/ctr/positives": 70.0}


def test_figures_for_mlflow_are_of_the_window_that_the_screen_shows(run_dir):
    table, _ = predictions()
    spill(run_dir, "feed", table)
    result = students_of(CONFIG, run_dir, last_seq=3999)["feed"]["ctr"]
    flat, half = final_metrics("ctr", result), result.last_half
    assert half.rows < result.rows
    assert flat["final/ctr/gain"] == half.gain.difference > 0
    assert (flat["final/ctr/gain_low"], flat["final/ctr/gain_high"]) == (half.gain.low, half.gain.high)
    assert flat["final/ctr/student/ne"] == half.student.ne
    assert flat["final/ctr/transfer_ratio"] == half.transfer_ratio
    assert all(isinstance(value, float) for value in flat.values())
