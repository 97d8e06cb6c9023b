"""Hashed features of a batch in one loop: rows of their tables, and crosses of columns.

    h ← mix(x_0),  h ← mix(φ · h + mix(x_i)) for each further column,  row = h mod R

of a table of R rows; a text comes with its hash in place of mix(x). A division takes ten times as long as all else, so
the remainder is taken by a product with R's reciprocal M = ⌊(2⁶⁴ − 1) / R⌋ (Barrett 1986):

    r = h − ⌊h · M / 2⁶⁴⌋ · R,  once minus R where that is not below R

F features, W columns of the widest one, C columns of integers, X of texts, K keys, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exfm.kernels.loops import inlined, integer_at, loop

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: φ
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # of splitmix64
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)
LARGEST = 2**63
"""Rows of a table at most: twice as many must fit into 64 bits."""


class Hashes:
    """Columns that each of F features reads, as indices: the C integer columns before the text columns.

    >>> ids = np.empty((2, 2), np.int64)
    >>> user, vertical = np.array([5, 9]), np.array([[77, 77]], np.uint64)
    >>> Hashes(reads=[[0], [0, 1]], rows=[7, 100], keys=[1, 0])(np.array([user.ctypes.data]), vertical, ids)
    >>> ids.tolist()
    [[1, 62], [2, 4]]
    """

    def __init__(self, reads: Sequence[Sequence[int]], rows: Sequence[int], keys: Sequence[int]) -> None:
        """`rows`: of their tables; `keys`: their places among the keys of a batch."""
        widest = max(map(len, reads), default=1)
        self._reads_FW = np.array([[*each, *[-1] * (widest - len(each))] for each in reads], np.int64)
        self._reads_FW = self._reads_FW.reshape(len(reads), widest)
        self._rows_F = np.array(rows, np.uint64)
        self._inverse_F = np.array([(2**64 - 1) // each for each in rows], np.uint64)
        self._keys_F = np.array(keys, np.int64)

    def __call__(self, places_C: np.ndarray, texts_XB: np.ndarray, ids_KB: np.ndarray) -> None:
        """`places`: the addresses of the integers, B int64 a column; `texts`: their hashes; `ids`: int64, where the
        features' rows are written."""
        _write(places_C, texts_XB, self._reads_FW, self._rows_F, self._inverse_F, self._keys_F, ids_KB)


@inlined
def mix(x):
    """splitmix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


@inlined
def _remainder(h, rows, inverse):
    high, low = h >> _HALF, h & _LOW
    of_high, of_low = inverse >> _HALF, inverse & _LOW
    a = high * of_low + ((low * of_low) >> _HALF)
    b = low * of_high + (a & _LOW)
    r = h - (high * of_high + (a >> _HALF) + (b >> _HALF)) * rows
    return min(r, r - rows)  # below 0 is larger than any other


@loop("void(i8[::1], u8[:, ::1], i8[:, ::1], u8[::1], u8[::1], i8[::1], i8[:, ::1])")
def _write(places_C, texts_XB, reads_FW, rows_F, inverse_F, keys_F, ids_KB):
    C, B = len(places_C), ids_KB.shape[1]
    for f in range(len(keys_F)):
        ids_B = ids_KB[keys_F[f]]
        for w in range(reads_FW.shape[1]):
            column = reads_FW[f, w]
            if column < 0:
                break
            if column < C:
                place = places_C[column]
                if w == 0:
                    for b in range(B):
                        ids_B[b] = np.int64(mix(np.uint64(integer_at(place, b))))
                else:
                    for b in range(B):
                        ids_B[b] = np.int64(mix(np.uint64(ids_B[b]) * GOLDEN + mix(np.uint64(integer_at(place, b)))))
            else:
                h_B = texts_XB[column - C]
                if w == 0:
                    for b in range(B):
                        ids_B[b] = np.int64(h_B[b])
                else:
                    for b in range(B):
                        ids_B[b] = np.int64(mix(np.uint64(ids_B[b]) * GOLDEN + h_B[b]))
        rows, inverse = rows_F[f], inverse_F[f]
        for b in range(B):
            ids_B[b] = np.int64(_remainder(np.uint64(ids_B[b]), rows, inverse))
