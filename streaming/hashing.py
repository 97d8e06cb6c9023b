"""One 64-bit hash for ids, the same for every reader of a column."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa


def hash64(ids: pa.Array) -> np.ndarray:
    """Hash int64 or string ids to uint64, shape (N,) -> (N,).

    Integers go through the splitmix64 finaliser, which is a bijection: distinct ids never collide. Strings go through
    SipHash with a fixed key, so the result does not depend on the process. Features are hashed alike (`exfm.features`),
    by a function of their own since neither package imports the other; a test compares the two.
    Raises ValueError when `ids` holds nulls.

    >>> a, b = hash64(pa.array([7, 8])), hash64(pa.array([8, 7]))
    >>> bool(a[0] == b[1]), a.dtype.name
    (True, 'uint64')
    """
    if ids.null_count:
        raise ValueError(f"ids must not be null: {ids.null_count} of {len(ids)} are")
    if pa.types.is_dictionary(ids.type):
        return hash64(ids.dictionary)[ids.indices.to_numpy(zero_copy_only=False)]
    import pandas as pd  # .25 s of a core, which whoever hashes nothing is spared

    if pa.types.is_integer(ids.type):
        return cast(np.ndarray, pd.util.hash_array(ids.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)))
    return cast(np.ndarray, pd.util.hash_array(ids.to_numpy(zero_copy_only=False), categorize=False))
