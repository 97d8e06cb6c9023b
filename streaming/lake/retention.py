"""Retention: deletes the oldest rows of the lake, so that the rest has no gap.

A row is too old when its event time lies more than the retention before the newest event time in the lake (not before
the clock on the wall: a stream that stands still loses nothing). The cut F is the first row that is young enough, moved
down to the beginning of its block and to the lowest row that a registered reader may still need. Rows below F are
deleted; F itself is a transaction identifier, `exfm/first_seq`, of the same commit. A reader whose position lies before
F gets an error.

An event time that lies in the future, by the clock on the wall, says nothing of a row's age: such a row is not the
newest, and it goes with the old rows that follow it. Only where most of the lake's rows lie in the future does the
stream keep a time of its own (generated ones may), and the clock is not asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from streaming.lake.compaction import rewrite
from streaming.lake.delta.files import DataFile, TableFiles
from streaming.lake.delta.identifiers import FIRST_SEQ
from streaming.lake.delta.lock import in_flight_lock
from streaming.settlement.config import FUTURE_SKEW_S

TIME = "event_time_ms"
NO_BOUND = int(np.iinfo(np.int64).max)


class RetentionCut(NamedTuple):
    """Begin of the lake: now (`begins`), as it should be (`first_seq`), and by age if no reader needed more
    (`by_age`)."""

    begins: int
    first_seq: int
    by_age: int

    @property
    def rows(self) -> int:
        """Number of rows to delete."""
        return max(0, self.first_seq - self.begins)


def cut(table: TableFiles, retention_ms: int, lowest_position: int | None, *, now_ms: int) -> RetentionCut:
    """Compute the begin of the lake under retention. `lowest_position`: the last row that no reader needs; None:
    there are no readers. `now_ms`: the clock on the wall."""
    begins = table.identifier(FIRST_SEQ) or 0
    bound = _bound_ms(table, now_ms)
    newest = _newest_ms(table, bound)
    if newest is None:
        return RetentionCut(begins, begins, begins)
    first = by_age = _block_start(table, _first_kept(table, newest - retention_ms, bound, begins))
    if lowest_position is not None and lowest_position + 1 < by_age:
        first = _block_start(table, max(begins, lowest_position + 1))
    return RetentionCut(begins, first, by_age)


def newest_event_ms(table: TableFiles, *, now_ms: int) -> int | None:
    """Highest event time in the lake that is not in the future; None if there is none."""
    return _newest_ms(table, _bound_ms(table, now_ms))


def delete_before(table: TableFiles, first_seq: int) -> bool:
    """Delete rows so that the lake begins at `first_seq`. False where others replaced files meanwhile: look again."""
    with in_flight_lock(table.path):
        removed = [file for file in table.files if file.first < first_seq]
        rewritten = [rewrite(table, [file], from_seq=first_seq) for file in removed if file.last >= first_seq]
        added = [file for file in rewritten if file is not None]
        return table.replace(removed, added, {FIRST_SEQ: first_seq}, rows_change=True)


def _bound_ms(table: TableFiles, now_ms: int) -> int:
    """Beginning of the future; NO_BOUND where most rows lie there."""
    bound = now_ms + round(1000 * FUTURE_SKEW_S)
    beyond = sum(int(np.sum(_times(table, file)[1] > bound)) for file in table.files if _spans(file, bound))
    beyond += sum(file.rows for file in table.files if _begins(file, bound + 1))
    return NO_BOUND if 2 * beyond > sum(file.rows for file in table.files) else bound


def _newest_ms(table: TableFiles, bound: int) -> int | None:
    newest = [high for file in table.files if (high := file.high.get(TIME)) is not None and high <= bound]
    for file in table.files:
        if _spans(file, bound):
            times = _times(table, file)[1]
            newest += times[times <= bound].tolist()
    return max(map(int, newest), default=None)


def _first_kept(table: TableFiles, cutoff_ms: int, bound: int, begins: int) -> int:
    """The lowest `lake_seq` that is young: with an event time from `cutoff_ms` up to `bound`, or in the future and not
    followed by an old row before the next young one."""
    young = _first_young(table, cutoff_ms, bound)
    if not any(_begins(file, bound + 1) or _spans(file, bound) for file in table.files):
        return young
    return max((seq + 1 for seq in _last_old(table, cutoff_ms, young)), default=begins)


def _first_young(table: TableFiles, cutoff_ms: int, bound: int) -> int:
    """The lowest `lake_seq` with an event time from `cutoff_ms` up to `bound`. Only files across these are opened."""
    first: int | None = None
    for file in sorted(table.files, key=lambda f: f.first):
        if first is not None and file.first >= first:
            break
        low, high = file.low.get(TIME), file.high.get(TIME)
        if (high is not None and high < cutoff_ms) or _begins(file, bound + 1):
            continue
        lowest: int | None = file.first
        if low is None or low < cutoff_ms or high is None or high > bound:
            seq, times = _times(table, file)
            lowest = _lowest(seq[(times >= cutoff_ms) & (times <= bound)])
        if lowest is not None and (first is None or lowest < first):
            first = lowest
    assert first is not None, "the newest row is young"
    return first


def _last_old(table: TableFiles, cutoff_ms: int, before: int) -> Iterable[int]:
    """Highest `lake_seq` below `before` with an event time before `cutoff_ms`, of each file that has any."""
    for file in table.files:
        if file.last < before and file.high.get(TIME, NO_BOUND) < cutoff_ms:
            yield file.last
        elif file.first < before and not _begins(file, cutoff_ms):
            seq, times = _times(table, file)
            old = seq[(times < cutoff_ms) & (seq < before)]
            if len(old):
                yield int(old.max())


def _begins(file: DataFile, time_ms: int) -> bool:
    """True if all event times of a file are known to lie from `time_ms` on."""
    return bool(file.low.get(TIME, -NO_BOUND) >= time_ms)


def _spans(file: DataFile, bound: int) -> bool:
    """True if some event times of a file lie in the future, and some not."""
    return bool(file.high.get(TIME, -NO_BOUND) > bound) and not _begins(file, bound + 1)


def _times(table: TableFiles, file: DataFile) -> tuple[np.ndarray, np.ndarray]:
    """`lake_seq` and event time of a file's rows, (N,) int64 each."""
    with pq.ParquetFile(table.place(file)) as parquet:
        rows = parquet.read(["lake_seq", TIME], use_threads=False)
    return rows["lake_seq"].to_numpy(), rows[TIME].to_numpy()


def _lowest(seq: np.ndarray) -> int | None:
    return int(seq.min()) if len(seq) else None


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
