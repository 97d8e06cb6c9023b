"""Rows as wide as those of a real lake, for measurements."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from streaming.schema import Column, RowSchema, Task

SCHEMA = RowSchema(
    columns=tuple(
        [Column(name=f"id_{i}") for i in range(14)] + [Column(name=f"value_{i}", type="float32") for i in range(6)]
    ),
    tasks=(Task(name="ctr", window_s=60), Task(name="cvr", window_s=600, given="ctr")),
)


def batch(first: int, count: int) -> pa.RecordBatch:
    random = np.random.default_rng(first)
    columns = []
    for field in SCHEMA.augmented:
        if field.name == "lake_seq":
            column = pa.array(np.arange(first, first + count))
        elif field.name == "block":
            column = pa.array(np.full(count, first))
        elif field.name == "vertical":
            column = pa.array(np.array(["news", "shop", "video"])[random.integers(0, 3, count)])
        elif pa.types.is_string(field.type):
            column = pa.array(np.full(count, "2026-01-01"))
        elif pa.types.is_float32(field.type):
            column = pa.array(random.normal(size=count).astype(np.float32))
        else:
            column = pa.array(random.zipf(1.3, count) % 100).cast(field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.augmented)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
