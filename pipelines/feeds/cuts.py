"""Where a batch ends. Both rules follow from the rows alone, so every run, replay and sweep cuts the same batches.

A student's batch ends after B rows that pass its filter, or where a block ends, whichever comes first.

A teacher learns a block of R rows in S = ⌈R / B⌉ steps. Every partition's n rows of the block are cut at

    ⌊n · min(R, s · B) / R⌋        s = 0 … S

and step s learns the s-th slices of all partitions, in order of partition. So what a step learns depends on the block
alone, not on how many ranks share the partitions; with one partition, its steps are B rows each, and the rest.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def block_cuts(counts: np.ndarray, batch_rows: int, block_rows: int) -> np.ndarray:
    """Where every partition's rows of a block are cut for the teacher's steps, (P,) -> (S + 1, P).

    >>> block_cuts(np.array([5, 0, 2]), batch_rows=3, block_rows=7).tolist()
    [[0, 0, 0], [2, 0, 0], [4, 0, 1], [5, 0, 2]]
    >>> block_cuts(np.array([7]), batch_rows=3, block_rows=7)[:, 0].tolist()
    [0, 3, 6, 7]
    """
    ends = np.minimum(block_rows, np.arange(-(-block_rows // batch_rows) + 1) * batch_rows)
    return np.asarray(np.outer(ends, counts) // block_rows)


class StudentCuts:
    """Rows on their way to a student, and the batches cut from them.

    >>> cuts = StudentCuts(batch_rows=2)
    >>> cuts.put(pa.table({"block": [0, 0, 0, 1]}))
    >>> [rows.num_rows for rows in iter(lambda: cuts.take(block_is_whole=False), None)]
    [2, 1]
    >>> cuts.take(block_is_whole=True).num_rows
    1
    """

    def __init__(self, batch_rows: int) -> None:
        self._batch_rows = batch_rows
        self._rows: pa.Table | None = None

    @property
    def waiting_rows(self) -> int:
        return 0 if self._rows is None else self._rows.num_rows

    def put(self, rows: pa.Table) -> None:
        """Add the rows that follow."""
        parts = [rows] if self._rows is None else [self._rows, rows]
        self._rows = pa.concat_tables(parts).combine_chunks()

    def take(self, *, block_is_whole: bool) -> pa.Table | None:
        """The next batch; None while its end is not known. `block_is_whole`: no more rows of the last block follow."""
        if self._rows is None or not self._rows.num_rows:
            return None
        head = self._rows["block"].slice(0, self._batch_rows + 1).to_numpy()
        same_block = int(np.searchsorted(head, head[0], side="right"))
        count = min(same_block, self._batch_rows)
        if count < self._batch_rows and same_block == len(head) and not block_is_whole:
            return None
        batch, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return batch
