"""A batch in parts, a rank each: what ranks compute of it, and put together.

    rows 0 … B ──► part 0 | part 1 | … ──► each by its rank ──► joined, row by row          (B, …)
                                                            └──► or summed, part after part

Sums are taken in order of part, by every rank alike. So N ranks get the bits that one process gets which computes the N
parts in turn.

B rows of a batch, N parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from exfm.parallel.group import RankGroup


class BatchParts:
    """The `count` parts of every batch, in order; their sizes differ by at most one row. With a `group` of as many
    ranks, this process computes the part of its rank, and `join` and `total` are collectives; else all of them.

    >>> parts = BatchParts(2)
    >>> [parts.rows(5, part) for part in parts.own]
    [slice(0, 2, None), slice(2, 5, None)]
    >>> parts.join([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])], 5)
    tensor([1., 2., 3., 4., 5.])
    >>> parts.total([torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])])
    tensor([11., 22.])
    """

    def __init__(self, count: int = 1, group: RankGroup | None = None) -> None:
        self.count, self._group = count, group
        self.own: Sequence[int] = range(count) if group is None else (group.rank,)

    def rows(self, B: int, part: int) -> slice:
        """The rows of a part, of B."""
        return slice(part * B // self.count, (part + 1) * B // self.count)

    def join(self, own: Sequence[Tensor], B: int) -> Tensor:
        """Values (B, …) of all rows, from those of each part of this process."""
        if self._group is None:
            return own[0] if len(own) == 1 else torch.cat(list(own))
        (mine,) = own
        padded = mine.new_zeros(-(-B // self.count), *mine.shape[1:])  # ranks exchange equal shares
        padded[: len(mine)] = mine
        sizes = [(rows := self.rows(B, part)).stop - rows.start for part in range(self.count)]
        return torch.cat([of[:size] for of, size in zip(self._group.all_gather(padded), sizes, strict=True)])

    def total(self, own: Sequence[Tensor]) -> Tensor:
        """The sum over all parts of values alike in shape."""
        return reduce(torch.add, own if self._group is None else self._group.all_gather(own[0]))


WHOLE = BatchParts()
"""A batch in one part."""
