"""Rows of a lake or of a Parquet file, as a table that `examined` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.data.profile.codes import LABEL
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.messages.times import is_time, milliseconds
from streaming.schema import RowSchema

MOST_ROWS = 2_000_000
READ_ROWS = 65_536
TIMES = ("event_time_ms", "event_time", "timestamp", "time", "ts")
MS_FROM = 10**11
"""Plain numbers above this are milliseconds, below it seconds: of all times since 1973."""


def rows_of_lake(path: Path, schema: RowSchema) -> pa.Table:
    """The newest rows of a lake, in its order. Raises BadInput where there is no lake."""
    lake = LakeReader(path, schema)
    last = lake.last_lake_seq
    pieces, after = [], None if last < MOST_ROWS else last - MOST_ROWS
    while after is None or after < last:
        read = lake.read(after, limit_rows=READ_ROWS)
        pieces.append(read.table)
        after = read.complete_upto
    return pa.concat_tables(pieces) if pieces else schema.augmented.empty_table()


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file; raises BadInput if there is none."""
    if not path.exists():
        raise BadInput(f"there is no {path}; give a config, a Parquet file, or the folder of a run")
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def rows_of_file(path: Path, labels: Sequence[str], time: str | None) -> pa.Table:
    """A Parquet file in order of time, with `labels` renamed to `label_<column>` and the time to `event_time_ms`.
    Columns that have these names already need not be named. Raises BadInput where there is none, or no such file."""
    table = read_parquet(path)
    names = table.schema.names
    for name in (*labels, *([time] if time else [])):
        if name not in names:
            raise BadInput(f"{path} has no column `{name}`; columns: {', '.join(names)}")
    if not labels and not any(name.startswith(LABEL) for name in names):
        raise BadInput(
            f"{path} is data; `exfm check` takes a config that says what its columns are (`exfm init {path}` writes "
            f"one), or --label COLUMN; columns: {', '.join(names)}"
        )
    event_time = time or next((name for name in TIMES if name in names), None)
    if event_time is None:
        raise BadInput(
            f"{path} has no column of a usual name for the event time; give --time COLUMN of {', '.join(names)}"
        )
    at = _ms(table[event_time], path, event_time)
    for label in labels:
        table = table.append_column(LABEL + label, _label(table[label], path)).drop_columns(label)
    if event_time != "event_time_ms":
        table = table.drop_columns(event_time).append_column("event_time_ms", at)
    return table.take(pc.sort_indices(table["event_time_ms"])).combine_chunks()


def _ms(column: pa.ChunkedArray, path: Path, name: str) -> pa.Array:
    values = column.combine_chunks()
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        largest = pc.max(values).as_py() or 0
        return pc.multiply(values.cast(pa.int64(), safe=False), 1 if largest > MS_FROM else 1000)
    if not is_time(values.type):
        raise BadInput(f"{path}: `{name}` is {values.type}, no time; name another column with --time")
    return milliseconds(values, "ms")


def _label(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise BadInput(f"{path}: a label is a number or true/false, and one of those named is {column.type}")
    return pc.greater(column, 0).cast(pa.int8())
