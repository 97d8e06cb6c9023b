"""Bag offsets of a batch, and the ids of a selection of its rows."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

FEW_BAGS = 1 << 17
"""The lengths of so many bags with one id each are kept for all batches: 2 MB."""


def offsets_of(sparse: KeyedJaggedTensor) -> np.ndarray:
    """Bag offsets, (K · B + 1,) int64, key by key; computed from the lengths if the ids do not carry them. TorchRec
    itself works that out with FBGEMM, which a server does not load.

    >>> from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
    >>> lengths = torch.tensor([1, 0, 2])
    >>> offsets_of(KeyedJaggedTensor(["ad"], torch.tensor([7, 8, 9]), lengths=lengths)).tolist()
    [0, 1, 1, 3]
    """
    stored = sparse.offsets_or_none()
    if stored is not None:
        return np.asarray(stored.long().numpy())
    lengths = sparse.lengths().numpy()
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def only(sparse: KeyedJaggedTensor, rows: Tensor) -> KeyedJaggedTensor:
    """The ids of the rows that are True in (B,)."""
    lengths_FB, values = sparse.lengths().view(len(sparse.keys()), len(rows)), sparse.values()
    bags = rows.expand(lengths_FB.shape).reshape(-1)
    lengths = lengths_FB.reshape(-1)[bags]
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return KeyedJaggedTensor(
        keys=sparse.keys(),
        values=values[bags.repeat_interleave(lengths_FB.reshape(-1))],
        lengths=lengths,
        offsets=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        stride=int(rows.sum()),
    )


def one_each(bags: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and offsets of bags with one id each. They are not written into."""
    ones, offsets = _few_bags() if bags <= FEW_BAGS else (np.ones(bags, np.int64), np.arange(bags + 1))
    return ones[:bags], offsets[: bags + 1]


@cache
def _few_bags() -> tuple[np.ndarray, np.ndarray]:
    # No tensors: one made in inference mode could not be learned of.
    return np.ones(FEW_BAGS, np.int64), np.arange(FEW_BAGS + 1)
