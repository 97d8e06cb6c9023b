"""The keys of JSON rows and the types of their values, of all rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streaming.errors import BadInput
from streaming.sources.tables.engine import TableEngine, quoted

NUMBERS = ("BIGINT", "UBIGINT", "DOUBLE")
MIXED = "JSON"
"""Of a key whose values are of several kinds: they stay as they are written."""


def structure_of(engine: TableEngine, objects: str) -> dict[str, Any]:
    """Name -> the kind of its values: the name of a type of JSON's own, a dictionary of the same, or a list of one.
    `objects`: a relation with a column `json`.

    Raises BadInput for a row that is no object, and for keys that differ by capitals only.
    """
    found: Any = "NULL"
    for (text,) in engine.rows(f"SELECT DISTINCT json_structure(json) FROM {objects}"):
        found = united(found, json.loads(text))
    if not isinstance(found, dict):
        raise BadInput("a row is no JSON object: `{…}` is needed, one after the other or in one array")
    if "" in found:
        raise BadInput("a key is empty; give it a name")
    spelled: dict[str, str] = {}
    for name in found:
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise BadInput(f"keys `{other}` and `{name}` differ by capitals only; give one of them another name")
    return found


def united(one: Any, other: Any) -> Any:
    """
    >>> united({"a": "UBIGINT", "b": ["NULL"]}, {"a": "DOUBLE", "b": ["VARCHAR"], "c": "BOOLEAN"})
    {'a': 'DOUBLE', 'b': ['VARCHAR'], 'c': 'BOOLEAN'}
    >>> united("BIGINT", "UBIGINT"), united("VARCHAR", {"a": "NULL"})
    ('BIGINT', 'JSON')
    """
    if one == other or other == "NULL":
        return one
    if one == "NULL":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: united(one.get(name, "NULL"), kind) for name, kind in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return [united(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str) and {one, other} <= {*NUMBERS}:
        return "DOUBLE" if "DOUBLE" in (one, other) else "BIGINT"
    return MIXED


def sql_type(kind: Any, floats: str = "DOUBLE") -> str:
    """The type that DuckDB reads such values as; `floats`: the one of fractions.

    >>> sql_type({"id": "UBIGINT", "seen": [{"at": "DOUBLE"}]})
    'STRUCT("id" BIGINT, "seen" STRUCT("at" DOUBLE)[])'
    """
    if isinstance(kind, Mapping):
        return "STRUCT(" + ", ".join(f"{quoted(name)} {sql_type(each, floats)}" for name, each in kind.items()) + ")"
    if isinstance(kind, list):
        return f"{sql_type(kind[0], floats)}[]"
    if kind in NUMBERS:
        return floats if kind == "DOUBLE" else "BIGINT"
    return "BOOLEAN" if kind == "BOOLEAN" else "VARCHAR"
