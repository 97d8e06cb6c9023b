"""Parse a prediction request.

    application/json                        {"rows": [{"user_id": 1, "ad_id": 7}, …]}
                                            {"columns": {"user_id": [1, 1], "ad_id": [7, 8]}}
                                            either with "context": {"user_id": 1}, columns that all rows share
    application/vnd.apache.arrow.stream     an Arrow IPC stream

Nothing is read by the model's schema here: ingestion's rules say later which rows can be asked about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.served_rows import TableColumns
from streaming.messages.ipc import read_ipc
from streaming.messages.json_text import json_of

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
AS_JSON = {JSON, "application/x-www-form-urlencoded"}
"""What is read as JSON: the second is what curl says of any body unless it is given another name."""


MOST_COLUMNS = 2000


class Unreadable(Exception):
    """An invalid request body, with an explanation."""

    def __init__(self, why: str) -> None:
        super().__init__(why.encode(errors="replace").decode())  # a key may be half a character


class PredictionRequest(NamedTuple):
    """A request for `size` rows: columns as sent, and values shared by all rows."""

    columns: Mapping[str, list[Any] | pa.ChunkedArray]
    context: Mapping[str, Any]
    size: int

    def at(self, time_ms: int) -> PredictionRequest:
        """The same rows with `time_ms` as the default event time.

        >>> PredictionRequest({}, {"user": 3}, 2).at(1_700_000_000_000).context
        {'user': 3, 'event_time_ms': 1700000000000}
        """
        said = "event_time_ms" in self.columns or "event_time_ms" in self.context
        return self if said else self._replace(context={**self.context, "event_time_ms": time_ms})

    def with_columns(self, more: Mapping[str, pa.Array]) -> PredictionRequest:
        """The same rows with these columns too.

        >>> PredictionRequest({"user": [3, 4]}, {}, 2).with_columns({"rate": pa.array([0.1, 0.2])}).columns["rate"][1]
        <pyarrow.DoubleScalar: 0.2>
        """
        if isinstance(self.columns, TableColumns):
            table = self.columns.table
            for name, values in more.items():
                table = table.append_column(name, values)
            return self._replace(columns=TableColumns(table))
        return self._replace(columns={**self.columns, **{name: pa.chunked_array([v]) for name, v in more.items()}})


def parse_request(body: bytes, content_type: str, *, only: Collection[str], max_rows: int) -> PredictionRequest:
    """Parse the rows of a request, restricted to the columns `only`. Raises Unreadable.

    >>> parse_request(b'{"context": {"user": 3}, "columns": {"ad": [7, 8]}}', JSON, only={"user", "ad"}, max_rows=10)
    PredictionRequest(columns={'ad': [7, 8]}, context={'user': 3}, size=2)
    """
    kind = content_type.partition(";")[0].strip().lower() or JSON
    if kind != ARROW and kind not in AS_JSON:
        raise Unreadable(f"the body is {kind}; send {JSON} or {ARROW}")
    return _of_arrow(body, only, max_rows) if kind == ARROW else _of_json(body, only, max_rows)


def _few_enough(rows: int, max_rows: int) -> None:
    if rows > max_rows:
        raise Unreadable(f"the request has {rows:,} rows, and {max_rows:,} are allowed; send several requests")


def _of_arrow(body: bytes, only: Collection[str], max_rows: int) -> PredictionRequest:
    try:
        table = read_ipc(body, max(len(body), 1), _narrow_enough)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise Unreadable(f"the body is no Arrow IPC stream: {error}") from None
    _few_enough(table.num_rows, max_rows)
    names = table.schema.names
    if names != only:
        counts = Counter(names)
        if twice := [name for name in only if counts[name] > 1]:
            raise Unreadable(f"column `{twice[0]}` stands {counts[twice[0]]} times in the body; give it once")
        table = table.select([name for name in only if name in counts])
    return PredictionRequest(TableColumns(table), {}, table.num_rows)


def _narrow_enough(schema: pa.Schema) -> None:
    if len(schema) > MOST_COLUMNS:
        raise Unreadable(
            f"the body has {len(schema):,} columns, and {MOST_COLUMNS:,} are allowed; send those of the model"
        )


def _of_json(body: bytes, only: Collection[str], max_rows: int) -> PredictionRequest:
    try:
        value = json_of(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict) or ("rows" in value) == ("columns" in value):
        raise Unreadable('the body is a JSON object with either "rows", a list of objects, or "columns", lists by name')
    if unknown := sorted(value.keys() - {"rows", "columns", "context"}):
        raise Unreadable(f'the body has "{unknown[0]}"; it may have "rows" or "columns", and "context"')
    context = value.get("context", {})
    if not isinstance(context, dict):
        raise Unreadable('"context" is an object: the value of each column that all rows share')
    named = value.get("rows", value.get("columns"))
    columns, count = _of_rows(named, only, max_rows) if "rows" in value else _of_columns(named, max_rows)
    if twice := sorted(context.keys() & columns.keys()):
        raise Unreadable(f'`{twice[0]}` stands in "context" and in the rows; give it once')
    return PredictionRequest(columns, context, count)


def _of_rows(rows: Any, only: Collection[str], max_rows: int) -> tuple[dict[str, list[Any]], int]:
    if not isinstance(rows, list) or not set(map(type, rows)) <= {dict}:
        raise Unreadable('"rows" is a list of objects, one for each row')
    _few_enough(len(rows), max_rows)
    if len(set(map(len, rows))) == 1 and rows[0]:
        with suppress(KeyError):  # all have the same names: all columns are cut in one pass
            columns = dict(zip(rows[0], zip(*map(_row_of(rows[0]), rows), strict=True), strict=True))
            return {name: list(values) for name, values in columns.items() if name in only}, len(rows)
    return {name: [row.get(name) for row in rows] for name in only if any(name in row for row in rows)}, len(rows)


def _row_of(names: Collection[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """The values of these names. Raises KeyError where one is absent."""
    get = itemgetter(*names)
    return get if len(names) > 1 else lambda row: (get(row),)


def _of_columns(columns: Any, max_rows: int) -> tuple[Mapping[str, list[Any]], int]:
    if not isinstance(columns, dict) or not all(isinstance(values, list) for values in columns.values()):
        raise Unreadable('"columns" is an object with a list of values for each column')
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"`{name}` {length}" for name, length in list(lengths.items())[:8])
        raise Unreadable(f"the columns are not of one length: {shown}")
    count = next(iter(lengths.values()), 0)
    _few_enough(count, max_rows)
    return columns, count
