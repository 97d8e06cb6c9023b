"""From Arrow rows, and from the lake, to tensors."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from exfm.data import BatchBuilder
from pipelines.bench.benchmark import Benchmark, Demand
from pipelines.bench.figures import Work
from pipelines.bench.shape import BATCH, FEATURES, FLOATS, ROWS, SEED, TABLES, TASKS, table
from streaming.lake import LakeTable
from streaming.schema import Column, RowSchema, Task

BYTES = 2 * (8 * TABLES + 4 * FLOATS)  # of a row, read once and written once
LAKE_ROWS, COMMITS, READ_ROWS = 262_144, 4, 65_536


def batch_building() -> Benchmark:
    rows, build = table(ROWS), BatchBuilder(FEATURES, TASKS)
    columns = [rows.column(name).chunk(0).to_numpy() for name in FEATURES.needs_columns()]

    def call() -> None:
        for start in range(0, ROWS, BATCH):
            build(rows.slice(start, BATCH))

    def bare() -> None:
        for start in range(0, ROWS, BATCH):
            part = slice(start, start + BATCH)
            np.concatenate([column[part] for column in columns[:TABLES]])
            np.stack([column[part] for column in columns[TABLES:]], axis=1)

    return Benchmark(
        "batch-building",
        "rows / CPU s",
        Work(call, ROWS),
        target=1.0,
        goal=1e6,
        against="goal",
        reference=Work(bare, ROWS),
        reference_is="numpy: columns put together, nothing hashed",
        demand=Demand(bytes=BYTES),
    )


class StoredRows:
    """A lake of rows in a temporary folder, which is removed with this object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="exfm-bench-")
        columns = [Column(name=f"id_{n}") for n in range(TABLES)]
        columns += [Column(name=f"float_{n}", type="float32") for n in range(FLOATS)]
        schema = RowSchema(columns=tuple(columns), tasks=(Task(name="ctr", window_s=60),))
        self._lake = LakeTable(Path(self._folder.name) / "lake", schema)
        writer = self._lake.open_writer()
        for number in range(COMMITS):
            rows = _augmented(schema, writer.last_lake_seq + 1, LAKE_ROWS // COMMITS)
            writer.commit(rows, state=number, metadata={})
        self._reader, self._build = self._lake.open_reader(), BatchBuilder(FEATURES, TASKS)
        self._asked = ["lake_seq", *FEATURES.needs_columns(), "label_ctr", "teacher_logit_ctr"]

    def to_batches(self) -> None:
        place = -1
        while place < self._reader.last_lake_seq:
            found = self._reader.read(place, limit_rows=READ_ROWS, columns=self._asked)
            place = found.complete_upto
            for start in range(0, found.table.num_rows, BATCH):
                self._build(found.table.slice(start, BATCH))

    def by_pyarrow(self) -> None:
        for file in self._lake.path.rglob("*.parquet"):
            rows = pq.read_table(file, columns=self._asked, use_threads=False, partitioning=None)
            np.concatenate([rows.column(name).to_numpy() for name in self._asked[1 : TABLES + 1]])


def lake_reading() -> Benchmark:
    stored = StoredRows()
    return Benchmark(
        "lake-to-tensors",
        "rows / CPU s",
        Work(stored.to_batches, LAKE_ROWS),
        target=1.0,
        goal=3e6,
        against="goal",
        reference=Work(stored.by_pyarrow, LAKE_ROWS),
        reference_is="pyarrow: its files read, nothing hashed",
        demand=Demand(bytes=BYTES),
    )


def _augmented(schema: RowSchema, first: int, count: int) -> pa.RecordBatch:
    rows, columns = table(count, SEED + first), []
    for field in schema.augmented:
        if field.name in rows.column_names:
            column = rows.column(field.name).combine_chunks().cast(field.type)
        elif pa.types.is_string(field.type):
            column = pa.array(["2026-01-01"] * count)
        else:
            column = pa.array(np.arange(first, first + count)).cast(field.type, safe=False)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema.augmented)
