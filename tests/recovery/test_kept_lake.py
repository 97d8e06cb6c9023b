"""A whole run whose lake is compacted, cut and vacuumed all the time learns what it learns without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable

from pipelines.core.run_dir.paths import RunDir
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_runs import everything, to_the_end


@pytest.mark.slow
@pytest.mark.broker
def test_housekeeping_changes_no_weight_and_no_figure(broker, tmp_path: Path) -> None:
    lake = {"compact_files": 2, "vacuum_after_s": 0, "retention_days": 0.05, "target_file_mb": 1}
    stream = {"pace__block_rows": 128, "students": None, "teacher__checkpoint_every_blocks": 1}
    students = everything(broker.bootstrap_servers).model_dump(mode="json")["students"]
    stream["students"] = [student | {"checkpoint_every_rows": 100} for student in students]
    quiet = to_the_end(everything(broker.bootstrap_servers, **stream), tmp_path / "quiet")
    kept = to_the_end(everything(broker.bootstrap_servers, lake=lake, **stream), tmp_path / "kept")

    reader = LakeReader(RunDir(tmp_path / "kept").lake, kept.config.rows)
    assert reader.first_lake_seq > 0.4 * quiet.lake.num_rows
    assert reader.last_lake_seq == quiet.lake.num_rows - 1
    assert kept.rows.equals(quiet.rows.slice(reader.first_lake_seq))
    assert np.array_equal(kept.lake["lake_seq"], np.arange(reader.first_lake_seq, reader.last_lake_seq + 1))
    assert len(list(RunDir(tmp_path / "kept").lake.rglob("vertical=*/**/*.parquet"))) < 100
    assert kept.summary["students"] == quiet.summary["students"]
    assert kept.summary["counts"] == quiet.summary["counts"]
    for worker in quiet.models:
        (tensors, meta), (others, other_meta) = quiet.checkpoint(worker), kept.checkpoint(worker)
        assert tensors == others, worker
        assert meta["learned"] == other_meta["learned"], worker


@pytest.mark.slow
@pytest.mark.broker
def test_the_layout_of_the_lake_changes_no_weight_and_no_figure(broker, tmp_path: Path) -> None:
    runs = {
        layout: to_the_end(everything(broker.bootstrap_servers, lake={"layout": layout}), tmp_path / layout)
        for layout in ("dates", "verticals")
    }
    dates, verticals = runs.values()
    for layout, columns in (("dates", ["vertical", "event_date"]), ("verticals", ["vertical"])):
        assert DeltaTable(runs[layout].run_dir.lake).metadata().partition_columns == columns
    assert verticals.rows.equals(dates.rows)
    assert verticals.summary["students"] == dates.summary["students"]
    assert verticals.summary["counts"] == dates.summary["counts"]
    for worker in dates.models:
        assert verticals.checkpoint(worker)[0] == dates.checkpoint(worker)[0], worker
