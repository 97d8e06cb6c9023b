"""A teacher's representation of rows, as a column of theirs: k values of eight bits and a scale.

    r_bj ≈ scale_b · q_bj        q_bj = round(r_bj / scale_b) in −127 … 127        scale_b = max_j |r_bj| / 127

    a cell:  scale (float32, little-endian)  q_b1 … q_bk (int8)          4 + k bytes; null where there is none

Values mean something beside others of the same *space* only: a teacher that starts anew from its seed draws other axes.
Rows say whose space theirs is of in the column `teacher_space`, and what is read is of one space.

N rows, k values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

EMBEDDING, SPACE = "teacher_embedding", "teacher_space"
"""The columns."""

FIRST_SPACE = 0
"""The space of a run's first teacher."""

SCALE_BYTES = 4
LARGEST = 127


def packed(r: np.ndarray) -> np.ndarray:
    """(N, k) float32 -> (N, 4 + k) uint8: the cells. Of a row that is not finite the scale is NaN.

    >>> unpacked(packed(np.array([[0.5, -1.0, 0.0], [0.0, 0.0, 0.0], [np.nan, 1.0, 1.0]], np.float32))).round(2)
    array([[ 0.5, -1. ,  0. ],
           [ 0. ,  0. ,  0. ],
           [ nan,  nan,  nan]], dtype=float32)
    """
    finite = np.isfinite(r).all(axis=1)
    r = np.where(finite[:, None], r, np.float32(0))
    scale = (np.abs(r).max(axis=1, initial=0) / LARGEST).astype(np.float32)
    q = np.rint(r / np.where(scale > 0, scale, np.float32(1))[:, None]).clip(-LARGEST, LARGEST).astype(np.int8)
    scale[~finite] = np.nan
    return np.hstack([scale.astype("<f4")[:, None].view(np.uint8), q.view(np.uint8)])


def unpacked(cells: np.ndarray) -> np.ndarray:
    """(N, 4 + k) uint8 -> (N, k) float32, NaN where the scale is."""
    scale = np.ascontiguousarray(cells[:, :SCALE_BYTES]).view("<f4")
    return (cells[:, SCALE_BYTES:].view(np.int8) * scale).astype(np.float32, copy=False)


def written(cells: np.ndarray, known: np.ndarray) -> pa.Array:
    """A column (N,) of these cells, null where they are not `known`, (N,) bool.

    >>> column = written(packed(np.array([[3, 4], [5, 6]], np.float32)), np.array([False, True]))
    >>> column.type, column.null_count, read(column).round(1).tolist()
    (DataType(binary), 1, [[nan, nan], [5.0, 6.0]])
    """
    width = cells.shape[1]
    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(known * width, out=offsets[1:])
    bits = np.packbits(known, bitorder="little")
    buffers = [pa.py_buffer(b) for b in (bits, offsets, np.ascontiguousarray(cells[known]))]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers, int((~known).sum()))


def read(column: pa.Array, space: pa.Array | None = None, of: int = FIRST_SPACE) -> np.ndarray:
    """(N,) of `written` -> (N, k) float32; NaN where it is null, or `space` (N,) says another one than `of`. A column
    of nulls has 0 values."""
    known = column.is_valid()
    if space is not None:
        known = pa.compute.and_(known, pa.compute.fill_null(pa.compute.equal(space, of), False))
    known = known.to_numpy(zero_copy_only=False)
    some = column.filter(pa.array(known))
    if not len(some):
        return np.zeros((len(column), 0), np.float32)
    offsets = np.frombuffer(some.buffers()[1], np.int32)[some.offset : some.offset + len(some) + 1]
    held = np.frombuffer(some.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    values = unpacked(held.reshape(len(some), -1))
    r = np.full((len(column), values.shape[1]), np.nan, np.float32)
    r[known] = values
    return r
