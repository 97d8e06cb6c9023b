"""What a column holds, in a line: type, nulls, smallest and largest value, distinct values, and what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

OF_ONE = {"bad_event_time": "event_time_ms", "bad_vertical": "vertical", "too_many_verticals": "vertical"}
"""Reasons that name no column, and the column that they are about."""


@dataclass
class ColumnSeen:
    """A column of the file or topic, by its name in the schema. `rows` were looked at; `lowest` and `highest` are None
    where its values have no order; `distinct` counts values, those inside lists too. `refused`: values that the column
    as declared does not hold."""

    name: str
    type: str
    rows: int
    nulls: int
    lowest: Any
    highest: Any
    distinct: int | None
    refused: int = 0

    @staticmethod
    def of(name: str, column: pa.ChunkedArray) -> ColumnSeen:
        """
        >>> ColumnSeen.of("age", pa.chunked_array([[30, None, 41, 30]]))
        ColumnSeen(name='age', type='int64', rows=4, nulls=1, lowest=30, highest=41, distinct=2, refused=0)
        """
        missing, values = values_in(column)
        lowest = highest = distinct = None
        try:
            lowest, highest = pc.min_max(values).as_py().values()
            distinct = pc.count_distinct(values, mode="only_valid").as_py()
        except pa.ArrowNotImplementedError:
            pass  # a struct or a map has neither
        return ColumnSeen(name, str(column.type), len(column), missing, lowest, highest, distinct)

    def as_json(self) -> dict[str, Any]:
        """
        >>> ColumnSeen.of("age", pa.chunked_array([[30, None, 41, 30]])).as_json()
        {'name': 'age', 'type': 'int64', 'nulls': 1, 'smallest': 30, 'largest': 41, 'distinct': 2, 'refused': 0}
        """
        return {
            "name": self.name,
            "type": self.type,
            "nulls": self.nulls,
            "smallest": _plain(self.lowest),
            "largest": _plain(self.highest),
            "distinct": self.distinct,
            "refused": self.refused,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ColumnSeen:
        """
        >>> age = ColumnSeen("age", "int64", 4, 1, 30, 41, 2)
        >>> ColumnSeen.from_json(age.as_json() | {"rows": 4}) == age
        True
        """
        edges = value["smallest"], value["largest"]
        seen = (value["name"], value["type"], value["rows"], value["nulls"])
        return ColumnSeen(*seen, *edges, value["distinct"], value["refused"])

    @property
    def null_share(self) -> float:
        return self.nulls / self.rows if self.rows else 0.0


def values_in(column: pa.ChunkedArray) -> tuple[int, pa.ChunkedArray]:
    """How many values are missing, NaN too, and the others; of lists, what is inside them.

    >>> missing, values = values_in(pa.chunked_array([[[1, 2], None, [2]]]))
    >>> missing, values.to_pylist()
    (1, [1, 2, 2])
    """
    kind, missing, values = column.type, column.null_count, column
    if pa.types.is_floating(kind):
        missing = pc.sum(column.is_null(nan_is_null=True)).as_py() or 0
        values = column.filter(pc.is_finite(column).fill_null(False))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=kind.value_type)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return missing, values


def refused_by_column(reasons: Mapping[str, int]) -> Counter[str]:
    """Refused rows by the column that they were refused for.

    >>> dict(refused_by_column({"null:bid": 2, "wrong_type:bid": 1, "bad_event_time": 4, "undecodable": 8}))
    {'bid': 3, 'event_time_ms': 4}
    """
    found = Counter[str]()
    for reason, rows in reasons.items():
        if name := reason.partition(":")[2] or OF_ONE.get(reason):
            found[name] += rows
    return found


def columns_text(columns: Sequence[ColumnSeen], width: int = 80) -> str:
    """
    >>> print(columns_text([ColumnSeen("age", "int64", 4, 1, 30, 41, 2, refused=3)]))
    column  type    null  refused  distinct  range
    age     int64  25.0%        3         2  30 to 41
    """
    return "\n".join(_columns(columns, width))


def _columns(columns: Sequence[ColumnSeen], width: int) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("column", "type", "null", "refused", "distinct", "range")]
    for seen in columns:
        distinct = "" if seen.distinct is None else f"{seen.distinct:,}"
        null = f"{seen.null_share:.1%}" if seen.nulls else ""
        rows.append((seen.name, seen.type, null, f"{seen.refused:,}" if seen.refused else "", distinct, _range(seen)))
    if not any(seen.refused for seen in columns):
        rows = [(*row[:3], *row[4:]) for row in rows]
    widths = [min(24, max(len(row[place]) for row in rows)) for place in range(len(rows[0]) - 1)]
    room = width - sum(widths) - 2 * len(widths)
    for *cells, last in rows:
        cut = [_cut(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
        texts = [f"{cell:{'<' if place < 2 else '>'}{widths[place]}}" for place, cell in enumerate(cut)]
        yield f"{'  '.join(texts)}  {_cut(last, room)}".rstrip()


def _range(seen: ColumnSeen) -> str:
    if seen.lowest is None:
        return ""
    return _short(seen.lowest) if seen.lowest == seen.highest else f"{_short(seen.lowest)} to {_short(seen.highest)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _cut(str(value), 24)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | None) else str(value)
