"""Rows for a served model, checked by the rules and with the words of ingestion.

A pandas frame is read as pandas means it: NaN is a missing value. Where a column of floats may not lack one, it is the
number that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from exfm.features.features import FeatureSet
from streaming.errors import BadInput
from streaming.messages.limits import Limits, nan_as_null
from streaming.messages.validation import Refusal, Refusals, RowRules, bisect, conform
from streaming.schema import RowSchema

if TYPE_CHECKING:
    import pandas as pd

ROWS = "rows"
"""The key under which a registered model keeps its row schema."""

ON_BAD_ROWS = "on_bad_rows"
RAISE, NULL = "raise", "null"
"""What `predict` does where rows are refused: raise BadInput, or predict NaN for them."""

Taken = tuple[pa.Array, Refusals]
"""A column in the schema's type, and the rows of it that cannot be taken."""

SHOWN = 5
"""At most this many reasons are named; all refused rows are counted."""


def serving_rules(schema: RowSchema, features: FeatureSet, lookup: Collection[str] = ()) -> RowRules:
    """The rules of ingestion for the columns that a model reads; its `schema` is the model's input. `lookup`: columns
    that its as-of features are looked up by; a row may lack those that the model does not read itself."""
    limits, reads = Limits(features.index_rows, features.ranges), features.serving_columns()
    return RowRules("impression", schema, only={*reads, *lookup}, optional={*lookup} - {*reads}, limits=limits)


def checked(frame: pd.DataFrame, rules: RowRules) -> tuple[pa.RecordBatch, Refusals]:
    """Check the rows like ingestion; cells of refused rows may be null.

    Raises BadInput for a duplicate column in the frame.
    """
    names = list(frame.columns)
    if twice := [name for name in rules.schema.names if names.count(name) > 1]:
        raise BadInput(f"column `{twice[0]}` stands {names.count(twice[0])} times in the rows; give it once")

    def read(field: pa.Field) -> Taken:
        return _column(frame[field.name], field) if field.name in names else _absent(field, len(frame))

    return _checked(read, rules)


