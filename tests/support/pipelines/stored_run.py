"""The config of a small run, and rows for its workers to learn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.support.places import FIXTURES

SMALL_RUN = FIXTURES / "small_run.yaml"


def new_rows(first: int, count: int = 16) -> pa.Table:
    rng = np.random.default_rng(first)
    return pa.table(
        {
            "lake_seq": np.arange(first, first + count),
            "impression_id": np.arange(first, first + count) * 7,
            "event_time_ms": np.arange(count),
            "user_id": rng.integers(0, 20, count),
            "ad_id": rng.integers(0, 8, count),
            "bid": rng.random(count).astype(np.float32),
            "label_ctr": rng.integers(0, 2, count).astype(np.int8),
            "teacher_logit_ctr": rng.normal(-1, 1, count).astype(np.float32),
        }
    )


def rows_of(block: int, count: int = 32) -> pa.Table:
    rows = new_rows(block * count, count)
    constants = {"block": block, "teacher_version": max(1, block - 1), "scored_at_ms": 10**6}
    for name, value in constants.items():
        rows = rows.append_column(name, pa.array([value] * count, pa.int64()))
    return rows
