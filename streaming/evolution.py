"""Schema evolution of a running stream: the supported changes, and earlier rows under today's schema.

    a column is added                 it must be nullable: rows from before have null
    a column disappears               it stays declared and becomes nullable: null from then on
    an integer, a number widens       `int64` and `float32` hold every width that messages may have
    bounds widen                      `minimum`, `maximum`, `max_length`: rows of before fulfil them too
    a vertical, a string is new       no change: verticals and strings are values

Everything else changes what stored rows mean, and is refused: another type, tighter bounds, a nullable column that
would need values, tasks and ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pyarrow as pa

from streaming.errors import BadInput
from streaming.schema import SAMPLE_WEIGHT, Column, RowSchema

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def schema_changes(before: RowSchema, now: RowSchema) -> list[str]:
    """Describe how rows of `before` change under `now`, a line for each column that differs; empty if none does.

    Raises BadInput for a change that there is no rule for, with what was, what is wanted, and what to do.

    >>> before = RowSchema(columns=[Column(name="ad")], tasks=[{"name": "ctr", "window_s": 60}])
    >>> coupon = Column(name="coupon", type="string", nullable=True)
    >>> schema_changes(before, before.model_copy(update={"columns": (*before.columns, coupon)}))
    ['column `coupon` (string) is added: null in rows from before']
    >>> schema_changes(before, before.model_copy(update={"columns": (coupon,)}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    streaming.errors.BadInput: column `ad` (int64) is gone; rows of before have it: declare it `nullable: true`, ...
    """
    for what, was, wanted in (
        ("impression_id", before.impression_id, now.impression_id),
        ("tasks", before.tasks, now.tasks),
        ("asof", before.asof, now.asof),
    ):
        if was != wanted:
            raise BadInput(
                f"rows.{what} was {_short(was)}, is {_short(wanted)}: no rule continues a stream; put it back"
            )
    had = {column.name: column for column in before.columns}
    has = {column.name: column for column in now.columns}
    lines: list[str] = []
    for name, column in had.items():
        if name not in has:
            raise BadInput(
                f"column `{name}` ({column.type}) is gone; rows of before have it: declare it `nullable: true`, and "
                "its values are null from the moment that messages lack it"
            )
        lines += _changed(column, has[name])
    for name, column in has.items():
        if name in had:
            continue
        if not column.nullable:
            needed = "a weight for every row, so it is there from the first row or not at all"
            way = needed if name == SAMPLE_WEIGHT else "rows from before have no value: declare it `nullable: true`"
            raise BadInput(f"column `{name}` ({column.type}) is added; {way}")
        lines.append(f"column `{name}` ({column.type}) is added: null in rows from before")
    return lines


def _changed(was: Column, now: Column) -> Iterator[str]:
    name = was.name
    if was.type != now.type:
        raise BadInput(
            f"column `{name}` was {was.type}, is {now.type}: stored rows would mean something else; put {was.type} "
            "back (int64 takes integers of every width, float32 numbers of every width), or send the new values under "
            "a name of their own"
        )
    if was.nullable and not now.nullable:
        raise BadInput(f"column `{name}` was nullable, and rows of before may lack it: leave `nullable: true`")
    for bound, tighter in _bounds(was, now):
        if tighter:
            raise BadInput(
                f"column `{name}`: {bound} was {getattr(was, bound)}, is {getattr(now, bound)}; rows of before may be "
                "outside: bounds widen, they do not narrow"
            )
        yield f"column `{name}`: {bound} was {getattr(was, bound)}, is {getattr(now, bound)}"
    if now.nullable and not was.nullable:
        yield f"column `{name}` may be null: messages may lack it from now on"


def _bounds(was: Column, now: Column) -> Iterator[tuple[str, bool]]:
    """Bounds that differ, and whether they are tighter."""
    for bound, sign in (("minimum", -1), ("maximum", 1), ("max_length", 1)):
        before, after = getattr(was, bound), getattr(now, bound)
        if before != after:
            yield bound, after is not None and (before is None or sign * after < sign * before)


def filled(rows: Rows, schema: pa.Schema) -> Rows:
    """`rows` with exactly the columns of `schema`, in its order; missing nullable columns are null. Raises ValueError
    where another column is missing, or a type differs.

    >>> filled(pa.table({"b": [1], "c": [2]}), pa.schema([("a", pa.string()), ("b", pa.int64())])).to_pylist()
    [{'a': None, 'b': 1}]
    """
    if rows.schema.names == schema.names and rows.schema.types == schema.types:
        return rows
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0 and not field.nullable:
            raise ValueError(f"`{field.name}` is missing")
        if at >= 0 and rows.schema.field(at).type != field.type:
            raise ValueError(f"`{field.name}` is {rows.schema.field(at).type}, not {field.type}")
        columns.append(pa.nulls(rows.num_rows, field.type) if at < 0 else rows.column(at))
    kind = pa.Table if isinstance(rows, pa.Table) else pa.RecordBatch
    return kind.from_arrays(columns, schema=schema)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"
