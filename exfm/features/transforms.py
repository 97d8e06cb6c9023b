"""Transforms from raw Arrow columns to table rows and floats: hashing, crosses, buckets, scaling. Vectorised
throughout.

A sparse transform gives a `Bags`: the ids of all bags one after the other, and how many belong to each example.
Nulls, in a column or inside a list, become no id at all, so that a bag may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.errors import ConfigError
from exfm.features.calendar import EVENT_TIME, angles_of, place_of
from exfm.features.dense import DenseFeature, check_number, on_its_scale
from exfm.features.features import FeatureSet, served_column
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.kernels.siphash import hash_texts

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: multiplying by it is a bijection


class Bags(NamedTuple):
    """Ids of B bags. `lengths` is None when every bag holds exactly one id."""

    values: np.ndarray  # (sum of lengths,) int64
    lengths: np.ndarray | None  # (B,) int64


def hash64(ids: pa.Array) -> np.ndarray:
    """64-bit hashes of an integer or string column: (B,) uint64. Raises ValueError when it holds nulls.

    Integers go through the splitmix64 finaliser (a bijection), strings through SipHash; both are stable, and
    the same as those of ids in `streaming.hashing`, which this package may not import.

    >>> hash64(pa.array([1, 2])).tolist()
    [6238072747940578789, 15839785061582574730]
    """
    if ids.null_count:
        raise ValueError(f"ids must not be null: {ids.null_count} of {len(ids)} are")
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type):
        return _hashes_of_texts(ids)
    return mixed(_int64(ids).to_numpy().view(np.uint64))


def _hashes_of_texts(ids: pa.StringArray | pa.LargeStringArray) -> np.ndarray:
    hashes = np.empty(len(ids), np.uint64)
    if len(ids):
        long = pa.types.is_large_string(ids.type)
        _, ends, texts = ids.buffers()
        first = ends.address + ids.offset * (8 if long else 4)
        hash_texts(first, 0 if texts is None else texts.address, long, hashes)
    return hashes


def _int64(ids: pa.Array) -> pa.Array:
    """Integers of any width; not cast where they are of this one, which takes longer than a hundred of them."""
    return ids if ids.type == pa.int64() else ids.cast(pa.int64())


def mixed(x: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser over (N,) uint64: equals `pandas.util.hash_array` of integers, in less time.

    >>> mixed(np.array([1, 2], dtype=np.uint64)).tolist()
    [6238072747940578789, 15839785061582574730]
    """
    x = x ^ (x >> 30)
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    x ^= x >> 31
    return x


def bags_of(feature: SparseFeature, columns: Mapping[str, pa.Array]) -> Bags:
    """Table rows of one sparse feature.

    Raises ConfigError for a column whose type the transform cannot take, and for an index outside the table.
    """
    if feature.columns:
        return _cross(feature, [columns[name] for name in feature.columns])
    (name,) = feature.reads
    values, lengths = _flatten(columns[name])
    if feature.most is not None and lengths is not None and lengths.max(initial=0) > feature.most:
        place = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        values, lengths = values.filter(pa.array(place < feature.most)), np.minimum(lengths, feature.most)
    return Bags(_rows(feature, name, values), lengths)


def places_of(feature: SequenceFeature, columns: Mapping[str, pa.Array]) -> list[Bags]:
    """Table rows of a sequence by position, the most recent first: bag i of an example holds its i-th most recent id,
    or none if it has fewer.

    Raises ConfigError for a column that holds no lists, and as `bags_of` does.

    >>> seen = SequenceFeature(name="seen", rows=10, length=2, transform="index")
    >>> [bags.values.tolist() for bags in places_of(seen, {"seen": pa.array([[7, 8, 9], [5], []])})]
    [[9, 5], [8]]
    """
    name = feature.reads[0]
    column = columns[name]
    if not _is_list(column.type):
        raise ConfigError(
            f"sequence `{feature.name}` reads column `{name}` of type {column.type}; it needs a list per row, "
            "the most recent id last"
        )
    values, lengths = _flatten(column)
    assert lengths is not None
    if feature.transform == "gap":
        events = _times(feature.name, EVENT_TIME, columns[EVENT_TIME])
        rows = _gaps(_times(feature.name, name, values), np.repeat(events, lengths), feature.rows)
    else:
        rows = _rows(feature, name, values)
    ends = np.cumsum(lengths)
    places = []
    for i in range(feature.length):
        there = lengths > i
        places.append(Bags(rows[ends[there] - 1 - i], there.astype(np.int64)))
    return places


def _gaps(before_ms: np.ndarray, event_ms: np.ndarray, rows: int) -> np.ndarray:
    """⌊log₂(1 + seconds)⌋; 0 for what came later than the event."""
    seconds = np.maximum(event_ms - before_ms, 0) // 1000
    return np.minimum(np.frexp((1 + seconds).astype(np.float64))[1].astype(np.int64) - 1, rows - 1)


