"""Holes of a lake: the `lake_seq` whose rows were erased. Everywhere else a lake has no gap.

    lake/erased.json    {"ranges": [[first, last], …]}, ascending and apart

A hole is on the disk before its rows go. Who reads rows by filter meets fewer of them, and need not ask. Who has to
know that nothing is missing, of a block or up to a row, asks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from streaming.errors import DataLost
from streaming.store.files import read_json, write_json

FILE = "erased.json"


def ranges_of(seq: np.ndarray) -> list[tuple[int, int]]:
    """The ranges (first, last) that numbers (N,) make up, ascending.

    >>> ranges_of(np.array([7, 3, 4, 4, 8]))
    [(3, 4), (7, 8)]
    """
    seq = np.unique(seq)
    if not len(seq):
        return []
    starts = np.flatnonzero(np.diff(seq, prepend=seq[0] - 2) != 1)
    stops = np.append(starts[1:], len(seq))
    return [(int(seq[a]), int(seq[b - 1])) for a, b in zip(starts, stops, strict=True)]


class Holes:
    """Erased rows, as ranges (first, last) of `lake_seq`, ascending and apart.

    >>> holes = Holes([(3, 4), (8, 8)])
    >>> holes.count(0, 8), holes.cover(3, 4), holes.cover(3, 5), holes.cover(5, 4)
    (3, True, False, True)
    >>> holes.mask(np.array([2, 3, 4, 5, 8])).tolist()
    [False, True, True, False, True]
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges = [(int(first), int(last)) for first, last in ranges]
        self._firsts = np.array([first for first, _ in self.ranges], np.int64)
        self._lasts = np.array([last for _, last in self.ranges], np.int64)
        self._before = np.concatenate([[0], np.cumsum(self._lasts - self._firsts + 1)]).astype(np.int64)

    @classmethod
    def of(cls, beside: Path) -> Holes:
        """The holes of the lake in the folder `beside`. Raises DataLost where their record is damaged."""
        value = read_json(beside / FILE)
        try:
            return cls() if value is None else cls(value["ranges"])
        except (TypeError, KeyError, ValueError):
            raise DataLost(f"{beside / FILE} is damaged; put it back from a copy of the run directory") from None

    @property
    def rows(self) -> int:
        """Number of erased rows."""
        return int(self._before[-1])

    def mask(self, seq: np.ndarray) -> np.ndarray:
        """Mask (N,) bool of the numbers that were erased."""
        if not self.ranges:
            return np.zeros(len(seq), bool)
        at = np.searchsorted(self._firsts, seq, side="right") - 1
        return (at >= 0) & (seq <= self._lasts[np.maximum(at, 0)])

    def count(self, first: int, last: int) -> int:
        """Number of erased rows from `first` to `last`."""
        return max(0, self._up_to(last) - self._up_to(first - 1))

    def cover(self, first: int, last: int) -> bool:
        """True if no row from `first` to `last` is left, as where there is no number between them."""
        return self.count(first, last) == max(0, last - first + 1)

    def with_more(self, ranges: Iterable[tuple[int, int]]) -> Holes:
        """These and others.

        >>> Holes([(3, 4), (8, 8)]).with_more([(5, 5), (4, 4)]).ranges
        [(3, 5), (8, 8)]
        """
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self.ranges, *ranges]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        return Holes(joined)

    def store(self, beside: Path) -> None:
        """Write the record, durably."""
        write_json(beside / FILE, {"ranges": [[*each] for each in self.ranges]})

    def _up_to(self, seq: int) -> int:
        """Number of erased rows up to `seq`."""
        at = int(np.searchsorted(self._firsts, seq, side="right")) - 1
        if at < 0:
            return 0
        return int(self._before[at]) + min(seq, int(self._lasts[at])) - int(self._firsts[at]) + 1
