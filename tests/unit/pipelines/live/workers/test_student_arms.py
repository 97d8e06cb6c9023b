"""All that an arm can have, in a run: a student's worker keeps it, resumes with it, and says how it stands."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from exfm.models.served import load_served
from pipelines.core.config.settings import load
from pipelines.live.workers.student import state
from tests.support.models.states import same
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.pipelines.student_at_work import learn, starting

EVERYTHING = {
    "kind": "auxiliary_head",
    "adapter": True,
    "adapter_input": "context",
    "recalibration": "platt",
    "single_head_rows": 70,
    "follows": "advantage",
}


@pytest.fixture
def started(tmp_path):
    """Starts a worker of a student with all of it, and a twin, in one run directory."""
    config = load(SMALL_RUN, [f"students.0.model.arm={EVERYTHING}"])
    with starting(config, tmp_path) as start:
        yield start


def test_a_stopped_worker_goes_on_across_the_schedules_change_and_its_twin_has_nothing_of_it(started):
    first = started()
    learn(first, 0, 1)
    first.abandon()
    second = started()
    assert second.position == 63
    learn(second, 2, 3)
    for block in (2, 3):
        first.state.engine.student.train_step(first.build(rows_of(block)))  # as if it had never been stopped
    assert same(first.state.engine.student.state(), second.state.engine.student.state())
    kept = {name.split("/")[0] for name in second.state.engine.student.state()}
    assert {"adapter", "platt", "advantage"} <= kept
    assert not {"adapter", "platt", "advantage"} & {name.split("/")[0] for name in second.state.engine.twin.state()}


def test_a_snapshots_age_reaches_the_student_and_what_is_served_asks_for_nothing_of_it(started, tmp_path):
    worker = started()
    learn(worker, 0, 1, 2)
    ages = worker.build(rows_of(9)).teacher_age  # blocks of 32 rows, scored by the snapshot of the one before the last
    assert ages.numpy() == pytest.approx(np.full(32, 48), abs=16)
    served = load_served(sorted((tmp_path / "snapshots" / "students" / "feed").glob("v*"))[-1])
    asked = rows_of(9).select(["user_id", "ad_id", "bid"])
    logits = worker.state.engine.student.score(worker.build(rows_of(9)))
    assert np.allclose(served.score(worker.build(asked)), logits, atol=1e-6)


def test_its_live_figures_tell_how_the_teacher_is_corrected(started, monkeypatch):
    monkeypatch.setattr(state, "METRICS_EVERY_ROWS", 32)
    worker = started()
    learn(worker, 0, 1)
    _, figures = worker.metrics[-1]
    assert {"platt_scale_ctr", "platt_shift_ctr", "teacher_weight_ctr", "adapter_weight_ctr"} <= figures.keys()
    assert figures["platt_scale_ctr"] != 1
    assert "ne_ctr" in figures


def test_the_twin_is_exported_with_its_student_at_its_size_and_answers_as_it(tmp_path):
    config = load(SMALL_RUN, ["students.0.model.arm={kind: single_head, weight: 9}"])
    with starting(config, tmp_path) as start:
        worker = start()
        learn(worker, 0, 1, 2)
    folders = [tmp_path / "snapshots" / kind / "feed" for kind in ("students", "twins")]
    names = [[export.name for export in sorted(folder.glob("v*"))] for folder in folders]
    assert names[0] == names[1] == ["v00000064", "v00000096"]
    student, twin = (load_served(folder / names[0][-1]) for folder in folders)
    batch = worker.build(rows_of(9))
    assert np.allclose(twin.score(batch), worker.state.engine.twin.score(batch), atol=1e-6)
    assert not np.allclose(twin.score(batch), student.score(batch), atol=1e-4)
    assert twin.parameter_count == student.parameter_count


def test_a_run_that_exported_no_twin_resumes_and_exports_one(started, tmp_path):
    first = started()
    learn(first, 0, 1)
    first.abandon()
    shutil.rmtree(tmp_path / "snapshots" / "twins")
    second = started()
    learn(second, 2)
    assert [export.name for export in (tmp_path / "snapshots" / "twins" / "feed").glob("v*")] == ["v00000096"]
