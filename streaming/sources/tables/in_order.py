"""On-disk sort of rows by event time, and generated times for a file without readable ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.messages.times import WRITTEN_OTHERWISE, ClockChanges, Unit, is_time, milliseconds, needs_zone
from streaming.sources.tables.engine import TableEngine, literal, parquet, quoted

MADE = "event_time_ms"
"""The column of times that were made."""

MADE_FROM_MS = 946_684_800_000
"""2000-01-01: where rows without times begin."""

SECOND_MS = 1000
ROW = "file_row_number"
READ_ROWS = 131_072


def write_in_order(engine: TableEngine, source: Path, to: Path, columns: Iterable[str], time: str | None) -> None:
    """Write the Parquet file `source` to `to`, with `columns` as SQL, sorted by `time` (SQL; ties in the order of
    the file); None keeps the order of the file."""
    order = "" if time is None else f" ORDER BY {time}, {ROW}"
    engine.write(f"SELECT {', '.join(columns)} FROM {parquet(source)}{order}", to)


def made_times(event_time: str | None, form: str | None) -> str:
    """SQL for times in ms: generated a second apart, or parsed with a `strptime` format, in UTC.

    >>> made_times(None, None), made_times("hour", "%y%m%d%H")
    ('946684800000 + file_row_number * 1000', 'epoch_ms(strptime("hour"::VARCHAR, \\'%y%m%d%H\\'))')
    """
    if event_time is None:
        return f"{MADE_FROM_MS} + {ROW} * {SECOND_MS}"
    assert form is not None
    return f"epoch_ms(strptime({quoted(event_time)}::VARCHAR, {literal(form)}))"


def time_order(engine: TableEngine, path: Path, event_time: str, zone: str | None = None) -> str:
    """SQL that sorts the rows of a Parquet file by time."""
    kind = pq.read_schema(path).field(event_time).type
    if zone is not None and needs_zone(kind):
        return engine.times(quoted(event_time), engine.types(parquet(path))[event_time], zone)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"{iso(quoted(event_time))}::TIMESTAMPTZ"
    return quoted(event_time)


def iso(text: str) -> str:
    """SQL that turns a text into the ISO form that `milliseconds` reads."""
    for pattern, replacement in WRITTEN_OTHERWISE:
        text = f"regexp_replace({text}, {literal(pattern)}, {literal(replacement)})"
    return text


def rows_behind(path: Path, event_time: str, unit: Unit, tolerance_ms: int, zone: str | None = None) -> int:
    """Number of rows of a Parquet file that lie further than the tolerance behind the latest row before them."""
    latest, behind = np.iinfo(np.int64).min, 0
    try:
        for column in _times(path, event_time):
            time = milliseconds(column, unit, zone)
            if time.null_count:
                return 0
            before_N = np.maximum.accumulate(np.concatenate([[latest], time_N := time.to_numpy()]))
            behind += int(np.count_nonzero(time_N + tolerance_ms < before_N[:-1]))
            latest = int(before_N[-1])
    except ValueError:
        return 0
    return behind


def clock_changes(path: Path, event_time: str, zone: str | None) -> tuple[str, ...]:
    """Describe times of a Parquet file that a clock change makes ambiguous."""
    if zone is None:
        return ()
    changes = ClockChanges(zone)
    try:
        for column in _times(path, event_time):
            changes.add(column)
    except ValueError:  # no times, which is for the reader to say
        return ()
    return tuple(f"`{event_time}`: {text}" for text in changes.words)


def _times(path: Path, event_time: str) -> Iterator[pa.Array]:
    file = pq.ParquetFile(path)
    if event_time in file.schema_arrow.names and is_time(file.schema_arrow.field(event_time).type):
        for batch in file.iter_batches(READ_ROWS, columns=[event_time]):
            yield batch.column(0)
