"""Memory addresses of a batch's columns, for loops (exfm/kernels/loops.py) that read them in place.

Arrow's C data interface says it of all columns at once, in a struct of words. To ask pyarrow takes a microsecond a
column, and its tensor of several columns is a copy of them.

C columns, B rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.kernels.loops import byte_at, integer_at, loop

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class ColumnAddresses:
    """Columns of whole numbers, floats and texts of batches of a schema.

    >>> rows = pa.record_batch({"site": ["a", "bc"], "ad": [3, 7]})
    >>> places = ColumnAddresses([1], rows.schema)(rows)
    >>> np.ctypeslib.as_array(ctypes.cast(places.values.item(), ctypes.POINTER(ctypes.c_int64)), (2,)).tolist()
    [3, 7]
    """

    def __init__(self, at: Sequence[int], schema: pa.Schema) -> None:
        """`at`: which columns."""
        kinds = [schema.types[n] for n in at]
        self._at_C = np.array(at, np.int64)
        self._text_C = np.array([pa.types.is_string(kind) for kind in kinds], bool)
        self._bytes_C = np.array([4 if pa.types.is_string(kind) else kind.bit_width // 8 for kind in kinds], np.int64)

    def __call__(self, batch: pa.RecordBatch) -> ArrowAddresses | None:
        """Addresses of the columns; None if a column has a null."""
        values_C, texts_C = np.empty(len(self._at_C), np.int64), np.zeros(len(self._at_C), np.int64)
        _, array = batch.__arrow_c_array__()
        struct = _pointer(array, b"arrow_array")
        if not _find(struct, self._at_C, self._bytes_C, self._text_C, values_C, texts_C):
            return None
        return ArrowAddresses(values_C, texts_C)


class ArrowAddresses(NamedTuple):
    """Addresses, for as long as the batch is there: of the first value of every column, (C,) int64; of a text's first
    end, and in `texts` of the bytes."""

    values: np.ndarray
    texts: np.ndarray


_LENGTH, _NULLS, _OFFSET, _BUFFERS, _CHILDREN = 0, 1, 2, 5, 6
"""Words of the C data interface's struct of an array."""


@loop("b1(i8, i8[::1], i8[::1], b1[::1], i8[::1], i8[::1])")
def _find(struct, at_C, bytes_C, text_C, values_C, texts_C):
    children = integer_at(struct, _CHILDREN)
    for c in range(len(at_C)):
        column = integer_at(children, at_C[c])
        first, buffers = integer_at(column, _OFFSET), integer_at(column, _BUFFERS)
        known = integer_at(buffers, 0)
        if known != 0 and integer_at(column, _NULLS) != 0:  # below 0: not counted
            for b in range(first, first + integer_at(column, _LENGTH)):
                if (byte_at(known, b >> 3) >> (b & 7)) & 1 == 0:
                    return False
        values_C[c] = integer_at(buffers, 1) + first * bytes_C[c]
        if text_C[c]:
            texts_C[c] = integer_at(buffers, 2)
    return True
