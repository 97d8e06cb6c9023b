"""Bits and times set on numbered rows, such as labels; stored as base and deltas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming.store.deltas import Deltas
from streaming.store.numbered import NumberedValues
from streaming.store.segments import Segments


class Marks(NumberedValues):
    """A ledger of bits that tracks its unstored changes.

    >>> marks = Marks(np.uint8)
    >>> marks.append(np.zeros(4)); marks.mark(np.array([2]), 1)
    >>> marks.state().segments[0].rows["marks"].to_pylist()
    [0, 0, 1, 0]
    """

    def __init__(self, dtype: type | np.dtype, first: int = 0) -> None:
        super().__init__(dtype, first)
        self._deltas = Deltas(lambda numbers: pa.RecordBatch.from_arrays([pa.array(self[numbers])], ["marks"]))

    def mark(self, numbers: np.ndarray, bits: np.ndarray | int) -> None:
        super().mark(numbers, bits)
        self._deltas.change(numbers, self.stop - self.first)

    def state(self) -> Segments:
        """Segments that the values are read from, oldest first."""
        return self._deltas.state(self.first, self.stop)

    def stored(self, state: Segments, folder: Path) -> None:
        """`state`, which was made of these values, lies in `folder` now: what is marked from here on has changed."""
        self._deltas.stored(state, folder)

    def restore(self, state: Segments, stop: int) -> None:
        """Read back the values of [first, stop), into an empty ledger. Raises StreamingError."""
        values = np.zeros(stop - self.first, self.dtype)
        for numbers, rows in self._deltas.restore(state):
            present = numbers >= self.first
            values[numbers[present] - self.first] = rows["marks"].to_numpy()[present]
        self.append(values)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._deltas.nbytes
