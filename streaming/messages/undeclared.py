"""Undeclared columns of messages, absent from the schema: dropped, or stored from the first row that has one.

A stream whose schema says `undeclared: keep` takes such a column in as if it had been declared nullable from the start:
rows that lack it are null either way, so it does not matter when it was noticed. Its first value decides its type.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pyarrow.json

from streaming.messages.validation import declarable
from streaming.schema import LABEL_PREFIXES, SAMPLE_WEIGHT, Column, ColumnType, RowSchema, is_list, is_text

MOST_COLUMNS = 256
"""Up to so many columns in all, undeclared ones are kept: a producer that sends ids as keys must not fill the lake."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_OURS = {"record_time_ms", "key_time_ms", "order", "task", SAMPLE_WEIGHT}


class NewColumns(Exception):
    """Impressions have columns that are missing in the schema. The caller adds them to it and reads again."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        super().__init__(", ".join(f"`{column.name}` ({column.type})" for column in columns))
        self.columns = columns


class Undeclared:
    """Columns of accepted messages of one topic beyond their schema.

    >>> found = Undeclared(RowSchema(columns=[Column(name="ad")], tasks=[{"name": "ctr", "window_s": 60}]))
    >>> found.in_records([b'{"ad": 1, "coupon": null}', b'{"ad": 2, "coupon": "A7", "lake_seq": 3}'])
    >>> [(column.name, column.type, column.nullable) for column in found.columns]
    [('coupon', 'string', True)]
    """

    def __init__(self, schema: RowSchema) -> None:
        # Delta compares names without case.
        self._taken = {name.lower() for name in (*schema.augmented.names, *_OURS)}
        self._most = len(self._taken) + MOST_COLUMNS - len(schema.columns)
        self._found: dict[str, ColumnType] = {}

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name=name, type=kind, nullable=True) for name, kind in self._found.items())

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Names among these that are valid and not yet taken."""
        free = [name for name in names if name.lower() not in self._taken and _NAME.fullmatch(name)]
        free = [name for name in free if not name.startswith(LABEL_PREFIXES)]
        return free[: max(0, self._most - len(self._taken))]

    def in_table(self, table: pa.Table) -> None:
        """Inspect the non-empty columns of a message. A type that no column has is left out."""
        for name in self.unknown(table.schema.names):
            kind = table.schema.field(name).type
            column_type = None if _of_floats(kind) or pa.types.is_null(kind) else declarable(kind)
            if column_type is not None and table.column(name).null_count < table.num_rows:
                self._add(name, column_type)

    def in_json(self, values: list[bytes]) -> None:
        """Inspect JSON objects. Arrow says whether any has a key that is new; only then are they read one by one."""
        options = pyarrow.json.ReadOptions(use_threads=False, block_size=sum(map(len, values)) + len(values) + 1)
        try:
            schema = pyarrow.json.read_json(io.BytesIO(b"\n".join(values)), read_options=options).schema
            names = self.unknown(field.name for field in schema if not pa.types.is_null(field.type))
        except ValueError:  # values of one key are of several types
            self.in_records(values)
        else:
            if names:
                self.in_records(values, names)

    def in_records(self, values: Iterable[bytes], names: Collection[str] | None = None) -> None:
        """Inspect JSON objects one by one; only their `names` if given."""
        for value in values:
            with suppress(ValueError, RecursionError):
                record = json.loads(value)
                for name in self.unknown(record if names is None else [name for name in record if name in names]):
                    if (kind := _kind(record[name])) is not None:
                        self._add(name, kind)
                    elif isinstance(record[name], dict):
                        self._taken.add(name.lower())  # no column holds it; need not be looked at again

    def _add(self, name: str, kind: str) -> None:
        self._found[name] = cast(ColumnType, kind)
        self._taken.add(name.lower())


def _of_floats(kind: pa.DataType) -> bool:
    """Lists of floats: how many a list has is to be declared."""
    return is_list(kind) and not pa.types.is_integer(kind.value_type) and not is_text(kind.value_type)


def _kind(value: Any) -> ColumnType | None:
    """The type of a column whose first value is `value`; None: it says none.

    >>> [_kind(value) for value in (True, 7, 7.0, "a", [1, 2], ["a"], [], None, {"a": 1}, [1.5])]
    ['int64', 'int64', 'float32', 'string', 'list<int64>', 'list<string>', None, None, None, None]
    """
    if isinstance(value, list):
        kinds = {_kind(item) for item in value}
        return {"int64": "list<int64>", "string": "list<string>"}.get(str(*kinds)) if len(kinds) == 1 else None  # type: ignore[return-value]
    kinds_of: dict[type, ColumnType] = {bool: "int64", int: "int64", float: "float32", str: "string"}
    return kinds_of.get(type(value))
