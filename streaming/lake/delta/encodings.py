"""Encodings of Parquet columns: a dictionary or plain values for numbers, and a codec for each column.

Writers put every column into a dictionary until it holds a megabyte. For ids, times and floats that hardly repeat it is
as long as the column: it is written, kept and read in vain. So each column of numbers takes what has fewer bits,

    dictionary       D · width + N · ⌈log₂ D⌉
    integers         N · ⌈log₂(1 + largest − smallest step from a value to the next)⌉
    floats           N · 32

of N values, D of them distinct. Integers are stored as their steps (DELTA_BINARY_PACKED), which DuckDB, Polars, Spark
(3.3 and later) and every reader of Arrow know; BYTE_STREAM_SPLIT, which is a little smaller, most of Spark is not.

Numbers that lie so are hardly smaller packed, and zstd takes as long to unpack them as all else takes to read them. So
floats without a dictionary are packed by zstd where it makes a sample smaller by a twelfth, and else not at all, as are
integers whose steps have a byte or more: what Snappy finds nothing in is copied all the same. Other numbers are packed
by Snappy, which every reader knows; texts and lists by zstd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Encoding: TypeAlias = Literal["DELTA_BINARY_PACKED", "PLAIN"]
Codec: TypeAlias = Literal["ZSTD", "SNAPPY", "NONE"]

_WITHOUT: dict[pa.DataType, Encoding] = {
    pa.int64(): "DELTA_BINARY_PACKED",
    pa.int32(): "DELTA_BINARY_PACKED",
    pa.float32(): "PLAIN",
}
_NUMBERS = {*_WITHOUT, pa.int8(), pa.float64()}
_ZSTD_LEVEL, SAMPLE = 1, 16_384
"""`SAMPLE`: so many values of a column say how it is packed."""


class Form(NamedTuple):
    """File format of a table's columns: the encoding of columns without a dictionary, and the codec of all."""

    without: Mapping[str, Encoding]
    codecs: Mapping[str, Codec]

    @classmethod
    def of(cls, rows: pa.Table) -> Form:
        """Choose the best encodings for these rows.

        >>> drawn = np.random.default_rng(1).normal(size=2000).astype(np.float32)
        >>> Form.of(pa.table({"bid": drawn, "url": ["a"] * 2000, "device": [1, 7, 2, 9] * 500}))
        Form(without={'bid': 'PLAIN'}, codecs={'bid': 'NONE', 'url': 'ZSTD', 'device': 'SNAPPY'})
        """
        without = without_dictionary(rows)
        columns = zip(rows.column_names, rows.columns, strict=True)
        return cls(without, {name: _codec(column, without.get(name)) for name, column in columns})

    def writer(self, place: Path, schema: pa.Schema, statistics: Sequence[str]) -> pq.ParquetWriter:
        """Open a writer for rows of `schema` at `place`; `statistics`: columns with a minimum and a maximum per row
        group."""
        paths = {f.name: f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema}
        codecs = {path: self.codecs[name] for name, path in paths.items()}
        return pq.ParquetWriter(
            place,
            schema,
            compression=codecs,
            compression_level={path: _ZSTD_LEVEL for path, codec in codecs.items() if codec == "ZSTD"} or None,
            use_dictionary=[path for name, path in paths.items() if name not in self.without],
            column_encoding={name: encoding for name, encoding in self.without.items() if name in paths},
            write_statistics=[name for name in statistics if name in paths],
            store_schema=False,  # Parquet's own says all that our types are
        )


def _codec(column: pa.ChunkedArray, encoding: Encoding | None) -> Codec:
    if column.type not in _NUMBERS:
        return "ZSTD"
    if encoding is None:
        return "SNAPPY"
    sample = column.drop_null().slice(0, SAMPLE).to_numpy()  # of at least one, or it had a dictionary
    if encoding == "DELTA_BINARY_PACKED":
        return "SNAPPY" if _bits(sample) < 8 else "NONE"
    packed = pa.Codec("zstd", _ZSTD_LEVEL).compress(sample, asbytes=True)
    return "ZSTD" if 12 * len(packed) <= 11 * sample.nbytes else "NONE"


def without_dictionary(rows: pa.Table) -> Mapping[str, Encoding]:
    """Columns of such rows that are smaller without a dictionary, with their encodings.

    >>> device, user = np.arange(10_000) % 4, np.random.default_rng(1).integers(0, 2**40, 10_000)
    >>> without_dictionary(pa.table({"lake_seq": range(10_000), "device": device, "user_id": user}))
    {'lake_seq': 'DELTA_BINARY_PACKED', 'user_id': 'DELTA_BINARY_PACKED'}
    """
    encodings = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if column.type in _WITHOUT and _smaller_without(column.drop_null().to_numpy()):
            encodings[name] = _WITHOUT[column.type]
    return encodings


def _smaller_without(values: np.ndarray) -> bool:
    if not len(values):
        return False
    distinct = _distinct(values)
    with_dictionary = 8 * values.itemsize * distinct + len(values) * (distinct - 1).bit_length()
    return len(values) * _bits(values) < with_dictionary


def _distinct(values: np.ndarray) -> int:
    """Count of distinct values, NaN each time."""
    if values.dtype.kind == "i":
        lowest = int(values.min())
        span = int(values.max()) - lowest + 1
        if span <= len(values):  # then they are marked in less time than they are sorted
            present = np.zeros(span, bool)
            present[values - lowest] = True
            return int(np.count_nonzero(present))
    return 1 + int(np.count_nonzero(np.diff(np.sort(values))))


def _bits(values: np.ndarray) -> int:
    """Bits of a value that is stored without a dictionary."""
    if values.dtype.kind == "f":
        return 8 * values.itemsize
    steps = np.diff(values, prepend=values[:1])  # beyond 64 bits they wrap, here and in the file
    return min(64, (int(steps.max()) - int(steps.min())).bit_length())
