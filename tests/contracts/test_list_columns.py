"""List columns from a file through topics and lake into teacher and student: a sequence of ids, a bag of texts."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines.small_runs import assert_learned_the_lake, small, to_the_end

pytestmark = pytest.mark.broker

ROWS = 6000


def recording(path):
    """Which of two ads was seen last decides the click; some have seen nothing, or it is not known."""
    rng = np.random.default_rng(0)
    seen = [rng.permutation([1, 2]).tolist() for _ in range(ROWS)]
    clicked = [int(pair[-1] == 1) for pair in seen]
    for row in range(0, ROWS, 10):
        seen[row], clicked[row] = (None if row % 20 else []), 0
    columns = {
        "event_time_ms": pa.array(np.arange(ROWS) * 1000),
        "vertical": pa.array(["feed", "shop"] * (ROWS // 2)),
        "ad_id": pa.array(rng.integers(0, 9, ROWS)),
        "seen": pa.array(seen, pa.list_(pa.int64())),
        "vector": pa.array([[row % 7, 0.5] if row % 5 else None for row in range(ROWS)], pa.list_(pa.float32())),
        "tags": pa.array([["новый", "sale"] if row % 3 else [] for row in range(ROWS)], pa.list_(pa.string())),
        "clicked": pa.array(clicked),
    }
    pq.write_table(pa.table(columns), path)
    return columns


@pytest.mark.parametrize("codec", ["arrow", pytest.param("json", marks=pytest.mark.slow)])
def test_lists_arrive_as_they_were_and_are_learned_from_in_their_order(broker, tmp_path, codec):
    columns = recording(tmp_path / "stream.parquet")
    model = {"width": 4, "trunk": {"name": "dlrm", "mlp": [16]}, "dense_lr": 0.02}
    config = small(
        broker.bootstrap_servers,
        source={"kind": "recorded", "path": str(tmp_path / "stream.parquet"), "labels": {"ctr": {"column": "clicked"}}},
        rows={
            "columns": [
                {"name": "ad_id"},
                {"name": "seen", "type": "list<int64>", "nullable": True, "minimum": 0},
                {"name": "tags", "type": "list<string>"},
                {"name": "vector", "type": "list<float32>", "length": 2, "nullable": True},
            ],
            "tasks": [{"name": "ctr", "window_s": 60}],
        },
        features={
            "sparse": [{"name": "ad_id", "rows": 16}, {"name": "tags", "rows": 64}],
            "dense": [{"name": "vector", "length": 2}],
            "sequence": [{"name": "seen", "rows": 16, "length": 4, "units": 2}],
        },
        kafka__impressions__codec=codec,
        teacher={"batch_rows": 128, "model": {"width": 8, "layers": 1, "mlp": [16], "head": [16], "dense_lr": 0.01}},
        students=[{"name": "feed", "batch_rows": 64, "model": model, "twin": True}],
    )

    finished = to_the_end(config, tmp_path / "run")

    by_time = finished.lake.sort_by("event_time_ms")
    assert by_time["seen"].combine_chunks().to_pylist() == columns["seen"].to_pylist()
    assert by_time["vector"].combine_chunks().to_pylist() == columns["vector"].to_pylist()
    assert by_time["tags"].combine_chunks().to_pylist() == columns["tags"].to_pylist()
    assert_learned_the_lake(finished)
    half = finished.summary["students"]["feed"]["ctr"]["last_half"]
    assert {name: half[name]["auc"] > 0.95 for name in ("teacher", "student", "no_teacher")} == dict.fromkeys(
        ("teacher", "student", "no_teacher"), True
    ), json.dumps(half)
