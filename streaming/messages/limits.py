"""What a value, a list and a row may be at most: as declared, and as what is made of them allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import SAMPLE_WEIGHT, Column

LIST_VALUE_BYTES = 8

Range = tuple[float | None, float | None]
"""The least and the greatest value allowed, both included; None: not bounded."""


class Limits(NamedTuple):
    """What a row may hold because of what is made of it.

    index_rows  column -> rows of the smallest table that it is an index into
    ranges      column -> the least and the greatest value that every feature made of it can take
    row_bytes   of a row's texts and lists together; None: not bounded
    """

    index_rows: Mapping[str, int] = {}
    ranges: Mapping[str, Range] = {}
    row_bytes: int | None = None


def bounds_of(column: Column, limits: Limits) -> Range:
    """The values that a column may have: those declared, of which an index has to lie in its table, and a number in the
    range of what is made of it."""
    low, high = column.minimum, column.maximum
    rows = limits.index_rows.get(column.name)
    if rows is not None and column.type in ("int64", "list<int64>"):
        low, high = _narrowed((low, high), (0, rows - 1))
    if column.name == SAMPLE_WEIGHT:
        low, high = _narrowed((low, high), (0, None))
    if column.name in limits.ranges and column.type in ("int64", "float32", "list<float32>"):
        low, high = _narrowed((low, high), limits.ranges[column.name])
    if column.type not in ("float32", "list<float32>"):
        low, high = low if low is None else math.ceil(low), high if high is None else math.floor(high)
    return low, high


def _narrowed(one: Range, other: Range) -> Range:
    """What lies in both ranges."""
    low = max((end for end in (one[0], other[0]) if end is not None), default=None)
    return low, min((end for end in (one[1], other[1]) if end is not None), default=None)


def most_values(column: Column, limits: Limits) -> int | None:
    """How many values a list may have; None: no list, or any number."""
    if not column.type.startswith("list<"):
        return None
    carried = None if limits.row_bytes is None else limits.row_bytes // LIST_VALUE_BYTES
    return min((most for most in (column.max_length, carried) if most is not None), default=None)


def row_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of the texts and lists of each row, (N,) int64: what a row says, however it is stored. A text in a list
    counts with its place in it.

    >>> row_sizes(pa.record_batch({"vertical": ["a", "home"], "clicked": [[1, 2], []], "age": [3, 4]})).tolist()
    [17, 4]
    >>> row_sizes(pa.record_batch({"tags": [["a", "bcd"], None, []]})).tolist()
    [20, 0, 0]
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        elif pa.types.is_list(column.type):
            lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
            sizes += LIST_VALUE_BYTES * lengths.astype(np.int64)
            if pa.types.is_string(column.type.value_type):
                inside = pc.binary_length(column.flatten()).fill_null(0).to_numpy(zero_copy_only=False)
                owner = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
                sizes += np.bincount(owner, inside, batch.num_rows).astype(np.int64)
    return sizes


def range_words(low: float | None, high: float | None) -> str:
    """Two ends, or one; a whole number as such."""
    first, last = (end if end is None or end != int(end) else int(end) for end in (low, high))
    if first is None:
        return f"at most {last}"
    return f"{first} to {last}" if last is not None else f"at least {first}"
