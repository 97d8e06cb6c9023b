"""Rows that a served model is asked about, checked by the rules of ingestion: what is refused on its way into the lake
is refused here, with the same words.

A pandas frame is read as pandas means it: NaN is a missing value. Where a column of floats may not lack one, it is the
number that is not finite.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from exfm.data import FeatureSet
from streaming.errors import BadInput
from streaming.messages import Limits, Refusal, Refusals, RowRules, bisect, conform
from streaming.schema import RowSchema

ROWS = "rows"
"""The key under which a registered model keeps its row schema."""

ON_BAD_ROWS = "on_bad_rows"
RAISE, NULL = "raise", "null"
"""What `predict` does where rows are refused: raise BadInput, or predict NaN for them."""

SHOWN = 5
"""At most this many reasons are named; all refused rows are counted."""


def serving_rules(schema: RowSchema, features: FeatureSet) -> RowRules:
    """The rules of ingestion for the columns that a model reads: its `schema` says what the model takes."""
    limits = Limits(features.index_rows, features.ranges)
    return RowRules("impression", schema, only=features.needs_columns(), limits=limits)


def checked(frame: pd.DataFrame, rules: RowRules) -> tuple[pa.RecordBatch, Refusals]:
    """The rows as ingestion would have them, and which of them it would refuse; cells of those may be null.

    Raises BadInput where one column stands twice in the frame.
    """
    names = list(frame.columns)
    if twice := [name for name in rules.schema.names if names.count(name) > 1]:
        raise BadInput(f"column `{twice[0]}` stands {names.count(twice[0])} times in the rows; give it once")
    arrays, refusals = [], Refusals()
    for field in rules.schema:
        values = frame[field.name] if field.name in names else None
        array, refused = _absent(field, len(frame)) if values is None else _column(values, field)
        arrays.append(array)
        refusals = refused | refusals  # the first column at fault gives a row its reason
    batch = pa.RecordBatch.from_arrays(arrays, schema=rules.schema)
    return batch, rules.check(batch) | refusals


def refusal_text(refusals: Refusals, count: int) -> str:
    """Which rows are refused and why: a line per reason with its first row, counted from 0.

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


def _column(values: pd.Series, field: pa.Field) -> tuple[pa.Array, Refusals]:
    """One column of the frame in the schema's type. Where its values are of several types, it is taken in pieces."""
    floats = isinstance(values.dtype, np.dtype) and values.dtype.kind == "f"
    nan_is_missing = not (floats and pa.types.is_floating(field.type))  # there `conform` knows what NaN stands for

    def attempt(start: int, stop: int) -> tuple[pa.RecordBatch, Refusals]:
        try:
            column = pa.array(values.iloc[start:stop], from_pandas=nan_is_missing)
            if pa.types.is_large_string(column.type):  # what pandas makes of any text
                column = column.cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ValueError(str(error)) from None
        return conform(pa.table({field.name: column}), pa.schema([field]))

    parts, unreadable = bisect(len(values), attempt)
    refusals = {start + row: why for start, _, (_, refused) in parts for row, why in refused.items()}
    pieces = [(start, batch.column(0)) for start, _, (batch, _) in parts]
    for row in unreadable:
        kind = type(values.iloc[row]).__name__
        refusals[row] = Refusal(f"wrong_type:{field.name}", f"`{field.name}` is {kind}, not {field.type}")
        pieces.append((row, pa.nulls(1, field.type)))
    arrays = [array for _, array in sorted(pieces, key=lambda piece: piece[0])]
    return (pa.concat_arrays(arrays) if arrays else pa.nulls(0, field.type)), refusals
