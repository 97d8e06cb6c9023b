"""Times in every form in which a column may hold them, as milliseconds since 1970 UTC."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Unit = Literal["s", "ms", "us", "ns"]
PER_MS: dict[Unit, float] = {"s": 1e-3, "ms": 1, "us": 1_000, "ns": 1_000_000}
"""How many of a unit a millisecond has."""

_ZONE = r":\d\d.*?([zZ]|[+-]\d\d(:?\d\d)?)$"
_BEYOND_MS = r"(\.\d{3})\d+"


def is_time(kind: pa.DataType) -> bool:
    """Whether `milliseconds` takes a column of this type."""
    return is_written_time(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_written_time(kind: pa.DataType) -> bool:
    """Whether a column of this type says by itself what its times are: needs no unit."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return text or pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)


def milliseconds(column: pa.Array, unit: Unit) -> pa.Array:
    """(N,) -> (N,) int64; a null, and NaN, stays null. What lies between two milliseconds belongs to the earlier one,
    but a float is rounded.

    Numbers count in `unit`. Timestamps and durations have units of their own; without a zone a time is UTC, and so is
    the midnight at which a date begins. Texts are ISO 8601, with `T` or a space, with a zone or without.
    Raises ValueError for a text that is no time, TypeError for a column of another type (`is_time`).

    >>> milliseconds(pa.array([1_500_000, None]), "us").to_pylist()
    [1500, None]
    >>> milliseconds(pa.array(["1970-01-02", "1970-01-01T01:00:00.5Z", "1970-01-01 01:00+01:00"]), "s").to_pylist()
    [86400000, 3600500, 0]
    """
    if not is_time(column.type):
        raise TypeError(f"{column.type} holds no times")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_written_time(column.type):
        return _of_numbers(column, unit)
    if pa.types.is_timestamp(column.type):
        return _of_timestamps(column)
    if pa.types.is_date(column.type):
        return _of_timestamps(column.cast(pa.timestamp("ms")))
    if pa.types.is_duration(column.type):
        return _of_numbers(column.cast(pa.int64()), column.type.unit)
    return _of_texts(column.cast(pa.string()))


def _of_numbers(column: pa.Array, unit: Unit) -> pa.Array:
    missing = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        with np.errstate(invalid="ignore"):
            scaled = np.rint(values / PER_MS[unit])
        if len(lost := np.flatnonzero(~missing & ~(np.abs(scaled) < 2.0**63))):
            raise ValueError(f"{values[lost[0]]} is no time")
        return pa.array(np.where(missing, 0, scaled).astype(np.int64), mask=missing)
    whole = pa.array(column.fill_null(0)).cast(pa.int64())
    found = pc.multiply_checked(whole, 1000).to_numpy() if unit == "s" else whole.to_numpy() // int(PER_MS[unit])
    return pa.array(found, mask=missing)


def _of_timestamps(column: pa.Array) -> pa.Array:
    return _of_numbers(column.cast(pa.int64()), column.type.unit)


def _of_texts(column: pa.Array) -> pa.Array:
    text = pc.replace_substring_regex(column, _BEYOND_MS, r"\1")
    zoned = pc.match_substring_regex(text, _ZONE)
    with_zone = pc.if_else(zoned, text, None).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    without = pc.if_else(zoned, None, text).cast(pa.timestamp("ms")).cast(pa.int64())
    return pc.coalesce(with_zone, without)
