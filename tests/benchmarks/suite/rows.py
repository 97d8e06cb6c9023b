"""Benchmarks of input: from Arrow rows, from messages and from the lake to tensors; and hashing of ids by itself."""

from __future__ import annotations

import io
import tempfile
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from exfm.features.batch import BatchBuilder
from exfm.features.sparse import SparseFeature
from exfm.features.transforms import bags_of
from streaming.lake.writer import LakeTable
from streaming.messages.codecs import CodecName, make_codec
from streaming.messages.message import RawMessage
from streaming.schema import Column, RowSchema, Task
from tests.benchmarks.suite.limits import COPY
from tests.benchmarks.suite.measuring import Benchmark, Demand, Work
from tests.benchmarks.suite.shape import BATCH, FEATURES, FLOATS, SEED, TABLE_ROWS, TABLES, TASKS, table

BYTES = 2 * (8 * TABLES + 4 * FLOATS)  # of a row, read once and written once
IDS, ROWS = 100_000, 8192
_SCHEMA = RowSchema(
    columns=(
        *(Column(name=f"id_{n}") for n in range(TABLES)),
        *(Column(name=f"float_{n}", type="float32") for n in range(FLOATS)),
    ),
    tasks=(Task(name="ctr", window_s=60),),
)
LAKE_ROWS, COMMITS, READ_ROWS = 262_144, 4, 65_536


def batch_building() -> Benchmark:
    seeds = count(SEED)

    def new() -> pa.Table:
        return table(BATCH, next(seeds))

    def bare(rows: pa.Table) -> None:
        columns = [rows.column(name).chunk(0).to_numpy() for name in FEATURES.needs_columns()]
        np.concatenate(columns[:TABLES])
        np.stack(columns[TABLES:], axis=1)

    return Benchmark(
        "batch-building",
        "rows / CPU s",
        Work(BatchBuilder(FEATURES, TASKS), BATCH, new),
        target=1.0,
        goal=1e6,
        against="goal",
        reference=Work(bare, BATCH, new),
        reference_is="numpy: columns put together, nothing hashed",
        demand=Demand(COPY, BYTES),
    )


def hashing(kind: Literal["integers", "strings"]) -> Benchmark:
    """Ids of one feature to rows of its table. Strings are of 17 letters, and nearly all distinct."""
    drawn = np.random.default_rng(SEED)
    feature = SparseFeature(name="id", rows=TABLE_ROWS)

    def new() -> pa.Array:
        numbers = drawn.integers(0, 2**40, IDS)
        return pa.array(numbers if kind == "integers" else [f"user-{number:012d}" for number in numbers.tolist()])

    def bare(ids: pa.Array) -> None:
        pd.util.hash_array(ids.to_numpy(zero_copy_only=False), categorize=False)

    return Benchmark(
        f"hashing-{kind}",
        "ids / CPU s",
        Work(lambda ids: bags_of(feature, {"id": ids}), IDS, new),
        target=1.0,
        goal=20e6 if kind == "integers" else 2e6,
        against="goal",
        reference=Work(bare, IDS, new),
        reference_is="pandas: hash_array, not taken modulo the table's rows",
    )


def message_decoding(codec: CodecName) -> Benchmark:
    """Messages of a topic, decoded, checked and made tensors: of Arrow with 2,048 rows each, of JSON with one."""
    decoder = make_codec(codec, "impression", _SCHEMA)
    rows = _impressions(ROWS)
    values = [value for start in range(0, ROWS, BATCH) for value in decoder.encode(rows.slice(start, BATCH))]
    messages = [RawMessage("impressions", 0, n, 0, None, value) for n, value in enumerate(values)]
    build, at_once = BatchBuilder(FEATURES, TASKS), len(messages) * BATCH // ROWS

    def call(_: object) -> None:
        for start in range(0, len(messages), at_once):
            build(decoder.decode(messages[start : start + at_once])[0])

    def bare(_: object) -> None:
        for start in range(0, len(messages), at_once):
            some = [message.value for message in messages[start : start + at_once]]
            if codec == "json":
                text = b"\n".join(some)
                pyarrow.json.read_json(
                    io.BytesIO(text), read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
                )
            else:
                for value in some:
                    pa.ipc.open_stream(value).read_all()

    return Benchmark(
        f"{codec}-to-tensors",
        "rows / CPU s",
        Work(call, ROWS),
        target=1.0,
        goal=1e5 if codec == "json" else 5e5,
        against="goal",
        reference=Work(bare, ROWS),
        reference_is="pyarrow: read, nothing checked or hashed",
    )


class StoredRows:
    """A lake of rows in a temporary folder, which is removed with this object."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="exfm-bench-")
        schema = _SCHEMA
        self._lake = LakeTable(Path(self._folder.name) / "lake", schema)
        writer = self._lake.open_writer()
        for number in range(COMMITS):
            rows = _augmented(schema, writer.last_lake_seq + 1, LAKE_ROWS // COMMITS)
            writer.commit(rows, state=number, metadata={})
        self._reader, self._build = self._lake.open_reader(), BatchBuilder(FEATURES, TASKS)
        self._asked = ["lake_seq", *FEATURES.needs_columns(), "label_ctr", "teacher_logit_ctr"]

    def to_batches(self, _: object) -> None:
        place = -1
        while place < self._reader.last_lake_seq:
            found = self._reader.read(place, limit_rows=READ_ROWS, columns=self._asked)
            place = found.complete_upto
            for start in range(0, found.table.num_rows, BATCH):
                self._build(found.table.slice(start, BATCH))

    def by_pyarrow(self, _: object) -> None:
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
        demand=Demand(COPY, BYTES),
    )


def _impressions(count: int) -> pa.RecordBatch:
    rows = table(count).append_column("impression_id", pa.array(range(count)))
    rows = rows.append_column("event_time_ms", pa.array(range(count))).append_column(
        "vertical", pa.array(["a"] * count)
    )
    return rows.select(_SCHEMA.impression.names).cast(_SCHEMA.impression).combine_chunks().to_batches()[0]


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
