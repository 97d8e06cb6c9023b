"""Retention: the oldest rows of the lake go, from the front, so that what remains is again without a gap.

A row is too old when its event time lies more than the retention before the newest event time in the lake (not before
the clock on the wall: a stream that stands still loses nothing). The cut F is the first row that is young enough, moved
down to the beginning of its block and to the lowest row that a registered reader may still need. Rows below F are
deleted; F itself is a transaction identifier, `exfm/first_seq`, of the same commit. A reader whose position lies before
F gets an error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from streaming.delta import DataFile, TableFiles, in_flight_lock
from streaming.lake.compaction import rewrite
from streaming.lake.reader import FIRST_SEQ


class RetentionCut(NamedTuple):
    """The lake begins at `begins`, should begin at `first_seq`, and would at `by_age` if no reader needed more."""

    begins: int
    first_seq: int
    by_age: int

    @property
    def rows(self) -> int:
        """Number of rows to delete."""
        return max(0, self.first_seq - self.begins)


def cut(table: TableFiles, retention_ms: int, lowest_position: int | None) -> RetentionCut:
    """Where the lake should begin. `lowest_position`: the last row that no reader needs; None: there are no readers."""
    begins = table.identifier(FIRST_SEQ) or 0
    newest = newest_event_ms(table)
    if newest is None:
        return RetentionCut(begins, begins, begins)
    first = by_age = _block_start(table, _first_young(table, newest - retention_ms))
    if lowest_position is not None and lowest_position + 1 < by_age:
        first = _block_start(table, max(begins, lowest_position + 1))
    return RetentionCut(begins, first, by_age)


def newest_event_ms(table: TableFiles) -> int | None:
    """The highest event time in the lake; None when it is empty."""
    return max((int(file.high["event_time_ms"]) for file in table.files if "event_time_ms" in file.high), default=None)


def delete_before(table: TableFiles, first_seq: int) -> bool:
    """Let the lake begin at `first_seq`. False where others replaced files meanwhile: look again."""
    with in_flight_lock(table.path):
        removed = [file for file in table.files if file.first < first_seq]
        kept = [rewrite(table, [file], from_seq=first_seq) for file in removed if file.last >= first_seq]
        added = [file for file in kept if file is not None]
        return table.replace(removed, added, {FIRST_SEQ: first_seq}, rows_change=True)


def _first_young(table: TableFiles, cutoff_ms: int) -> int:
    """The lowest `lake_seq` with an event time from `cutoff_ms` on. Only files across the cut-off are opened."""
    first: int | None = None
    for file in sorted(table.files, key=lambda f: f.first):
        if first is not None and file.first >= first:
            break
        low, high = file.low.get("event_time_ms"), file.high.get("event_time_ms")
        if high is not None and high < cutoff_ms:
            continue
        found: int | None = file.first
        if low is None or low < cutoff_ms:
            found = _lowest(table, file, cutoff_ms)
        if found is not None and (first is None or found < first):
            first = found
    assert first is not None, "the newest row is young"
    return first


def _lowest(table: TableFiles, file: DataFile, cutoff_ms: int) -> int | None:
    with pq.ParquetFile(table.place(file)) as parquet:
        rows = parquet.read(["lake_seq", "event_time_ms"], use_threads=False)
    young = rows["lake_seq"].to_numpy()[rows["event_time_ms"].to_numpy() >= cutoff_ms]
    return int(young.min()) if len(young) else None


def _block_start(table: TableFiles, first: int) -> int:
    """The first row of the block that row `first` lies in; `first` itself when there is no such row."""
    (number, *_) = [*_column(table, "block", first, pc.field("lake_seq") == first), None]
    if number is None:
        return first
    same = (pc.field("block") == number) & (pc.field("lake_seq") <= first)
    return int(np.min(_column(table, "lake_seq", first, same)))


def _column(table: TableFiles, name: str, upto: int, filter: pc.Expression) -> list[int]:
    """Values of the rows that match, from files that begin up to `upto`; statistics keep most from being read."""
    paths = [str(table.place(file)) for file in table.files if file.first <= upto]
    values: list[int] = []
    if paths:
        files = ds.dataset(paths, format="parquet", filesystem=pyarrow.fs.LocalFileSystem())
        values = files.to_table([name], filter=filter, use_threads=False)[name].to_pylist()
    return values
