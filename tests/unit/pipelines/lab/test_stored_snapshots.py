"""Which stored snapshot scores a row, where snapshots end before the rows that are replayed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.snapshots.checkpoint import save_checkpoint
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits import stored
from pipelines.lab.logits.kept import snapshots_of
from pipelines.lab.logits.stored import scorers_of
from pipelines.lab.spec.conditions import Stored
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_sweeps import with_small_stream
from tests.support.pipelines.written_lakes import write_lake


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A lake of 1,200 rows, and snapshots that end with rows 99 and 599; the rows from 600 on. Older snapshots scored
    the first rows, and were deleted."""
    return run_of(tmp_path_factory.mktemp("snapshots"))


def run_of(folder, **changes):
    with_small_stream(folder)
    config, run = load(folder / "small.yaml"), RunDir(folder / "run")
    write_lake(run.lake, config, 1200, **changes)
    for number, end in enumerate((99, 599)):
        save_checkpoint(run.snapshots, f"v{number:08d}", {"w": torch.zeros(1)}, {"lake_seq": end})
    lake = LakeReader(run.lake, config.rows)
    times = np.maximum.accumulate(lake.read(-1).table["event_time_ms"].to_numpy())
    return run, config.rows, lake.read(599).table, times


def test_a_snapshot_that_ended_before_the_rows_is_as_old_as_the_lake_says(run):
    run_dir, schema, table, times = run
    for seconds in ((times[600] - times[599]) / 1000 + 1, (times[600] - times[99]) / 1000):
        _, which = scorers_of(run_dir, schema, table, Stored(seconds=seconds), snapshots_of(run_dir))
        old = times[600:] - round(seconds * 1000)
        assert np.array_equal(which, np.where(times[599] <= old, 1, 0))
        assert which[0] == 0
    with pytest.raises(BadInput, match=r"rows lake_seq 600 to .* have no snapshot that is old enough"):
        scorers_of(run_dir, schema, table, Stored(seconds=(times[600] - times[99]) / 1000 + 1), snapshots_of(run_dir))


def test_rows_before_the_teachers_first_snapshot_have_no_logit_unless_that_was_deleted(tmp_path):
    run_dir, schema, *_ = run_of(tmp_path, first_scored=1)
    lake, there = LakeReader(run_dir.lake, schema), snapshots_of(run_dir)
    assert lake.read(-1).table["teacher_version"].null_count > 99  # nothing had scored what the first one learned
    whole = lake.read(-1).table
    _, which = scorers_of(run_dir, schema, whole, Stored(), there)
    assert which.tolist() == [-1] * 100 + [0] * 500 + [1] * 600
    _, which = scorers_of(run_dir, schema, whole, Stored(snapshots=1), there)
    assert which.tolist() == [-1] * 600 + [0] * 600
    with pytest.raises(BadInput, match=r"rows lake_seq 0 to 599 have no snapshot that is old enough"):
        scorers_of(run_dir, schema, whole, Stored(), there[1:])  # the first was deleted
    with pytest.raises(BadInput, match=r"rows lake_seq 0 to 1,199 have no snapshot that is old enough"):
        scorers_of(run_dir, schema, whole, Stored(rows=1200), there)  # nothing would be scored


def test_a_snapshot_whose_last_row_was_deleted_is_older_than_all_rows(run, monkeypatch):
    def without_old_rows(*arguments):
        lake = LakeReader(*arguments)
        lake.first_lake_seq = 300
        return lake

    monkeypatch.setattr(stored, "LakeReader", without_old_rows)
    run_dir, schema, table, times = run
    _, which = scorers_of(
        run_dir, schema, table, Stored(seconds=(times[600] - times[99]) / 1000 + 1), snapshots_of(run_dir)
    )
    assert which[0] == 0
