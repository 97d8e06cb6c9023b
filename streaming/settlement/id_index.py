"""Index from an id's hash to the numbers of its rows.

Sorted runs of (hash, number), merged so that their sizes grow geometrically from new to old: an append costs O(log N)
amortised, a lookup one binary search per run. Rows are numbered consecutively and forgotten from the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.intake.merge import MergedChunk

RUN_ROWS = 1 << 22
"""Runs are not merged beyond this size, so that no append takes long."""

FILTERED_ROWS = 1 << 20
"""Runs of at least this size have a filter: days of ids make dozens of runs, and most ids looked up are in none."""


class _SortedRun(NamedTuple):
    """Rows [first, stop): their hashes, sorted, and the number of each, counted from `first`.

    `filter` has one bit for each value that the upper bits of a hash may have, set where a hash in the run has it.
    """

    first: int
    stop: int
    hashes: np.ndarray
    numbers: np.ndarray
    filter: np.ndarray | None

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        """Indices of those of `hashes` that the run can hold; others are surely not in it."""
        if self.filter is None:
            return np.arange(len(hashes))
        slot = hashes >> np.uint64(64 - (8 * len(self.filter) - 1).bit_length())
        return np.flatnonzero(self.filter[slot >> np.uint64(3)] >> (slot & np.uint64(7)).astype(np.uint8) & 1)


class IdIndex:
    """Finds all remembered numbers of a hash.

    >>> index = IdIndex()
    >>> index.append(np.array([30, 10, 30], np.uint64), first=5)
    >>> [found.tolist() for found in index.find(np.array([10, 20, 30], np.uint64))]
    [[0, 2, 2], [6, 5, 7]]
    """

    def __init__(self) -> None:
        self.runs: list[_SortedRun] = []

    def append(self, hashes: np.ndarray, first: int) -> None:
        """Add rows `first`, `first + 1`, …; `first` lies beyond every known number."""
        if not len(hashes):
            return
        self.runs.append(_sorted(hashes, first))
        while len(self.runs) > 1 and len(self.runs[-2].hashes) <= 2 * len(self.runs[-1].hashes):
            if len(self.runs[-2].hashes) + len(self.runs[-1].hashes) > RUN_ROWS:
                break
            self.runs[-2:] = [_merged(*self.runs[-2:])]

    def restore(self, parts: Iterable[np.ndarray], first: int) -> None:
        """`append` for the hashes of many rows, part by part: another thread sorts them while parts are read."""
        waiting: list[np.ndarray] = []
        with ThreadPoolExecutor(1) as sorter:
            sorting: list[Future[_SortedRun]] = []
            for part in parts:
                waiting.append(part)
                if sum(map(len, waiting)) >= RUN_ROWS:
                    if len(sorting) > 1:
                        sorting[-2].result()  # parts that come faster than they are sorted do not pile up
                    sorting.append(sorter.submit(_sorted, np.concatenate(waiting), first))
                    first += sum(map(len, waiting))
                    waiting = []
            self.runs += [run.result() for run in sorting]
        for part in waiting:
            self.append(part, first)
            first += len(part)

    def find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All pairs (index into `hashes`, number) of equal hash; of one query, numbers ascend."""
        order = np.argsort(hashes)
        wanted = hashes[order]
        queries, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for run in self.runs:
            asked = run.may_hold(wanted)
            low = np.searchsorted(run.hashes, wanted[asked])
            hit = run.hashes[np.minimum(low, len(run.hashes) - 1)] == wanted[asked]
            if not hit.any():
                continue
            low, hit = low[hit], asked[hit]
            count = np.searchsorted(run.hashes, wanted[hit], side="right") - low
            ends = np.cumsum(count)
            places = np.arange(ends[-1]) + np.repeat(low - (ends - count), count)
            queries.append(np.repeat(order[hit], count))
            numbers.append(run.numbers[places].astype(np.int64) + run.first)
        query, number = np.concatenate(queries), np.concatenate(numbers)
        by_query = np.argsort(query, kind="stable")
        return query[by_query], number[by_query]

    def drop(self, before: int) -> None:
        """Drop numbers below `before`, lazily: some may still be returned."""
        kept = [run for run in self.runs if run.stop > before]
        self.runs = [_cut(run, before) if before - run.first > run.stop - before else run for run in kept]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for run in self.runs for part in run[2:] if part is not None)


def _sorted(hashes: np.ndarray, first: int) -> _SortedRun:
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    return _SortedRun(first, first + len(hashes), hashes, order.astype(np.uint32), _filter(hashes))


def _filter(hashes: np.ndarray) -> np.ndarray | None:
    """8 to 16 bits per hash: of hashes that are not there, it lets through 6 to 12 %."""
    if len(hashes) < FILTERED_ROWS:
        return None
    bits = (8 * len(hashes)).bit_length()
    slots = np.zeros(1 << bits, bool)
    slots[hashes >> np.uint64(64 - bits)] = True
    return np.packbits(slots, bitorder="little")


def _merged(old: _SortedRun, new: _SortedRun) -> _SortedRun:
    hashes = np.concatenate([old.hashes, new.hashes])
    numbers = np.concatenate([old.numbers, new.numbers + np.uint32(new.first - old.first)])
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    return _SortedRun(old.first, new.stop, hashes, numbers[order], _filter(hashes))


def _cut(run: _SortedRun, before: int) -> _SortedRun:
    remaining = run.numbers >= before - run.first
    return _SortedRun(
        before, run.stop, run.hashes[remaining], run.numbers[remaining] - np.uint32(before - run.first), run.filter
    )


def cuts(times: np.ndarray, ids: pa.Array, span: int) -> Iterator[int]:
    """Cut points of rows with ascending `times`, (N,), such that between two cuts no id recurs more than `span` later.

    Yields the index of each first row that would. A chunk holds the rows of earlier times, so that rows of one time
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
    hits = places[np.maximum(at, 0)]
    rows = np.flatnonzero((at >= 0) & (hits // count == codes) & (hits % count < below))
    before = hits[rows] % count
    by_before = np.argsort(before, kind="stable")
    before = before[by_before]
    # The first row that conflicts with any row from `start` on.
    first = np.minimum.accumulate(rows[by_before][::-1])[::-1]
    start = 0
    while (place := np.searchsorted(before, start)) < len(first):
        yield int(first[place])
        start = int(np.searchsorted(times, times[first[place]]))


def without_repeats(chunk: MergedChunk, horizon_ms: int) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Impressions and feedback of smaller chunks, inside each of which an id is admitted at most once: a chunk ends
    where an id recurs beyond the horizon."""
    rows, feedback = chunk.impressions, chunk.feedback
    row_keys, feedback_keys = (part["key_time_ms"].to_numpy() for part in (rows, feedback))
    i = j = 0
    for row in cuts(row_keys, rows.column("impression_id"), horizon_ms):
        i_stop, j_stop = np.searchsorted(row_keys, row_keys[row]), np.searchsorted(feedback_keys, row_keys[row])
        yield rows.slice(i, i_stop - i), feedback.slice(j, j_stop - j)
        i, j = i_stop, j_stop
    yield rows.slice(i), feedback.slice(j)
