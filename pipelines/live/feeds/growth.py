"""Growth of batch and block sizes: small while a model is young, large later.

A model that has learned little gains most from many small steps, and from a teacher's snapshot that is minutes of rows
old and not hours. Later, large batches and blocks cost less. A size follows from the rows before alone, so a restart, a
replay and a sweep cut alike.
"""

from __future__ import annotations

from typing import NamedTuple

ROWS_PER_BATCH_ROW = 16
"""A batch grows while it holds at most one row for so many that were learned before it."""

ROWS_PER_BLOCK_ROW = 2
"""The same for a block and the rows of the lake before it."""


class Growth(NamedTuple):
    """A size that doubles from `first` to `last` while it is at most 1/`per` of the rows before it:

        size(n) = min(last, first · 2^k)      k = ⌊log₂ max(1, n / (per · first))⌋

    >>> growth = Growth(first=32, last=200, per=16)
    >>> [growth.size(n) for n in (0, 1_023, 1_024, 2_048, 4_096, 10**9)]
    [32, 32, 64, 128, 200, 200]
    >>> Growth(first=512, last=100, per=16).size(0)  # no growth
    100
    """

    first: int
    last: int
    per: int

    def size(self, before: int) -> int:
        """Size of the batch or block that begins after `before` rows."""
        doublings = max(1, before // (self.per * self.first)).bit_length() - 1
        return min(self.last, self.first << doublings)

    def ends(self, before: int, rows: int) -> list[int]:
        """End of each batch or block in `rows` rows that begin after `before` rows.

        >>> Growth(first=2, last=8, per=2).ends(0, 20)
        [2, 4, 6, 8, 12, 16, 20]
        >>> Growth(first=2, last=8, per=2).ends(100, 20)
        [8, 16, 20]
        """
        ends = [0]
        while ends[-1] < rows:
            ends.append(min(rows, ends[-1] + self.size(before + ends[-1])))
        return ends[1:]


def batch_growth(first: int, last: int) -> Growth:
    """Rows of a batch, by the rows learned before it."""
    return Growth(first, last, ROWS_PER_BATCH_ROW)


def block_growth(first: int, last: int) -> Growth:
    """Rows of a block, by the rows of the lake before it.

    >>> len(block_growth(1024, 16384).ends(0, 49_152))  # of 3 that had grown already
    11
    """
    return Growth(first, last, ROWS_PER_BLOCK_ROW)
