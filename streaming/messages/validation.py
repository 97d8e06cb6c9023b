"""Validation of rows, column by column.

Types first (`conform`: a column may arrive as another integer width, dictionary-encoded, as large_string…), then
values (`RowRules`). Both name the rows at fault and leave the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.messages.dead_letters import Kind
from streaming.messages.ipc import short_type
from streaming.messages.limits import (
    Limits,
    PlainColumns,
    all_finite,
    as_taken,
    bounds_of,
    has_inner_nulls,
    inside,
    most_values,
    name_hint,
    nan_as_null,
    outside,
    range_words,
    row_sizes,
)
from streaming.messages.times import (
    LATEST_EVENT_TIME_MS,
    is_written_time,
    milliseconds,
    of_zone,
    unit_hint,
    zone_hint,
    zone_of,
)
from streaming.schema import SAMPLE_WEIGHT, RowSchema, is_list, is_text

LONGEST_VERTICAL_BYTES = 64
"""A vertical names a folder of the lake, percent-encoded, so that its length is bounded by the file system."""

T = TypeVar("T")


class Refusal(NamedTuple):
    """Refusal of a row: a short stable reason, and a sentence."""

    reason: str
    detail: str


Refusals = dict[int, Refusal]


class RowRules:
    """The value rules of one kind of record.

    Order of precedence: the columns in schema order; within a column null, not finite, its range, its length; then the
    size of the row. The first broken rule gives a row its reason.

    >>> from streaming.schema import Column, Task
    >>> schema = RowSchema(columns=[Column(name="age", maximum=120)], tasks=[Task(name="ctr", window_s=60)])
    >>> row = {"impression_id": 1, "event_time_ms": 0, "vertical": "feed", "age": 200}
    >>> RowRules("impression", schema).check(pa.RecordBatch.from_pylist([row], schema.impression))
    {0: Refusal(reason='out_of_range:age', detail='`age` is 200; allowed: at most 120')}
    """

    def __init__(
        self,
        kind: Kind,
        schema: RowSchema,
        *,
        only: Collection[str] | None = None,
        optional: Collection[str] = (),
        limits: Limits = Limits(),
    ) -> None:
        """`only`: the columns that records have here, those of as-of features among them; default: all that messages
        of their kind have. `optional`: those of them that may be null or absent, whatever the schema says."""
        self.kind: Kind = kind
        whole: pa.Schema = schema.impression if kind == "impression" else schema.feedback
        if only is not None and kind == "impression":
            whole = schema.admitted
        fields = [field for field in whole if only is None or field.name in only]
        self.schema = pa.schema([field.with_nullable(True) if field.name in optional else field for field in fields])
        columns = schema.feature_columns if kind == "impression" else ()
        self._bounds = {column.name: bounds_of(column, limits) for column in columns}
        self._lengths = {column.name: most for column in columns if (most := most_values(column, limits)) is not None}
        self._exactly = {column.name: column.length for column in columns if column.length is not None}
        self._row_bytes = limits.row_bytes
        self._tasks = pa.array(schema.feedback_tasks, pa.string())
        self._task_names = [task.name for task in schema.tasks]
        self._plain = PlainColumns(self.schema, self._bounds | {"event_time_ms": (0, LATEST_EVENT_TIME_MS)})
        zone = schema.event_time_zone
        self.fields = [of_zone(field, zone) if field.name == "event_time_ms" else field for field in self.schema]
        self._names, self._zoned = self.schema.names, pa.schema(self.fields)
        self._nullable = pa.schema([field.with_nullable(True) for field in self.schema])

    def conform(self, table: pa.Table) -> tuple[pa.RecordBatch, Refusals]:
        """`conform` to these columns, without a conversion if the table already has their types."""
        one = table
        if table.schema.names != self._names:
            try:
                one = table.select(self._names)
            except KeyError:  # one is absent, or stands there twice
                return conform(table, self._zoned)
        same = one.schema.equals(self.schema)
        batches = one.to_batches() if same or one.schema.equals(self._nullable) else []
        if len(batches) != 1 or self._plain.any_nan(batches[0]) or any(map(has_inner_nulls, batches[0].columns)):
            return conform(table, self._zoned)
        batch = batches[0]
        return (batch if same else pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)), {}

    def check(self, batch: pa.RecordBatch) -> Refusals:
        """Find rows that break a rule. `batch` has exactly `self.schema`."""
        refusals: Refusals = {}
        for place in self._plain.suspects(batch):
            field, column = self.schema.field(place), batch.column(place)
            for broken, reason, allowed in self._broken(field, column):
                for row in np.flatnonzero(broken.to_numpy(zero_copy_only=False)).tolist():
                    if row not in refusals:
                        value = _short(column[row].as_py())
                        hint = unit_hint(column[row].as_py()) if reason == "bad_event_time" else ""
                        hint = (
                            name_hint(column[row].as_py(), self._tasks.to_pylist())
                            if reason == "unknown_task"
                            else hint
                        )
                        reason_here = f"{reason}:{value[1:-1]}" if reason == "unknown_task" else reason
                        refusals[row] = Refusal(reason_here, f"`{field.name}` is {value}{allowed}{hint}")
        return self._too_large(batch) | refusals

    def _too_large(self, batch: pa.RecordBatch) -> Refusals:
        if self._row_bytes is None or batch.nbytes <= self._row_bytes:
            return {}
        sizes = row_sizes(batch)
        words = f"bytes of texts and lists; {self._row_bytes:,} fit into the examples topic (kafka.max_message_bytes)"
        return {
            row: Refusal("row_too_large", f"the row has {sizes[row]:,} {words}")
            for row in np.flatnonzero(sizes > self._row_bytes).tolist()
        }

    def _broken(self, field: pa.Field, column: pa.Array) -> Iterator[tuple[pa.Array, str, str]]:
        name = field.name
        if column.null_count and not field.nullable:
            yield column.is_null(), f"null:{name}", f"; the column is not nullable{if_nullable(field)}"
        if name == "event_time_ms":
            if not inside(column, 0, LATEST_EVENT_TIME_MS):
                yield outside(column, 0, LATEST_EVENT_TIME_MS), "bad_event_time", "; milliseconds since 1970 needed"
        elif name == "vertical" and self.kind == "impression":
            length = pc.binary_length(column)
            if not inside(length, 1, LONGEST_VERTICAL_BYTES):
                allowed = f"; 1 to {LONGEST_VERTICAL_BYTES} bytes allowed"
                yield outside(length, 1, LONGEST_VERTICAL_BYTES), "bad_vertical", allowed
        elif name == "task" and self.kind == "feedback":
            valid = pc.is_in(column, self._tasks)
            if not pc.all(valid).as_py():
                unknown = pc.and_(pc.invert(valid), column.is_valid())
                yield unknown, "unknown_task", f"; tasks: {', '.join(self._task_names)}"
        elif pa.types.is_floating(column.type):
            if not all_finite(column):
                finite = pc.is_finite(column)
                allowed = f"; a finite number needed{'' if field.nullable else if_nullable(field)}"
                yield pc.invert(finite).fill_null(False), f"not_finite:{name}", allowed
            low, high = self._bounds.get(name, (None, None))
            if not inside(column, low, high):
                yield outside(column, low, high), f"out_of_range:{name}", f"; allowed: {range_words(low, high)}"
        else:
            yield from self._broken_integers(name, column)
            yield from self._wrong_length(name, column)

    def _broken_integers(self, name: str, column: pa.Array) -> Iterator[tuple[pa.Array, str, str]]:
        """Integers, and what is inside lists."""
        low, high = self._bounds.get(name, (None, None))
        values, rows = column, None
        if pa.types.is_list(column.type):
            values = column.flatten()
            if values.null_count or low is not None or high is not None:
                rows = pc.list_parent_indices(column)
            if values.null_count:
                yield _of_rows(values.is_null(), rows, len(column)), f"null:{name}", "; each value has its place"
            if pa.types.is_floating(values.type) and not all_finite(values):
                wrong = pc.invert(pc.is_finite(values)).fill_null(False)
                broken = _of_rows(wrong, pc.list_parent_indices(column), len(column))
                yield broken, f"not_finite:{name}", "; finite numbers needed"
        if (low is not None or high is not None) and not inside(values, low, high):
            broken = outside(values, low, high)
            yield (
                broken if rows is None else _of_rows(broken, rows, len(column)),
                f"out_of_range:{name}",
                f"; allowed: {range_words(low, high)}",
            )

    def _wrong_length(self, name: str, column: pa.Array) -> Iterator[tuple[pa.Array, str, str]]:
        if (exactly := self._exactly.get(name)) is not None:
            lengths = pc.list_value_length(column)
            if not inside(lengths, exactly, exactly):
                needed = f"; a list of {exactly:,} values is needed"
                yield outside(lengths, exactly, exactly), f"wrong_length:{name}", needed
            return
        most = self._lengths.get(name)
        if most is None or len(column.values) <= most:
            return
        lengths = pc.list_value_length(column)
        if not inside(lengths, None, most):
            allowed = f"; a list of at most {most:,} values is allowed"
            yield outside(lengths, None, most), f"too_long:{name}", allowed


def conform(table: pa.Table, schema: pa.Schema) -> tuple[pa.RecordBatch, Refusals]:
    """Select and convert the columns of `schema` from a table with possibly more columns, in another order or width.

    Integers of any width become int64; whole floats and decimals too, and true and false 1 and 0; one beyond int64 is
    refused. Unsigned integers become their digits in a column of texts. Numbers become float32 (rounded). Dictionaries
    are decoded, large_string and string_view become string. `event_time_ms` may be a timestamp, a date or ISO 8601
    text (times.py), in its field's zone (`of_zone`). NaN in a nullable column is null, a null inside a list of ids or
    texts is left out, and a nullable column may be absent: nulls. Anything else is a refusal, `missing_column:x`,
    `out_of_range:x` or `wrong_type:x`, of each row it touches; such cells are null in the batch.
    Raises ValueError for a duplicate column in the table.

    >>> read = pa.table({"id": pa.array([5], pa.uint64()), "score": [float("nan")], "seen": [True]})
    >>> wanted = [("id", pa.int64()), pa.field("score", pa.float32(), nullable=True), ("seen", pa.int64())]
    >>> conform(read, pa.schema(wanted))[0].to_pylist()
    [{'id': 5, 'score': None, 'seen': 1}]
    """
    refusals: Refusals = {}
    arrays = []
    for field in schema:
        places = table.schema.get_all_field_indices(field.name)
        if len(places) > 1:
            raise ValueError(f"column `{field.name}` stands {len(places)} times in the message")
        if not places:
            arrays.append(pa.nulls(table.num_rows, field.type))
            if not field.nullable:
                _refuse(refusals, range(table.num_rows), f"missing_column:{field.name}", f"`{field.name}` is absent")
            continue
        column, beyond = _without_beyond(as_taken(_one_array(table.column(places[0])), field), field)
        array, failed = (column, []) if column.type == field.type else _cast(column, field)
        arrays.append(nan_as_null(array, field))
        setting = "rows.impression_id" if field.name == "impression_id" else "type"
        allowed = f"; int64 holds at most 2^63 - 1; declared as text (`{setting}: string`) it is taken"
        for row, value in beyond.items():
            refusals.setdefault(row, Refusal(f"out_of_range:{field.name}", f"`{field.name}` is {value}{allowed}"))
        for row in failed:
            hint = zone_hint(column[row].as_py()) if field.name == "event_time_ms" else ""
            detail = f"`{field.name}` is {short_type(column.type)}, not {field.type}{hint}"
            _refuse(refusals, [row], f"wrong_type:{field.name}", detail)
    return pa.RecordBatch.from_arrays(arrays, schema=schema), refusals


def bisect(count: int, attempt: Callable[[int, int], T]) -> tuple[list[tuple[int, int, T]], list[int]]:
    """Bisect failures: try `attempt(start, stop)` on all of `range(count)`; if it raises ValueError, on halves.

    Returns the parts that worked, in order, and the single indices that did not. With k bad ones among N it costs
    about 2·k·log2(N) attempts, so that a rare bad one does not make a vectorised attempt row by row.

    >>> def even_sum(start, stop):
    ...     if 5 in range(start, stop): raise ValueError
    ...     return sum(range(start, stop))
    >>> bisect(8, even_sum)
    ([(0, 4, 6), (4, 5, 4), (6, 8, 13)], [5])
    """
    good: list[tuple[int, int, T]] = []
    bad: list[int] = []
    ranges = [(0, count)] if count else []
    while ranges:
        start, stop = ranges.pop()
        try:
            good.append((start, stop, attempt(start, stop)))
        except ValueError:
            if stop - start == 1:
                bad.append(start)
            else:
                middle = (start + stop) // 2
                ranges += [(middle, stop), (start, middle)]
    return good, bad


def kept_rows(count: int, refusals: Refusals) -> np.ndarray:
    """Indices of `range(count)` that are not refused."""
    keep = np.ones(count, dtype=bool)
    keep[list(refusals)] = False
    return np.flatnonzero(keep)


def without_rows(batch: pa.RecordBatch, refusals: Refusals) -> pa.RecordBatch:
    """`batch` without the refused rows."""
    return batch.take(pa.array(kept_rows(batch.num_rows, refusals))) if refusals else batch


def convertible(source: pa.DataType, field: pa.Field) -> bool:
    """True if `conform` can convert type `source` to the column `field`, provided its values allow it.

    >>> price = pa.field("price", pa.float32())
    >>> [convertible(kind, price) for kind in (pa.int16(), pa.decimal128(9, 2), pa.bool_(), pa.string())]
    [True, True, True, False]
    """
    if pa.types.is_dictionary(source):
        source = source.value_type
    if pa.types.is_null(source) or source == field.type:
        return True
    return _is_written_event_time(source, field) or _convertible(source, field.type)


def declarable(source: pa.DataType) -> str | None:
    """Config type for a column that a file or a message has as `source`; None if unsupported.

    >>> [declarable(kind) for kind in (pa.uint64(), pa.float64(), pa.large_string(), pa.list_(pa.int32()), pa.date32())]
    ['int64', 'float32', 'string', 'list<int64>', None]
    >>> declarable(pa.list_(pa.float64()))
    'list<float32>'
    """
    if pa.types.is_dictionary(source):
        source = source.value_type
    one = source.value_type if is_list(source) else source
    floats = pa.types.is_floating(one) or pa.types.is_decimal(one)
    number, of = ("float32", pa.float32()) if floats else ("int64", pa.int64())
    kinds = {number: of, "string": pa.string(), f"list<{number}>": pa.list_(of), "list<string>": pa.list_(pa.string())}
    return next((name for name, kind in kinds.items() if _convertible(source, kind)), None)


def _is_written_event_time(source: pa.DataType, field: pa.Field) -> bool:
    return bool(field.name == "event_time_ms" and is_written_time(source) and not pa.types.is_duration(source))


def _cast(column: pa.Array, field: pa.Field) -> tuple[pa.Array, list[int]]:
    target = field.type
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), target), []
    if not convertible(column.type, field):
        return pa.nulls(len(column), target), list(range(len(column)))
    options = pc.CastOptions(
        target_type=target,
        allow_float_truncate=pa.types.is_floating(target.value_type if pa.types.is_list(target) else target),
    )

    def cast(start: int, stop: int) -> pa.Array:
        part = column.slice(start, stop - start)
        if _is_written_event_time(part.type, field):
            return milliseconds(part, "ms", zone_of(field))
        if pa.types.is_nested(part.type):
            part = part.take(pa.array(range(len(part)), pa.int32()))  # a slice of lists is cast with all others' values
        return pc.cast(part, options=options)

    good, bad = bisect(len(column), cast)
    if not bad:
        return (good[0][2] if good else pa.nulls(0, target)), []
    parts: list[tuple[int, Any]] = [(start, array) for start, _, array in good]
    parts += [(row, pa.nulls(1, target)) for row in bad]
    return pa.concat_arrays([array for _, array in sorted(parts, key=lambda part: part[0])]), bad


def _without_beyond(column: pa.Array, field: pa.Field) -> tuple[pa.Array, dict[int, int]]:
    """`column` with nulls for unsigned integers that int64 does not hold; these, by row."""
    if not (pa.types.is_uint64(column.type) and pa.types.is_int64(field.type)):
        return column, {}
    beyond = pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())).fill_null(False)
    rows = np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist()
    return (pc.if_else(beyond, None, column) if rows else column), {row: column[row].as_py() for row in rows}


def _convertible(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_list(target):
        if not is_list(source):
            return False
        return pa.types.is_null(source.value_type) or _convertible(source.value_type, target.value_type)  # [] has none
    if pa.types.is_string(target):
        return is_text(source) or pa.types.is_uint64(source)
    numbers = pa.types.is_integer(source) or pa.types.is_floating(source) or pa.types.is_decimal(source)
    return numbers or pa.types.is_boolean(source)


def if_nullable(field: pa.Field) -> str:
    """Hint about rows without a float: whether declaring the column nullable would accept them."""
    if not pa.types.is_floating(field.type) or field.name == SAMPLE_WEIGHT:
        return ""
    return ": declare it `nullable: true`, and such rows are kept (null in the lake, 0 to the models)"


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if not column.num_chunks:
        return pa.array([], column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.unify_dictionaries().chunks)


def _refuse(refusals: Refusals, rows: list[int] | range, reason: str, detail: str) -> None:
    for row in rows:
        refusals.setdefault(row, Refusal(reason, detail))


def _of_rows(broken_values: pa.Array, rows: pa.Array, count: int) -> pa.Array:
    mask = np.zeros(count, dtype=bool)
    mask[rows.filter(broken_values).to_numpy()] = True
    return pa.array(mask)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 66 else text[:62] + "..." + text[-1]
