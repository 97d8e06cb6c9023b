"""Base and deltas: how a large state of numbered rows is stored again and again at the cost of what changed.

A base holds all rows, a delta those changed since the store before. Deltas are merged so that their sizes fall at least
by half from old to new, and all of them go into a new base once they hold more than a sixteenth of the rows: their
number is logarithmic, and what is written is, over many stores, a few times what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming.store.segments import Segments, StoredSegment

BASE, DELTA = "base", "delta"
NUMBER = "number"
SHARE = 16
FEW = 4096
"""Deltas of together no more rows than this are never a reason for a new base."""

RowsOf = Callable[[np.ndarray], pa.RecordBatch]


class Deltas:
    """Record of the numbered rows that changed since they were stored, and of the segments that hold them.

    `rows_of(numbers)` gives the rows of ascending `numbers`, as they are to be stored.

    >>> values = np.zeros(3)
    >>> deltas = Deltas(lambda numbers: pa.record_batch({"value": values[numbers]}))
    >>> deltas.state(0, 3).segments[0].rows["value"].to_pylist()
    [0.0, 0.0, 0.0]
    """

    def __init__(self, rows_of: RowsOf) -> None:
        self._rows_of = rows_of
        self.folder: Path | None = None
        self._stored: list[StoredSegment] = []
        self._numbers: list[np.ndarray] = []  # of each stored delta
        self._changed: list[np.ndarray] = []  # since the last store
        self._changes = 0

    def change(self, numbers: np.ndarray, count: int) -> None:
        """Note that rows `numbers`, of `count` rows in all, differ from what is stored."""
        if not self._stored:
            return
        self._changed.append(numbers)
        self._changes += len(numbers)
        if self._changes > _most(count):
            self.forget()

    def state(self, first: int, stop: int) -> Segments:
        """Segments that rows [first, stop) are read from, oldest first; at most one is not stored yet."""
        return Segments(self._segments(first, stop), self.folder)

    def _segments(self, first: int, stop: int) -> list[StoredSegment]:
        if not self._stored or self._stored[0].count > 2 * (stop - first) + FEW:
            return [self._base(first, stop)]
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *self._changed]))
        kept = len(self._numbers)
        while kept and len(self._numbers[kept - 1]) <= 2 * len(numbers):
            kept -= 1
            numbers = np.union1d(self._numbers[kept], numbers)
        numbers = numbers[np.searchsorted(numbers, first) :]
        if sum(map(len, self._numbers[:kept])) + len(numbers) > _most(stop - first):
            return [self._base(first, stop)]
        stored = self._stored[: 1 + kept]
        if not len(numbers):
            return stored
        rows = self._rows_of(numbers).append_column(NUMBER, pa.array(numbers))
        return [*stored, StoredSegment.of(DELTA, int(numbers[0]), rows, content_of(rows))]

    def stored(self, state: Segments, folder: Path) -> None:
        """`state`, which was made of these rows, lies in `folder` now: what differs from here on has changed."""
        segments = state.segments
        written = sum(_is_delta(segment) and segment.rows is None for segment in segments)
        new = [
            segment.rows[NUMBER].to_numpy() for segment in segments if _is_delta(segment) and segment.rows is not None
        ]
        self._numbers = [*self._numbers[:written], *new]
        self._changed, self._changes = [], 0
        self._stored, self.folder = [replace(segment, rows=None) for segment in segments], folder

    def restore(self, state: Segments) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Numbers and rows of each segment, oldest first: later ones replace earlier ones. Raises StreamingError."""
        for segment in state.segments:
            rows = segment.read(state.folder)
            numbers = numbers_of(segment, rows)
            if _is_delta(segment):
                self._numbers.append(numbers)
            yield numbers, rows
        self._stored, self.folder = list(state.segments), state.folder
        if any(segment.rows is not None for segment in state.segments):
            self.forget()

    @property
    def nbytes(self) -> int:
        return 8 * (self._changes + sum(map(len, self._numbers)))

    def forget(self) -> None:
        """Count no changes any more: the next store writes a base."""
        self._stored, self._numbers, self._changed, self._changes = [], [], [], 0

    def _base(self, first: int, stop: int) -> StoredSegment:
        rows = self._rows_of(np.arange(first, stop))
        return StoredSegment.of(BASE, first, rows, content_of(rows))


def numbers_of(segment: StoredSegment, rows: pa.RecordBatch) -> np.ndarray:
    """Numbers of the rows that a segment holds."""
    return rows[NUMBER].to_numpy().copy() if _is_delta(segment) else np.arange(segment.first, segment.stop)


def _most(count: int) -> int:
    return count // SHARE + FEW


def content_of(rows: pa.RecordBatch) -> list[np.ndarray]:
    """List the bytes that tell rows from all others of their number and count; no column has nulls."""
    parts = [np.frombuffer(str(rows.schema).encode(), np.uint8)]
    for column in rows.columns:
        column = column.storage if isinstance(column, pa.ExtensionArray) else column
        if pa.types.is_fixed_size_binary(column.type):
            width = column.type.byte_width
            start, stop = column.offset * width, (column.offset + len(column)) * width
            parts.append(np.frombuffer(column.buffers()[1], np.uint8)[start:stop])
        else:
            parts.append(column.to_numpy())
    return parts


def _is_delta(segment: StoredSegment) -> bool:
    return segment.name.startswith(DELTA)
