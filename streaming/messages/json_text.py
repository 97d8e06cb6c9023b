"""Conversion between columns and JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streaming.messages.times import milliseconds, zone_hint, zone_of


def json_values(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON text, (N,) -> (N,) strings. A float that is not finite is named as JavaScript
    names it.

    >>> json_values(pa.array(["a", 'say "b"', None])).to_pylist()
    ['"a"', '"say \\\\"b\\\\""', 'null']
    >>> json_values(pa.array([[1, 2], []])).to_pylist(), json_values(pa.array([["a"], None])).to_pylist()
    (['[1, 2]', '[]'], ['["a"]', 'null'])
    """
    if pa.types.is_list(column.type):
        texts = pa.ListArray.from_arrays(column.offsets, json_values(column.values))
        joined = pc.binary_join_element_wise("[", pc.binary_join(texts, ", "), "]", "")
        return pc.if_else(column.is_null(), "null", joined)
    if pa.types.is_string(column.type):
        distinct = column.dictionary_encode()
        quoted = pa.array([json.dumps(value) for value in distinct.dictionary.to_pylist()], pa.string())
        return quoted.take(distinct.indices).fill_null("null")
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_finite(column), column.cast(pa.string()), _non_finite(column))
    return column.cast(pa.string()).fill_null("null")


def _non_finite(column: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity"))


JsonKind = Literal["integer", "float", "string", "integers", "floats", "strings", "time"]


INSIDE: dict[str, JsonKind] = {"integers": "integer", "floats": "float", "strings": "string"}
"""What lists hold."""


class JsonColumn(NamedTuple):
    """Accepted JSON values of a column. `zone`: of times without an offset; None: UTC."""

    name: str
    kind: JsonKind
    nullable: bool
    zone: str | None = None

    @classmethod
    def of(cls, field: pa.Field) -> JsonColumn:
        kind: JsonKind = "time" if field.name == "event_time_ms" else _kind(field.type)
        return cls(field.name, kind, field.nullable, zone_of(field))

    def fit(self, value: Any) -> Any:
        """Convert `value` to the column: true and false to 1 and 0, a time in text (ISO 8601) to milliseconds, NaN to
        null if the column is nullable.

        Raises ValueError for any other, with a reason: `wrong_type`, `not_finite`, `out_of_range`.

        >>> [JsonColumn("n", "integer", False).fit(value) for value in (7, True, 2**63 - 1, None)]
        [7, 1, 9223372036854775807, None]
        >>> JsonColumn("event_time_ms", "time", False).fit("1970-01-01T00:00:01Z")
        1000
        >>> JsonColumn("n", "integer", False).fit("7")
        Traceback (most recent call last):
        ...
        ValueError: wrong_type
        """
        if self.kind == "time" and type(value) is str:
            with suppress(ValueError):
                return milliseconds(pa.array([value]), "ms", self.zone)[0].as_py()
        return None if value is None else _fit(value, self.kind, self.nullable)

    def hint(self, value: Any) -> str:
        """Suggest a remedy for a value that `fit` refuses; empty if there is none."""
        return zone_hint(value) if self.kind == "time" else ""


def _kind(kind: pa.DataType) -> JsonKind:
    if pa.types.is_list(kind):
        return {"string": "strings", "float": "floats"}.get(_kind(kind.value_type), "integers")  # type: ignore[return-value]
    if pa.types.is_string(kind):
        return "string"
    return "float" if pa.types.is_floating(kind) else "integer"


def _fit(value: Any, kind: JsonKind, nullable: bool) -> Any:
    python_type = type(value)
    if kind == "string" and python_type is str and not any("\ud800" <= letter <= "\udfff" for letter in value):
        return value
    if kind in INSIDE and python_type is list:
        inside = INSIDE[kind]
        return [None if item is None else _fit(item, inside, False) for item in value]
    if kind == "float" and python_type in (float, int, bool):
        if nullable and value != value:
            return None
        if not abs(value) < float("inf"):
            raise ValueError("not_finite")
        return int(value) if python_type is bool else value
    if kind in ("integer", "time") and python_type in (int, bool):
        if not -(2**63) <= value < 2**63:
            raise ValueError("out_of_range")
        return int(value)
    raise ValueError("wrong_type")


def json_of(text: str | bytes, **options: Any) -> Any:
    """Parse JSON. A whole number of more digits than Python reads is one that no column holds, not an error.

    >>> json_of("[" + "9" * 5000 + "]") > [2**64]
    True
    """
    try:
        return json.loads(text, **options)
    except ValueError as error:
        if "digits" not in str(error):
            raise
    return json.loads(text, parse_int=lambda digits: int(digits[:100]), **options)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate keys; raises ValueError otherwise."""
    if len(record := dict(pairs)) < len(pairs):
        raise ValueError("duplicate key")
    return record
