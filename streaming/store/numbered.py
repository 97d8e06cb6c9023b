"""Values of numbered rows with random access: key times, event times, keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

CHUNK_ROWS = 1 << 22


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

    def mark(self, numbers: np.ndarray, bits: np.ndarray | int) -> None:
        """Set bits in the values of distinct `numbers`: the same in all, or (N,) each its own."""
        bits_N = np.broadcast_to(np.asarray(bits, self.dtype), len(numbers))
        for values, places, at in self._places(numbers):
            values[at] |= bits_N[places]

    def put(self, numbers: np.ndarray, value: int) -> None:
        """Replace the values of `numbers`."""
        for values, _, at in self._places(numbers):
            values[at] = value

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
