"""Upper limits of values, lists and rows, from declarations and from the features built on them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import SAMPLE_WEIGHT, Column, is_list

LIST_VALUE_BYTES = 8

Range = tuple[float | None, float | None]
"""The least and the greatest value allowed, both included; None: not bounded."""


class Limits(NamedTuple):
    """Limits of a row that follow from its features.

    index_rows  column -> rows of the smallest table that it is an index into
    ranges      column -> the least and the greatest value that every feature made of it can take
    row_bytes   of a row's texts and lists together; None: not bounded
    """

    index_rows: Mapping[str, int] = {}
    ranges: Mapping[str, Range] = {}
    row_bytes: int | None = None


def bounds_of(column: Column, limits: Limits) -> Range:
    """Range of a column's values: the declared one, for an index also its table's rows, for a number also its
    features' range."""
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
    """Intersection of two ranges."""
    low = max((end for end in (one[0], other[0]) if end is not None), default=None)
    return low, min((end for end in (one[1], other[1]) if end is not None), default=None)


def most_values(column: Column, limits: Limits) -> int | None:
    """Maximum length of a list; None for other columns, or if unbounded."""
    if not column.type.startswith("list<"):
        return None
    carried = None if limits.row_bytes is None else limits.row_bytes // LIST_VALUE_BYTES
    return min((most for most in (column.max_length, carried) if most is not None), default=None)


def inside(values: pa.Array, low: float | None, high: float | None) -> bool:
    """True if all non-null values lie between the two bounds, inclusive."""
    if low is None and high is None:
        return True
    extremes = pc.min_max(values)
    smallest, largest = extremes["min"].as_py(), extremes["max"].as_py()
    return smallest is None or bool((low is None or smallest >= low) and (high is None or largest <= high))


def all_finite(column: pa.Array) -> bool:
    """True if all non-null floats are finite."""
    return bool(pc.all(pc.is_finite(column), min_count=0).as_py())


def outside(values: pa.Array, low: float | None, high: float | None) -> pa.Array:
    """Mask (N,) bool of values outside the bounds; False for null."""
    broken = pa.repeat(False, len(values))
    if pa.types.is_floating(values.type):  # Arrow takes no whole number that a float32 does not hold
        low, high = (None if end is None else float(end) for end in (low, high))
    if low is not None:
        broken = pc.or_(broken, pc.less(values, low).fill_null(False))
    if high is not None:
        broken = pc.or_(broken, pc.greater(values, high).fill_null(False))
    return broken


class PlainColumns:
    """The integer and float columns of a batch, checked together: one operation per type costs less than one per
    column.

    >>> schema = pa.schema([("age", pa.int64()), ("bid", pa.float32()), ("hour", pa.int64()), ("tag", pa.string())])
    >>> rows = {"age": [30, 31], "bid": pa.array([1, float("inf")], pa.float32()), "hour": [0, 23], "tag": ["a", "b"]}
    >>> PlainColumns(schema, {"hour": (0, 23)}).suspects(pa.record_batch(rows, schema))
    [1, 3]
    """

    def __init__(self, schema: pa.Schema, bounds: Mapping[str, Range]) -> None:
        """`bounds`: the values allowed, of columns where not every one is."""
        groups: dict[tuple[pa.DataType, bool], list[int]] = {}
        for place, field in enumerate(schema):
            if field.type in _ENDS:  # nulls of some columns are no reason to look at all
                groups.setdefault((field.type, field.nullable), []).append(place)
        self._groups = [_Group(schema, places, bounds) for places in groups.values()]
        together = {place for group in self._groups for place in group.places}
        self._others = [place for place in range(len(schema)) if place not in together]
        self._may_be_nan = groups.get((pa.float32(), True), [])

    def suspects(self, batch: pa.RecordBatch) -> list[int]:
        """Indices of columns that may hold values which are not allowed."""
        left = list(self._others)
        for group in self._groups:
            left += [] if group.allowed(batch) else group.places
        return sorted(left)

    def any_nan(self, batch: pa.RecordBatch) -> bool:
        """True if a nullable float column holds NaN, which stands for null."""
        return any(pc.any(pc.is_nan(batch.column(place))).as_py() for place in self._may_be_nan)


