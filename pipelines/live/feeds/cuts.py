"""Batch boundaries, which follow from the rows only: every run, replay and sweep cuts the same batches. Both rules
follow from the rows alone, so every run, replay and sweep cuts the same batches. A batch has B rows, and B follows from
the rows before it (growth.py).

A student's batch ends after B rows that pass its filter, whatever blocks they come from; the last batch of a stream
that ends holds the rest. Where the student learns from rows of other verticals, too, those that came since the batch
before ride along, at most RIDERS for each of its own.

A teacher learns a block of R rows in steps that end at rows e₁ < e₂ < … < R of the block: B rows each, and the rest.
Every partition's n rows of the block are cut at

    ⌊n · eₛ / R⌋        s = 1 … S

and step s learns the s-th slices of all partitions, in order of partition. So what a step learns depends on the block
alone, not on how many ranks share the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from exfm.features.batch import own_rows_of
from pipelines.live.feeds.growth import Growth


def block_cuts(counts: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    """Boundaries of each partition's rows of a block for the teacher's steps, (P,) -> (S + 1, P). `ends`: of the steps,
    in rows of the whole block.

    >>> block_cuts(np.array([5, 0, 2]), ends=[3, 6, 7]).tolist()
    [[0, 0, 0], [2, 0, 0], [4, 0, 1], [5, 0, 2]]
    >>> block_cuts(np.array([7]), ends=[3, 6, 7])[:, 0].tolist()
    [0, 3, 6, 7]
    """
    return np.asarray(np.outer([0, *ends], counts) // ends[-1])


RIDERS = 15
"""Rows of other verticals that a batch takes along for each of its own, at most: the last ones before its end."""


class StudentCuts:
    """Rows buffered for a student, and the batches cut from them.

    Where a student learns from rows of other verticals, the column `own row` says which rows are its own. With
    `own_only`, which is for a student that learns the labels of its own rows alone, batches are cut by these: each ends
    with an own row, where it would end without the others, and takes along those that came since the one before.

    >>> cuts = StudentCuts(Growth(first=2, last=4, per=2))
    >>> cuts.put(pa.table({"lake_seq": range(10)}))
    >>> [rows.num_rows for rows in iter(lambda: cuts.take(at_end=False), None)]
    [2, 2, 2, 2]
    >>> cuts.first_waiting_seq, cuts.take(at_end=True).num_rows
    (8, 2)
    >>> cuts = StudentCuts(Growth(first=2, last=2, per=2), own_only=True)
    >>> cuts.put(pa.table({"lake_seq": range(6), "own row": [True, False, False, True, False, True]}))
    >>> cuts.take(at_end=False)["lake_seq"].to_pylist(), cuts.take(at_end=False)
    ([0, 1, 2, 3], None)
    """

    def __init__(self, batches: Growth, learned_rows: int = 0, *, own_only: bool = False) -> None:
        """`learned_rows`: given to the student before."""
        self._batches, self._cut_rows, self._own_only = batches, learned_rows, own_only
        self._rows: pa.Table | None = None

    @property
    def waiting_rows(self) -> int:
        return 0 if self._rows is None else self._rows.num_rows

    @property
    def first_waiting_seq(self) -> int | None:
        """The `lake_seq` of the first row not yet in a batch."""
        return self._rows["lake_seq"][0].as_py() if self._rows is not None and self._rows.num_rows else None

    def put(self, rows: pa.Table) -> None:
        """Append the next rows."""
        parts = [rows] if self._rows is None else [self._rows, rows]
        self._rows = pa.concat_tables(parts).combine_chunks()

    def take(self, *, at_end: bool) -> pa.Table | None:
        """The next batch; None while it is not full, or if nothing is left. `at_end`: no more rows follow."""
        size = self._batches.size(self._cut_rows)
        if self._rows is None or not self._rows.num_rows:
            return None
        ends = self._ends(self._rows)
        count = min(size, len(ends))
        if not count or (count < size and not at_end):
            self._rows = self._without_early_riders(self._rows, size)
            return None
        end = int(ends[count - 1])
        batch, self._rows = self._rows.slice(0, end), self._rows.slice(end)
        self._cut_rows += count
        return self._without_early_riders(batch, size)

    def _ends(self, rows: pa.Table) -> np.ndarray:
        """Behind which of the rows a batch may end, of those that it is cut by."""
        return (np.flatnonzero(own_rows_of(rows)) if self._own_only else np.arange(rows.num_rows)) + 1

    def _without_early_riders(self, rows: pa.Table, size: int) -> pa.Table:
        """Mask of the rows that stay in a batch of `size`."""
        if not self._own_only or rows.num_rows <= RIDERS * size:
            return rows
        riders = np.flatnonzero(~own_rows_of(rows))
        kept = np.ones(rows.num_rows, dtype=bool)
        kept[riders[: max(0, len(riders) - RIDERS * size)]] = False
        return rows if kept.all() else rows.filter(pa.array(kept)).combine_chunks()
