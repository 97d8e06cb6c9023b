"""How numbers lie in a Parquet file: as places in a dictionary of their distinct values, or one after the other.

Writers put every column into a dictionary until it holds a megabyte. For ids, times and floats that hardly repeat it is
as long as the column: it is written, kept and read in vain. So each column of numbers takes what has fewer bits,

    dictionary       D · width + N · ⌈log₂ D⌉
    integers         N · ⌈log₂(1 + largest − smallest step from a value to the next)⌉
    floats           N · 32

of N values, D of them distinct. Integers are stored as their steps (DELTA_BINARY_PACKED), which DuckDB, Polars, Spark
(3.3 and later) and every reader of Arrow know; BYTE_STREAM_SPLIT, which is a little smaller, most of Spark is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

Encoding: TypeAlias = Literal["DELTA_BINARY_PACKED", "PLAIN"]

_WITHOUT: dict[pa.DataType, Encoding] = {pa.int64(): "DELTA_BINARY_PACKED", pa.float32(): "PLAIN"}


def without_dictionary(rows: pa.Table) -> Mapping[str, Encoding]:
    """The columns of a file with such rows that are smaller without a dictionary, and how they are encoded instead.

    >>> device, user = np.arange(10_000) % 4, np.random.default_rng(1).integers(0, 2**40, 10_000)
    >>> without_dictionary(pa.table({"lake_seq": range(10_000), "device": device, "user_id": user}))
    {'lake_seq': 'DELTA_BINARY_PACKED', 'user_id': 'DELTA_BINARY_PACKED'}
    """
    found = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.type in _WITHOUT and _smaller_without(column.drop_null().to_numpy()):
            found[name] = _WITHOUT[column.type]
    return found


def dictionary_paths(rows: pa.Table, without: Mapping[str, Encoding]) -> list[str]:
    """The other columns, as a Parquet file names them."""
    others = (field for field in rows.schema if field.name not in without)
    return [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in others]


def _smaller_without(values: np.ndarray) -> bool:
    if not len(values):
        return False
    distinct = 1 + int(np.count_nonzero(np.diff(np.sort(values))))
    with_dictionary = 8 * values.itemsize * distinct + len(values) * (distinct - 1).bit_length()
    return len(values) * _bits(values) < with_dictionary


def _bits(values: np.ndarray) -> int:
    """Of a value that is stored without a dictionary."""
    if values.dtype.kind == "f":
        return 8 * values.itemsize
    steps = np.diff(values, prepend=values[:1])  # beyond 64 bits they wrap, here and in the file
    return min(64, (int(steps.max()) - int(steps.min())).bit_length())
