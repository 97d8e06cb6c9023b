"""Rows for tests of the lake, and commits of them: everything about a row follows from its `lake_seq`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable, LakeWriter
from streaming.schema import Column, RowSchema, Task

SCHEMA = RowSchema(
    columns=(
        Column(name="user_id"),
        Column(name="score", type="float32", nullable=True),
        Column(name="tags", type="list<int64>", nullable=True),
    ),
    tasks=(Task(name="ctr", window_s=60), Task(name="cvr", window_s=600, given="ctr")),
)
VERTICALS = np.array(["news", "home & garden/α=%", "travel", "x:y?#"])


def rows(first: int, count: int, *, block: int | None = None, schema: RowSchema = SCHEMA) -> pa.RecordBatch:
    """`count` lake rows from `lake_seq` = first on, in one block (by default numbered by its last row)."""
    seq = np.arange(first, first + count, dtype=np.int64)
    scattered = (seq.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    filled: dict[str, pa.Array] = {
        "lake_seq": pa.array(seq),
        "block": pa.array(np.full(count, first + count - 1 if block is None else block)),
        "vertical": pa.array(VERTICALS[scattered % len(VERTICALS)]),
        "event_date": pa.array(np.where(seq % 997 < 500, "2026-01-01", "2026-01-02")),
        "score": pa.array((scattered % 1000).astype(np.float32), mask=seq % 10 == 0),
        "tags": pa.array([[int(s), int(s) + 1] if s % 3 else None for s in seq], pa.list_(pa.int64())),
    }
    columns = [filled[f.name] if f.name in filled else _any(f.type, seq) for f in schema.augmented]
    return pa.RecordBatch.from_arrays(columns, schema=schema.augmented)


def fill(writer: LakeWriter, *counts: int) -> None:
    """So many rows in each of several commits, each behind the last."""
    for count in counts:
        first = writer.last_lake_seq + 1
        writer.commit(rows(first, count), state=first + count, metadata={"rows": first + count})


def filled(lake: LakeTable, *counts: int) -> LakeReader:
    """A reader of the lake behind such commits."""
    fill(lake.open_writer(), *counts)
    return lake.open_reader()


def _any(kind: pa.DataType, seq: np.ndarray) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array(np.full(len(seq), "ctr"))
    if pa.types.is_list(kind):
        return pa.array([[int(s) % 100] for s in seq], kind)
    return pa.array(seq % 100).cast(kind)