class TableColumns(Mapping[str, pa.ChunkedArray]):
    """Columns of a table by name, without duplicates."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self._names = table, table.schema.names

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def checked_columns(
    columns: Mapping[str, list[Any] | pa.ChunkedArray], context: Mapping[str, Any], count: int, rules: RowRules
) -> tuple[pa.RecordBatch, Refusals]:
    """`checked` for `count` rows of lists or Arrow arrays, with values shared by all rows. A null is a missing
    value."""
    if isinstance(columns, TableColumns) and not context:
        batch, refusals = rules.conform(columns.table)
        return batch, rules.check(batch) | refusals

    def read(field: pa.Field) -> Taken:
        if field.name in context:
            return _shared(context[field.name], count, field)
        return _values(columns[field.name], field) if field.name in columns else _absent(field, count)

    return _checked(read, rules)


def _checked(read: Callable[[pa.Field], Taken], rules: RowRules) -> tuple[pa.RecordBatch, Refusals]:
    """The columns of the schema, each as `read` has it."""
    arrays, refusals = [], Refusals()
    for field in rules.fields:
        array, refused = read(field)
        arrays.append(array)
        if refused:
            refusals = refused | refusals  # the first column at fault gives a row its reason
    batch = pa.RecordBatch.from_arrays(arrays, schema=rules.schema)
    return batch, rules.check(batch) | refusals


def _shared(value: Any, count: int, field: pa.Field) -> Taken:
    """A value in each of `count` rows."""
    if type(value) in AS_THEY_ARE.get(field.type, ()) and value == value and field.name != "event_time_ms":
        with suppress(pa.ArrowException, ValueError, OverflowError):
            return pa.repeat(pa.scalar(value, field.type), count), Refusals()
    one, failed = _values([value], field)
    refused = dict.fromkeys(range(count), failed[0]) if failed else Refusals()
    return pa.repeat(one[0], count), refused


def _values(values: list[Any] | pa.ChunkedArray, field: pa.Field) -> Taken:
    if isinstance(values, pa.ChunkedArray):
        if values.type == field.type and values.num_chunks == 1:  # what `conform` makes of it, without a table of one
            return nan_as_null(values.chunk(0), field), Refusals()
        batch, refusals = conform(pa.table({field.name: values}), pa.schema([field]))
        return batch.column(0), refusals
    if set(map(type, values)) <= AS_THEY_ARE.get(field.type, frozenset()) and field.name != "event_time_ms":
        try:
            return nan_as_null(pa.array(values, field.type), field), Refusals()
        except (pa.ArrowException, ValueError, OverflowError):
            pass  # one of them is not of the type after all: which, is looked for
    return _by_kind(values, field)


AS_THEY_ARE = {
    pa.int64(): frozenset({int, type(None)}),
    pa.float32(): frozenset({int, float, type(None)}),
    pa.string(): frozenset({str, type(None)}),
}
"""Of which kinds a whole column becomes one of the type at once, with what `conform` would make of it."""


def _by_kind(values: list[Any], field: pa.Field) -> Taken:
    """As `_in_pieces`, the values of each kind together: a column of many kinds costs no more than so many columns."""
    rows_by_kind: dict[Hashable, list[int]] = {}
    for row, value in enumerate(values):
        rows_by_kind.setdefault(_kind(value), []).append(row)
    arrays, places, refusals = [pa.nulls(0, field.type)], list[int](), Refusals()
    for rows in rows_by_kind.values():
        array, refused = _of_one_kind([values[row] for row in rows], field)
        arrays.append(array)
        places += rows
        refusals |= {rows[n]: why for n, why in refused.items()}
    return pa.concat_arrays(arrays).take(pa.array(np.argsort(places), pa.int64())), refusals


def _of_one_kind(values: list[Any], field: pa.Field) -> Taken:
    return _in_pieces(len(values), field, lambda start, stop: pa.array(values[start:stop]), lambda row: values[row])


def _kind(value: Any) -> Hashable:
    """Values of one kind make one Arrow array: integers of 64 bits, with a sign or without; others have none."""
    if type(value) is int:
        return int, value.bit_length() < 64, 0 <= value < 2**64
    if type(value) is list:
        return list, frozenset(map(_kind, value))
    return (type(value),)


def refusal_text(refusals: Refusals, count: int) -> str:
    """Describe refused rows: a line per reason with its first row, counted from 0.

    >>> absent = Refusal("missing_column:bid", "`bid` is absent")
    >>> print(refusal_text({0: absent, 1: absent}, 3).splitlines()[1])
      row 0: `bid` is absent (1 more like it)
    """
    rows_by_reason: dict[str, list[int]] = {}
    for row in sorted(refusals):
        rows_by_reason.setdefault(refusals[row].reason, []).append(row)
    lines = [f"{len(refusals):,} of {count:,} rows are refused, as ingestion would refuse them:"]
    for rows in list(rows_by_reason.values())[:SHOWN]:
        like_it = f" ({len(rows) - 1:,} more like it)" if len(rows) > 1 else ""
        lines.append(f"  row {rows[0]}: {refusals[rows[0]].detail}{like_it}")
    if others := sum(map(len, list(rows_by_reason.values())[SHOWN:])):
        lines.append(f"  and {others:,} more for other reasons")
    lines.append(f'Correct them, or have NaN predicted for them: predict(rows, params={{"{ON_BAD_ROWS}": "{NULL}"}})')
    return "\n".join(lines)


def _absent(field: pa.Field, count: int) -> tuple[pa.Array, Refusals]:
    batch, refusals = conform(pa.table({"": pa.nulls(count)}), pa.schema([field]))
    return batch.column(0), refusals


def _column(values: pd.Series, field: pa.Field) -> Taken:
    """One column of the frame in the schema's type."""
    floats = isinstance(values.dtype, np.dtype) and values.dtype.kind == "f"
    nan_is_missing = not (floats and pa.types.is_floating(field.type))  # there `conform` knows what NaN stands for

    def piece(start: int, stop: int) -> pa.Array:
        column = pa.array(values.iloc[start:stop], from_pandas=nan_is_missing)
        return column.cast(pa.string()) if pa.types.is_large_string(column.type) else column  # pandas' texts

    return _in_pieces(len(values), field, piece, lambda row: values.iloc[row])


def _said(value: Any) -> str:
    """
    >>> _said("a\\ud800")[:25], _said(10**30), _said({})
    ('text with half a characte', 'an integer beyond 64 bits', 'dict')
    """
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        return "text with half a character in it (a lone surrogate), and UTF-8 has whole ones"
    if type(value) is int and not -(2**63) <= value < 2**64:
        return "an integer beyond 64 bits"
    return type(value).__name__


def _in_pieces(
    count: int, field: pa.Field, piece: Callable[[int, int], pa.Array], value: Callable[[int], Any]
) -> tuple[pa.Array, Refusals]:
    """A column in the schema's type. Where its values are of several types, it is taken in pieces."""

    def attempt(start: int, stop: int) -> tuple[pa.RecordBatch, Refusals]:
        try:
            column = piece(start, stop)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise ValueError(str(error)) from None
        return conform(pa.table({field.name: column}), pa.schema([field]))

    parts, unreadable = bisect(count, attempt)
    refusals = {start + row: why for start, _, (_, refused) in parts for row, why in refused.items()}
    pieces = [(start, batch.column(0)) for start, _, (batch, _) in parts]
    for row in unreadable:
        refusals[row] = Refusal(f"wrong_type:{field.name}", f"`{field.name}` is {_said(value(row))}, not {field.type}")
        pieces.append((row, pa.nulls(1, field.type)))
    arrays = [array for _, array in sorted(pieces, key=lambda piece: piece[0])]
    return (pa.concat_arrays(arrays) if arrays else pa.nulls(0, field.type)), refusals
