"""A student's worker that predicts as shown: what it logs, what it resumes to, and what it says where it cannot."""

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import Cut
from pipelines.live.training.predictions import read_predictions
from tests.support.pipelines.raw_configs import small
from tests.support.pipelines.stored_run import rows_of
from tests.support.pipelines.student_at_work import starting
from tests.support.waiting import eventually

STEP_MS = 937  # two batches are shown within the window of clicks


def config(**metrics):
    raw = small() | {"metrics": metrics}
    raw["students"][0] |= {"tasks": ["ctr"], "twin": True, "checkpoint_every_rows": 16}
    return parse(raw)


def rows_shown(block):
    rows = rows_of(block)
    times = pa.array(rows["lake_seq"].to_numpy() * STEP_MS)
    rows = rows.set_column(rows.schema.get_field_index("event_time_ms"), "event_time_ms", times)
    return rows.append_column("settlement", pa.array(["ctr"] * rows.num_rows))


def learn(worker, *blocks):
    for block in blocks:
        rows = rows_shown(block)
        worker.learn(Cut(rows, worker.build(rows)))
    eventually(lambda: worker.keeper.idle)


def logged(root):
    table = read_predictions(RunDir(root).predictions("feed"))
    return {name: table[name].to_numpy() for name in table.schema.names if "as_shown" in name or name == "student_ctr"}


def test_a_worker_that_was_killed_predicts_the_same_bits_as_shown(tmp_path):
    with starting(config(as_shown=True), tmp_path / "whole") as start:
        learn(start(), *range(12))
    with starting(config(as_shown=True), tmp_path / "killed") as start:
        for blocks in ((0, 1, 2), (3, 4, 5, 6, 7), (8, 9, 10, 11)):
            worker = start()
            learn(worker, *blocks)
            worker.abandon()
    whole, killed = logged(tmp_path / "whole"), logged(tmp_path / "killed")
    assert whole.keys() == {"student_ctr", "student_as_shown_ctr", "no_teacher_as_shown_ctr"}
    assert all(np.array_equal(whole[name], killed[name]) for name in whole)
    assert not np.array_equal(whole["student_ctr"], whole["student_as_shown_ctr"])


def test_a_student_whose_versions_have_no_room_says_so_and_learns_the_same(tmp_path):
    with starting(config(as_shown=True, as_shown_bytes=1), tmp_path / "small") as start:
        worker = start()
        learn(worker, 0, 1, 2)
        assert "no predictions as shown: up to" in worker.engine.as_shown_is_off
        assert worker.counts()["not_as_shown"] == worker.engine.as_shown_is_off
    with starting(config(), tmp_path / "without") as start:
        worker = start()
        learn(worker, 0, 1, 2)
        assert "not_as_shown" not in worker.counts()
    found, without = logged(tmp_path / "small"), logged(tmp_path / "without")
    assert found.keys() == without.keys() == {"student_ctr"}
    assert np.array_equal(found["student_ctr"], without["student_ctr"])


def test_live_figures_have_ne_as_shown_next_to_ne(tmp_path):
    with starting(config(as_shown=True), tmp_path) as start:
        worker = start()
        learn(worker, *range(8))
        values = worker.record.values()
        assert values["ne_ctr"] != pytest.approx(values["ne_ctr_as_shown"], rel=1e-6)
        worker.abandon()
        assert start().record.values() == values
