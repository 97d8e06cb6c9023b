"""Where the bags of a batch begin."""

from __future__ import annotations

import numpy as np
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def offsets_of(sparse: KeyedJaggedTensor) -> np.ndarray:
    """(K · B + 1,) int64, key by key; of ids that do not say it, from their lengths. TorchRec itself works that out
    with FBGEMM, which a server does not load.

    >>> import torch
    >>> lengths = torch.tensor([1, 0, 2])
    >>> offsets_of(KeyedJaggedTensor(["ad"], torch.tensor([7, 8, 9]), lengths=lengths)).tolist()
    [0, 1, 1, 3]
    """
    given = sparse.offsets_or_none()
    if given is not None:
        return np.asarray(given.long().numpy())
    lengths = sparse.lengths().numpy()
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
