"""A file as people have them: ids that are unsigned, flags, missing prices and labels, times in text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.pipelines.small_runs import assert_learned_the_lake, small, to_the_end
from tests.support.pipelines.summaries import counts_hold

pytestmark = pytest.mark.broker

ROWS = 4000
UNKNOWN = slice(None, None, 4)


def recording(path):
    rng = np.random.default_rng(0)
    clicked, price = rng.integers(0, 2, ROWS).astype(object), rng.random(ROWS).astype(object)
    clicked[UNKNOWN] = None
    price[::3], price[1::3] = None, float("nan")
    at = pa.array(np.arange(ROWS) * 1000, pa.timestamp("ms")).cast(pa.string())
    ids = np.arange(ROWS, dtype=np.uint64) + np.uint64(2**63 - 5)
    columns = {
        "id": pa.array(ids),
        "at": at,
        "vertical": pa.array(["feed", "shop"] * (ROWS // 2)),
        "ad_id": pa.array(rng.integers(0, 9, ROWS), pa.uint8()),
        "app": pa.array(rng.integers(0, 2, ROWS).astype(bool)),
        "price": pa.array(price, pa.float64(), from_pandas=False),
        "clicked": pa.array(clicked, pa.float64()),
    }
    pq.write_table(pa.table(columns), path)
    return columns


@pytest.mark.parametrize("codec", ["arrow", pytest.param("json", marks=pytest.mark.slow)])
def test_a_file_is_taken_as_it_is_and_what_it_does_not_say_is_nowhere_a_zero(broker, tmp_path, codec):
    columns = recording(tmp_path / "stream.parquet")
    model = {"width": 4, "trunk": {"name": "dlrm", "mlp": [16]}}
    config = small(
        broker.bootstrap_servers,
        source={
            "kind": "recorded",
            "path": str(tmp_path / "stream.parquet"),
            "impression_id": "id",
            "event_time": "at",
            "labels": {"ctr": {"column": "clicked"}},
        },
        rows={
            "impression_id": "string",
            "columns": [{"name": "ad_id"}, {"name": "app"}, {"name": "price", "type": "float32", "nullable": True}],
            "tasks": [{"name": "ctr", "window_s": 60}],
        },
        features={
            "sparse": [{"name": "ad_id", "rows": 16}, {"name": "app", "rows": 4}],
            "dense": [{"name": "price", "transform": "log1p"}],
        },
        kafka__impressions__codec=codec,
        kafka__feedback__codec=codec,
        teacher={"batch_rows": 128, "model": {"width": 8, "layers": 1, "mlp": [16], "head": [16]}},
        students=[{"name": "everything", "verticals": "all", "batch_rows": 64, "model": model, "twin": True}],
    )

    finished = to_the_end(config, tmp_path / "run")

    counts, known = finished.summary["counts"], ROWS - ROWS // 4
    assert counts_hold(counts)
    assert (counts["settled"], counts["not_applicable"]) == ({"ctr": known}, {"ctr": ROWS // 4})
    assert (counts["unknown_labels"], counts["dead_letters"]) == ({"ctr": ROWS // 4}, 0)
    by_time, kept = finished.lake.sort_by("event_time_ms"), pc.is_valid(columns["clicked"])
    assert by_time["label_ctr"].to_pylist() == columns["clicked"].filter(kept).to_pylist()
    assert by_time["event_time_ms"].to_pylist() == [1000 * n for n in range(ROWS) if n % 4]
    assert by_time["impression_id"].combine_chunks().equals(columns["id"].filter(kept).cast(pa.string()))
    assert by_time["app"].to_pylist() == columns["app"].filter(kept).cast(pa.int64()).to_pylist()
    assert [price is None for price in by_time["price"].to_pylist()] == [n % 3 < 2 for n in range(ROWS) if n % 4]
    assert_learned_the_lake(finished)
    told = finished.summary["students"]["everything"]["ctr"]
    assert told["rows"] + told["rows_left_out"] == known  # of both verticals; left out: without a teacher's logit
