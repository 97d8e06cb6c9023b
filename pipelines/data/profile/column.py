"""A column of data: type, nulls, smallest and largest value, distinct values, what was refused; and it in a line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["int", "float", "text", "flag", "time", "ints", "floats", "texts", "other"]
LISTS = ("ints", "floats", "texts")
OF_ONE = {"bad_event_time": "event_time_ms", "bad_vertical": "vertical", "too_many_verticals": "vertical"}
"""Reasons that name no column, and the column that they are about."""


@dataclass(frozen=True)
class ColumnProfile:
    """A column's type, nulls, range and distinct values. `nulls` counts NaN, too; `low` and `high` are None where
    values have no order; `distinct` counts what is inside lists. `refused`: values that the column as declared does not
    hold.

    Only of a file (`profile_file`): `sql`, what reads the column; `low` and `high` are numbers (times: ms since 1970);
    `whole`: all its numbers are. `shortest`, `longest`: lengths of lists; `inner_nulls`: nulls inside lists. `form`:
    how texts hold several values, as `form_of_texts` has it."""

    name: str
    type: str
    rows: int
    nulls: int
    distinct: int | None
    low: Any = None
    high: Any = None
    refused: int = 0
    kind: Kind = "other"
    sql: str = ""
    mean: float = 0.0
    std: float = 0.0
    whole: bool = False
    infinite: int = 0
    nans: int = 0
    shortest: int = 0
    longest: int = 0
    inner_nulls: int = 0
    form: str = ""

    @staticmethod
    def of(name: str, column: pa.ChunkedArray) -> ColumnProfile:
        """
        >>> ColumnProfile.of("age", pa.chunked_array([[30, None, 41, 30]])).as_json()
        {'name': 'age', 'type': 'int64', 'nulls': 1, 'smallest': 30, 'largest': 41, 'distinct': 2, 'refused': 0}
        """
        missing, values = values_in(column)
        low = high = distinct = None
        try:
            low, high = pc.min_max(values).as_py().values()
            distinct = pc.count_distinct(values, mode="only_valid").as_py()
        except pa.ArrowNotImplementedError:
            pass  # a struct or a map has neither
        return ColumnProfile(name, str(column.type), len(column), missing, distinct, low, high)

    def as_json(self) -> dict[str, Any]:
        seen = {"nulls": self.nulls, "smallest": _plain(self.low), "largest": _plain(self.high)}
        return {"name": self.name, "type": self.type} | seen | {"distinct": self.distinct, "refused": self.refused}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> ColumnProfile:
        """
        >>> age = ColumnProfile("age", "int64", 4, 1, 2, 30, 41)
        >>> ColumnProfile.from_json(age.as_json() | {"rows": 4}) == age
        True
        """
        names = ("name", "type", "rows", "nulls", "distinct", "smallest", "largest", "refused")
        return ColumnProfile(*(value[name] for name in names))

    @property
    def null_share(self) -> float:
        return self.nulls / self.rows if self.rows else 0.0

    @property
    def rows_each(self) -> float:
        """Rows for each value, on average."""
        return (self.rows - self.nulls) / max(1, self.distinct or 0)

    @property
    def words(self) -> frozenset[str]:
        """The parts of its name, in small letters.

        >>> sorted(ColumnProfile("userID_v2", "BIGINT", 1, 0, 1).words)
        ['2', 'id', 'user', 'v']
        """
        apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name)
        return frozenset(re.findall(r"[a-z]+|\d+", apart.lower()))

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "float")


def values_in(column: pa.ChunkedArray) -> tuple[int, pa.ChunkedArray]:
    """Number of missing values, including NaN, and the others; for lists, their elements.

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
    rows = Counter[str]()
    for reason, count in reasons.items():
        if name := reason.partition(":")[2] or OF_ONE.get(reason):
            rows[name] += count
    return rows


def columns_text(columns: Sequence[ColumnProfile], width: int = 80) -> str:
    """
    >>> print(columns_text([ColumnProfile("age", "int64", 4, 1, 2, 30, 41, refused=3)]))
    column  type    null  refused  distinct  range
    age     int64  25.0%        3         2  30 to 41
    """
    return "\n".join(_lines(columns, width))


def _lines(columns: Sequence[ColumnProfile], width: int) -> Iterator[str]:
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


def _range(seen: ColumnProfile) -> str:
    if seen.low is None:
        return ""
    return _short(seen.low) if seen.low == seen.high else f"{_short(seen.low)} to {_short(seen.high)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _cut(str(value), 24)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | None) else str(value)
