"""From an id's hash to the numbers of the rows that carry it.

Sorted runs of (hash, number), merged so that their sizes grow geometrically from new to old: an append costs O(log N)
amortised, a lookup one binary search per run. Rows are numbered consecutively and forgotten from the front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

RUN_ROWS = 1 << 22
"""Runs are not merged beyond this size, so that no append stalls for long."""


class _Run(NamedTuple):
    """Rows [first, stop): their hashes, sorted, and the number of each, counted from `first`."""

    first: int
    stop: int
    hashes: np.ndarray
    numbers: np.ndarray


class IdIndex:
    """Finds every remembered number of a hash.

    >>> index = IdIndex()
    >>> index.append(np.array([30, 10, 30], np.uint64), first=5)
    >>> [found.tolist() for found in index.find(np.array([10, 20, 30], np.uint64))]
    [[0, 2, 2], [6, 5, 7]]
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._restoring: list[np.ndarray] = []

    def append(self, hashes: np.ndarray, first: int) -> None:
        """Remember rows `first`, `first + 1`, …; `first` lies beyond every number known."""
        if not len(hashes):
            return
        order = np.argsort(hashes, kind="stable")
        self._runs.append(_Run(first, first + len(hashes), hashes[order], order.astype(np.uint32)))
        while len(self._runs) > 1 and len(self._runs[-2].hashes) <= 2 * len(self._runs[-1].hashes):
            if len(self._runs[-2].hashes) + len(self._runs[-1].hashes) > RUN_ROWS:
                break
            self._runs[-2:] = [_merged(*self._runs[-2:])]

    def restore(self, hashes: np.ndarray, first: int) -> None:
        """`append` for many rows in a row: sorted once, in runs as large as they get. `restored` follows the last."""
        self._restoring.append(hashes)
        count = sum(map(len, self._restoring))
        if count >= RUN_ROWS:
            self.append(np.concatenate(self._restoring), first + len(hashes) - count)
            self._restoring = []

    def restored(self, stop: int) -> None:
        """All rows up to `stop` were given to `restore`."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._restoring])
        self._restoring = []
        self.append(hashes, stop - len(hashes))

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All pairs (index into `hashes`, number) of equal hash; of one query, numbers ascend."""
        order = np.argsort(hashes)
        wanted = hashes[order]
        queries, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for run in self._runs:
            low = np.searchsorted(run.hashes, wanted)
            hit = np.flatnonzero(run.hashes[np.minimum(low, len(run.hashes) - 1)] == wanted)
            if not len(hit):
                continue
            low = low[hit]
            count = np.searchsorted(run.hashes, wanted[hit], side="right") - low
            ends = np.cumsum(count)
            places = np.arange(ends[-1]) + np.repeat(low - (ends - count), count)
            queries.append(np.repeat(order[hit], count))
            numbers.append(run.numbers[places].astype(np.int64) + run.first)
        query, number = np.concatenate(queries), np.concatenate(numbers)
        by_query = np.argsort(query, kind="stable")
        return query[by_query], number[by_query]

    def drop(self, before: int) -> None:
        """Forget numbers below `before`, lazily: some may still be found."""
        kept = [run for run in self._runs if run.stop > before]
        self._runs = [_cut(run, before) if before - run.first > run.stop - before else run for run in kept]

    @property
    def nbytes(self) -> int:
        return sum(run.hashes.nbytes + run.numbers.nbytes for run in self._runs)


def _merged(old: _Run, new: _Run) -> _Run:
    hashes = np.concatenate([old.hashes, new.hashes])
    numbers = np.concatenate([old.numbers, new.numbers + np.uint32(new.first - old.first)])
    order = np.argsort(hashes, kind="stable")
    return _Run(old.first, new.stop, hashes[order], numbers[order])


def _cut(run: _Run, before: int) -> _Run:
    kept = run.numbers >= before - run.first
    return _Run(before, run.stop, run.hashes[kept], run.numbers[kept] - np.uint32(before - run.first))


def cuts(times: np.ndarray, ids: pa.Array, span: int) -> Iterator[int]:
    """Where to cut rows with ascending `times`, (N,), so that between two cuts no id recurs more than `span` later.

    Yields the index of each first row that would. A piece holds the rows of earlier times, so that rows of one time
    stay together.

    >>> list(cuts(np.array([0, 7, 14, 15, 30]), pa.array([1, 1, 1, 2, 2]), span=10))
    [2, 4]
    """
    count = len(times)
    if not count or times[-1] - times[0] <= span:
        return
    codes = ids.dictionary_encode().indices.to_numpy().astype(np.int64)
    # Row i conflicts with the rows of its id that lie below `below[i]`; the last of them is the one that matters.
    below = np.searchsorted(times, times - span)
    places = np.sort(codes * count + np.arange(count))
    at = np.searchsorted(places, codes * count + below) - 1
    found = places[np.maximum(at, 0)]
    rows = np.flatnonzero((at >= 0) & (found // count == codes) & (found % count < below))
    before = found[rows] % count
    by_before = np.argsort(before, kind="stable")
    before = before[by_before]
    # The first row that conflicts with any row from `start` on.
    first = np.minimum.accumulate(rows[by_before][::-1])[::-1]
    start = 0
    while (place := np.searchsorted(before, start)) < len(first):
        yield int(first[place])
        start = int(np.searchsorted(times, times[first[place]]))
