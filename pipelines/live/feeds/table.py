"""A table as a source of rows, in place of a lake: for replay and tests."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from streaming.messages.source import EndOfStream, Source
from streaming.position import NOTHING_YET


class Sliced(Protocol):
    """Interface of a table, or of a lazy one, that can be sliced."""

    @property
    def num_rows(self) -> int: ...
    def slice(self, offset: int = 0, length: int | None = None) -> pa.Table: ...


def taken(table: Sliced, places: np.ndarray) -> pa.Table:
    """Copy the rows at these ascending indices."""
    if not len(places):
        return table.slice(0, 0)
    first = int(places[0])
    return table.slice(first, int(places[-1]) + 1 - first).take(pa.array(places - first)).combine_chunks()


class RowNumbers(NamedTuple):
    """Indices of some rows of a table, ascending, (n,), and their `lake_seq`."""

    at: np.ndarray
    seqs: np.ndarray


class TableSource(Source[int, pa.Table]):
    """Rows of a table that is sorted by `lake_seq`, up to `batch_rows` at a time. Its position is a `lake_seq`."""

    def __init__(self, table: Sliced, *, batch_rows: int, places: RowNumbers | None = None) -> None:
        """`places`: of the rows that are given; None: all."""
        self._table, self._batch_rows = table, batch_rows
        self._at_rows = None if places is None else places.at
        self._seq = table.slice()["lake_seq"].to_numpy() if places is None else places.seqs
        self._at = 0
        self.end_seq: int | None = None  # a table knows its own end

    def open(self, position: int | None = None) -> None:
        self.seek(NOTHING_YET if position is None else position)

    def seek(self, position: int) -> None:
        self._at = int(np.searchsorted(self._seq, position, side="right"))

    def next_batch(self, max_wait_s: float = 0.0) -> pa.Table:
        if self._at >= len(self._seq):
            raise EndOfStream
        rows = self._next()
        self._at += rows.num_rows
        return rows

    def _next(self) -> pa.Table:
        if self._at_rows is None:
            return self._table.slice(self._at, self._batch_rows)
        return taken(self._table, self._at_rows[self._at : self._at + self._batch_rows])

    def position(self) -> int:
        return int(self._seq[self._at - 1]) if self._at else NOTHING_YET