_ENDS: dict[pa.DataType, tuple[float, float]] = {
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.float32(): (-float(np.finfo(np.float64).max), float(np.finfo(np.float64).max)),
}
"""The least and the greatest value of a type that is allowed, finite."""


class _Group:
    """Columns of one type."""

    def __init__(self, schema: pa.Schema, places: list[int], bounds: Mapping[str, Range]) -> None:
        self.places = places
        least, greatest = _ENDS[schema.field(places[0]).type]
        ends = [bounds.get(schema.field(place).name, (None, None)) for place in places]
        lows = [least if low is None else max(low, least) for low, _ in ends]
        highs = [greatest if high is None else min(high, greatest) for _, high in ends]
        self._possible = all(low <= greatest for low in lows) and all(high >= least for high in highs)
        kind = np.int64 if isinstance(least, int) else np.float64
        self._low = np.array(lows if self._possible else [], kind)
        self._high = np.array(highs if self._possible else [], kind)

    def allowed(self, batch: pa.RecordBatch) -> bool:
        """True if all values are there and within their bounds; False also where that takes a closer look."""
        if not self._possible or not len(batch):
            return False
        try:
            values = batch.select(self.places).to_tensor(row_major=False).to_numpy()
        except pa.ArrowTypeError:  # a null
            return False
        return bool((values.min(0) >= self._low).all() and (values.max(0) <= self._high).all())  # False with NaN


def row_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Bytes of the texts and lists of each row, (N,) int64, independent of their storage. A text in a list counts with
    its place in it.

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
                # The bytes of each text, summed by the row whose list holds it.
                inside = pc.binary_length(column.flatten()).fill_null(0).to_numpy(zero_copy_only=False)
                owner = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
                sizes += np.bincount(owner, inside, batch.num_rows).astype(np.int64)
    return sizes


def range_words(low: float | None, high: float | None) -> str:
    """Describe a range with two ends, or one; integers without decimals."""
    first, last = (end if end is None or end != int(end) else int(end) for end in (low, high))
    if first is None:
        return f"at most {last}"
    return f"{first} to {last}" if last is not None else f"at least {first}"


def as_taken(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column with the placeholders for nothing removed: NaN becomes null, and lists of ids or texts lose their
    nulls."""
    return nan_as_null(without_inner_nulls(column), field)


def name_hint(text: str, names: Collection[str]) -> str:
    """Hint for a text that is one of `names` but for blanks or capitals; empty for any other.

    >>> name_hint(" Ctr ", ["ctr", "cvr"]), name_hint("like", ["ctr", "cvr"])
    (': it is `ctr` but for blanks or capitals, which count', '')
    """
    alike = "".join(text.split()).casefold()
    meant = next((name for name in names if name.casefold() == alike), None)
    return "" if meant is None else f": it is `{meant}` but for blanks or capitals, which count"


def nan_as_null(column: pa.Array, field: pa.Field) -> pa.Array:
    """Replace NaN by null in a nullable column."""
    if not (field.nullable and pa.types.is_floating(column.type)):
        return column
    missing = pc.is_nan(column)
    return pc.if_else(missing, None, column) if pc.any(missing).as_py() else column


def without_inner_nulls(column: pa.Array) -> pa.Array:
    """Remove the nulls inside lists of ids or texts. In a list of floats each value has its place: it stays.

    >>> without_inner_nulls(pa.array([[1, None, 2], None, [None]])).to_pylist()
    [[1, 2], None, []]
    """
    if not has_inner_nulls(column):
        return column
    values = column.flatten()
    # A list's new length is the number of its valid values, and its new offset the sum of the lengths before.
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[valid], minlength=len(column)))])
    kind = pa.list_(column.type.value_type)
    starts = pa.array(offsets, pa.int32(), mask=np.append(column.is_null().to_numpy(zero_copy_only=False), False))
    return pa.ListArray.from_arrays(starts, values.drop_null(), type=kind)


def has_inner_nulls(column: pa.Array) -> bool:
    """True if lists of ids or texts hold nulls."""
    kind = column.type
    if not is_list(kind):
        return False
    inner = kind.value_type
    in_place = pa.types.is_floating(inner) or pa.types.is_decimal(inner) or pa.types.is_null(inner)
    return not in_place and bool(column.flatten().null_count)
