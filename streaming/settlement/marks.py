"""Values of numbered rows with random access (`NumberedValues`: key times, event times), and bits set on them
(`Marks`).

Marks are stored as a base of all values and deltas of what changed since. A delta holds the rows marked since the store
before. Deltas are merged so that their sizes fall at least by half from
old to new, and all of them go into a new base once they hold more than a sixteenth of the rows: their number is
logarithmic, and what is written is, over many stores, a few times what has changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming.store.segments import Segments, StoredSegment

CHUNK_ROWS = 1 << 22

BASE, DELTA = "base", "delta"
SHARE = 16
FEW = 4096
"""Deltas of together no more rows than this are never a reason for a new base."""


class NumberedValues:
    """One value per number, numbers consecutive; appended at the end, dropped from the front.

    Values lie in chunks, so that neither appending nor dropping copies existing values. A chunk takes memory only as it
    fills up, because the operating system allocates pages when they are first written.

    >>> ledger = NumberedValues(np.int64, first=10)
    >>> ledger.append(np.array([5, 6, 7])); ledger.drop(11)
    >>> ledger.first, ledger.stop, ledger[np.array([12, 11])].tolist(), ledger.search(7)
    (11, 13, [7, 6], 12)
    """

    def __init__(self, dtype: type | np.dtype, first: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.first, self.stop = first, first
        self._base = first
        self._rows = CHUNK_ROWS
        self._chunks: list[np.ndarray] = []

    def append(self, values: np.ndarray) -> None:
        while len(values):
            chunk, at = divmod(self.stop - self._base, self._rows)
            if chunk == len(self._chunks):
                self._chunks.append(np.empty(self._rows, self.dtype))
            part = values[: self._rows - at]
            self._chunks[chunk][at : at + len(part)] = part
            self.stop += len(part)
            values = values[len(part) :]

    def drop(self, before: int) -> None:
        self.first = before
        whole = (before - self._base) // self._rows
        del self._chunks[:whole]
        self._base += whole * self._rows

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        marks = np.empty(len(numbers), self.dtype)
        for values, places, at in self._places(numbers):
            marks[places] = values[at]
        return marks

    def mark(self, numbers: np.ndarray, bit: int) -> None:
        """Set a bit in the values of distinct `numbers`."""
        for values, _, at in self._places(numbers):
            values[at] |= self.dtype.type(bit)

    def view(self, start: int, stop: int) -> np.ndarray:
        """Values of [start, stop), read-only; not copied if stored in one chunk."""
        parts = [values[low:high] for values, low, high in self._spans(start, stop)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def search(self, value: int) -> int:
        """The first number whose value is not below `value`; values ascend."""
        used = self.stop - self._base
        ends = [min((chunk + 1) * self._rows, used) for chunk in range(len(self._chunks))]
        chunk = bisect_left(ends, value, key=lambda end: self._chunks[(end - 1) // self._rows][(end - 1) % self._rows])
        if chunk == len(ends):
            return self.stop
        start = max(self.first, self._base + chunk * self._rows)
        return start + int(np.searchsorted(self.view(start, max(start, self._base + ends[chunk])), value))

    @property
    def nbytes(self) -> int:
        return (self.stop - self._base) * self.dtype.itemsize

    def _spans(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """The chunks that hold [start, stop), and which of their values those are."""
        low, high = start - self._base, stop - self._base
        while low < high:
            chunk, at = divmod(low, self._rows)
            end = min(self._rows, at + high - low)
            yield self._chunks[chunk], at, end
            low += end - at

    def _places(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray | slice, np.ndarray]]:
        """Chunk by chunk: its values, which of `numbers` they are, and where in the chunk these lie."""
        if not len(numbers):
            return
        chunk, at = np.divmod(numbers - self._base, self._rows)
        if (chunk == chunk[0]).all():
            yield self._chunks[chunk[0]], slice(None), at
            return
        for each in np.unique(chunk):
            places = np.flatnonzero(chunk == each)
            yield self._chunks[each], places, at[places]


class Marks(NumberedValues):
    """A ledger of bits that tracks its unstored changes.

    >>> marks = Marks(np.uint8)
    >>> marks.append(np.zeros(4)); marks.mark(np.array([2]), 1)
    >>> marks.state().segments[0].rows["marks"].to_pylist()
    [0, 0, 1, 0]
    """

    def __init__(self, dtype: type | np.dtype, first: int = 0) -> None:
        super().__init__(dtype, first)
        self.folder: Path | None = None
        self._stored: list[StoredSegment] = []
        self._numbers: list[np.ndarray] = []
        self._changed: list[np.ndarray] = []
        self._changes = 0

    def mark(self, numbers: np.ndarray, bit: int) -> None:
        super().mark(numbers, bit)
        if not self._stored:
            return
        self._changed.append(numbers)
        self._changes += len(numbers)
        if self._changes > self._most_changes:
            self._forget()

    def state(self) -> Segments:
        """Segments that the values are read from, oldest first."""
        return Segments(self._segments(), self.folder)

    def _segments(self) -> list[StoredSegment]:
        """Segments that the values of [first, stop) are read from, oldest first; at most one segment is not stored
        yet."""
        if not self._stored or self._stored[0].count > 2 * (self.stop - self.first) + FEW:
            return [self._base_segment()]
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *self._changed]))
        kept = len(self._numbers)
        while kept and len(self._numbers[kept - 1]) <= 2 * len(numbers):
            kept -= 1
            numbers = np.union1d(self._numbers[kept], numbers)
        numbers = numbers[np.searchsorted(numbers, self.first) :]
        if sum(map(len, self._numbers[:kept])) + len(numbers) > self._most_changes:
            return [self._base_segment()]
        stored = self._stored[: 1 + kept]
        if not len(numbers):
            return stored
        values = self[numbers]
        rows = pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(values)], ["number", "marks"])
        return [*stored, StoredSegment.of(DELTA, int(numbers[0]), rows, [numbers, values])]

    def stored(self, state: Segments, folder: Path) -> None:
        """`state`, which was made of these values, lies in `folder` now: what is marked from here on has changed."""
        segments = state.segments
        written = sum(_is_delta(segment) and segment.rows is None for segment in segments)
        new = [
            segment.rows["number"].to_numpy() for segment in segments if _is_delta(segment) and segment.rows is not None
        ]
        self._numbers = [*self._numbers[:written], *new]
        self._changed, self._changes = [], 0
        self._stored, self.folder = [replace(segment, rows=None) for segment in segments], folder

    def restore(self, state: Segments, stop: int) -> None:
        """Read back the values of [first, stop), into an empty ledger. Raises StreamingError."""
        values = np.zeros(stop - self.first, self.dtype)
        for segment in state.segments:
            rows = segment.read(state.folder)
            marks = rows["marks"].to_numpy()
            if _is_delta(segment):
                numbers = rows["number"].to_numpy().copy()
                known = numbers >= self.first
                values[numbers[known] - self.first] = marks[known]
                self._numbers.append(numbers)
            else:
                tail = marks[max(self.first - segment.first, 0) :]
                start = max(segment.first - self.first, 0)
                values[start : start + len(tail)] = tail
        self.append(values)
        self._stored, self.folder = list(state.segments), state.folder
        if any(segment.rows is not None for segment in state.segments):
            self._forget()

    @property
    def nbytes(self) -> int:
        return super().nbytes + 8 * (self._changes + sum(map(len, self._numbers)))

    @property
    def _most_changes(self) -> int:
        return (self.stop - self.first) // SHARE + FEW

    def _forget(self) -> None:
        """Count no changes any more: the next store writes a base."""
        self._stored, self._numbers, self._changed, self._changes = [], [], [], 0

    def _base_segment(self) -> StoredSegment:
        values = self.view(self.first, self.stop).copy()
        return StoredSegment.of(BASE, self.first, pa.RecordBatch.from_arrays([pa.array(values)], ["marks"]), [values])


def _is_delta(segment: StoredSegment) -> bool:
    return segment.name.startswith(DELTA)
