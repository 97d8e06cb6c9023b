"""Columns as JSON text, and what is wrong with a JSON value."""

from __future__ import annotations

import json
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc


def json_values(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON text, (N,) -> (N,) strings. A float that is not finite is named as JavaScript
    names it.

    >>> json_values(pa.array(["a", 'say "b"', None])).to_pylist()
    ['"a"', '"say \\\\"b\\\\""', 'null']
    >>> json_values(pa.array([[1, 2], []])).to_pylist()
    ['[1, 2]', '[]']
    """
    if pa.types.is_list(column.type):
        texts = pa.ListArray.from_arrays(column.offsets, json_values(column.values), mask=column.is_null())
        joined = pc.binary_join_element_wise("[", pc.binary_join(texts, ", "), "]", "")
        return joined.fill_null("null")
    if pa.types.is_string(column.type):
        distinct = column.dictionary_encode()
        quoted = pa.array([json.dumps(value) for value in distinct.dictionary.to_pylist()], pa.string())
        return quoted.take(distinct.indices).fill_null("null")
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_finite(column), column.cast(pa.string()), _non_finite(column))
    return column.cast(pa.string()).fill_null("null")


def _non_finite(column: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity"))


JsonKind = Literal["integer", "float", "string", "integers"]


def json_kind(kind: pa.DataType) -> JsonKind:
    """What a JSON value must be to stand in a column of Arrow type `kind`."""
    if pa.types.is_list(kind):
        return "integers"
    if pa.types.is_string(kind):
        return "string"
    return "float" if pa.types.is_floating(kind) else "integer"


def json_fault(value: Any, kind: JsonKind) -> str | None:
    """Why a parsed JSON value cannot stand in a column: `wrong_type`, `not_finite`, `out_of_range`. A null can.

    >>> json_fault("7", "integer"), json_fault(2**63, "integer"), json_fault(7, "float")
    ('wrong_type', 'out_of_range', None)
    """
    given = type(value)
    if value is None or (kind == "string" and given is str):
        return None
    if kind == "integers" and given is list:
        return next((fault for item in value if (fault := json_fault(item, "integer")) is not None), None)
    if kind == "float" and (given is float or given is int):
        return None if abs(value) < float("inf") else "not_finite"
    if kind == "integer" and given is int:
        return None if -(2**63) <= value < 2**63 else "out_of_range"
    return "wrong_type"