def dense_of(feature: DenseFeature, columns: Mapping[str, pa.Array]) -> np.ndarray:
    """Floats of one dense feature: (B, inputs) float32; for an `online` feature its raw value, clipped and in logarithm
    if so configured: (B, 1) float64, NaN for null.

    Raises ConfigError for a column whose type it cannot take.
    """
    (column,) = (columns[name] for name in feature.reads)
    if feature.of_time:
        there = column.is_valid().to_numpy(zero_copy_only=False)[:, np.newaxis]
        angles = angles_of(feature.transform, _times(feature.name, feature.reads[0], column), feature.utc_offset)
        return np.where(there, angles, 0.0).astype(np.float32)
    if feature.length is not None:
        return _vectors(feature, feature.length, column)
    check_number(feature, column.type, number=_is_number(column.type))
    x = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if feature.clip is not None:
        x = np.clip(x, *feature.clip)
    x = on_its_scale(feature.transform, x)
    if feature.transform == "standardise" and not feature.online:
        x = (x - feature.mean) / feature.std
        x = x if feature.sigmas is None else np.clip(x, -feature.sigmas, feature.sigmas)
    if column.null_count:
        x = np.where(column.is_valid().to_numpy(zero_copy_only=False), x, np.nan if feature.online else 0.0)
    return x[:, np.newaxis] if feature.online else x.astype(np.float32)[:, np.newaxis]


def _vectors(feature: DenseFeature, length: int, column: pa.Array) -> np.ndarray:
    """(B, length) float32; 0 where the list, or a value of it, is null."""
    of = f"dense feature `{feature.name}` reads lists of {length} floats from column `{feature.reads[0]}`"
    if not _is_list(column.type) or not _is_number(column.type.value_type):
        raise ConfigError(f"{of}, and it is of type {column.type}")
    lengths = pc.list_value_length(column).drop_null()
    if len(lengths) and pc.min_max(lengths).as_py() != {"min": length, "max": length}:
        wrong = next(n for n in lengths.to_pylist() if n != length)
        raise ConfigError(f"{of}, and a row has {wrong}; declare `length: {length}` of the column, and it is kept out")
    values = (
        column.flatten()
        .cast(pa.float32(), safe=False)
        .fill_null(0.0)
        .to_numpy(zero_copy_only=False)
        .reshape(-1, length)
    )
    values = values if feature.clip is None else np.clip(values, *feature.clip)
    if not column.null_count:
        return values
    vectors = np.zeros((len(column), length), np.float32)
    vectors[column.is_valid().to_numpy(zero_copy_only=False)] = values
    return vectors


def constant_of(value: float | str) -> pa.Array:
    """A constant as a column of one row."""
    return pa.array([value])


def with_constants(rows: pa.RecordBatch | pa.Table, features: FeatureSet) -> pa.Table:
    """Rows with a column of constants for every feature known in training only, as `features.as_served` reads them."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    for feature in features.train_only:
        assert feature.serve_as is not None
        table = table.append_column(
            served_column(feature.name), pa.repeat(constant_of(feature.serve_as)[0], len(table))
        )
    return table


def _flatten(column: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Values without nulls, and bag lengths where they are not all one."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_list(column.type):
        values = column.flatten()
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if values.null_count:
            owner = np.repeat(np.arange(len(lengths)), lengths)
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            lengths = np.bincount(owner[valid], minlength=len(lengths))
            values = values.drop_null()
        return values, lengths
    if column.null_count:
        return column.drop_null(), column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    return column, None


def _rows(feature: SparseFeature | SequenceFeature, name: str, values: pa.Array) -> np.ndarray:
    if isinstance(feature, SparseFeature) and feature.transform == "bucketize":
        if not _is_number(values.type):
            raise ConfigError(f"feature `{feature.name}` buckets column `{name}` of type {values.type}; needs a number")
        return np.searchsorted(np.asarray(feature.boundaries), values.to_numpy(zero_copy_only=False), side="right")
    if isinstance(feature, SparseFeature) and feature.of_time:
        return place_of(feature.transform, _times(feature.name, name, values), feature.utc_offset)
    integer = pa.types.is_integer(values.type)
    if feature.transform == "index":
        if not integer:
            raise ConfigError(
                f"feature `{feature.name}` indexes by column `{name}` of type {values.type}; it needs integers"
            )
        rows = _int64(values).to_numpy()
        if len(rows) and not (rows.min() >= 0 and rows.max() < feature.rows):
            wrong = rows[(rows < 0) | (rows >= feature.rows)][0]
            raise ConfigError(
                f"feature `{feature.name}`: value {wrong} of column `{name}` is outside its table of "
                f"{feature.rows} rows; give it more `rows`, or use transform `hash`"
            )
        return rows
    if not (integer or pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise ConfigError(
            f"feature `{feature.name}` hashes column `{name}` of type {values.type}; it needs integers or strings, "
            "or `bucketize` for a float"
        )
    return (hash64(values) % np.uint64(feature.rows)).view(np.int64)


def _cross(feature: SparseFeature, columns: list[pa.Array]) -> Bags:
    """h ← hash(h·GOLDEN + hash(next column)), left to right; a null in any of the columns empties the bag."""
    for name, column in zip(feature.columns, columns, strict=True):
        if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            raise ConfigError(
                f"feature `{feature.name}` crosses column `{name}` of type {column.type}; "
                "a cross takes columns with one integer or string per row"
            )
    valid = None
    if any(column.null_count for column in columns):
        valid = np.logical_and.reduce([c.is_valid().to_numpy(zero_copy_only=False) for c in columns])
        columns = [column.filter(pa.array(valid)) for column in columns]
    h = hash64(columns[0])
    for column in columns[1:]:
        h = mixed(h * GOLDEN + hash64(column))
    return Bags((h % np.uint64(feature.rows)).astype(np.int64), None if valid is None else valid.astype(np.int64))


def _times(feature: str, name: str, column: pa.Array) -> np.ndarray:
    """Milliseconds since 1970; 0 for null."""
    if not pa.types.is_integer(column.type):
        raise ConfigError(
            f"feature `{feature}` takes times of column `{name}` of type {column.type}; it needs integers, "
            "milliseconds since 1970"
        )
    return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
