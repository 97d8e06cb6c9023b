"""The columns of a Parquet file after one pass of DuckDB: nulls, range, moments. Distinct values are counted to a few
per cent, and exactly where they are few. (DuckDB's SUMMARIZE would compute quantiles, too, which nobody reads.)"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.data.profile.column import LISTS, ColumnProfile, Kind
from streaming.sources.tables.engine import TableEngine, parquet, quoted
from streaming.sources.tables.in_order import ROW

FEW = 400
"""Up to about so many distinct values are counted exactly."""

SHORT = 1_000_000
"""In files of up to so many rows all are."""

SAMPLED = 2000
SEVERAL = 0.1
"""Share of texts that must hold more than one value."""

_SHOWN = re.compile(r"\S+-[01]( \S+-[01])*")
_WEIGHTED = re.compile(r"[^\s:,;|]+:-?\d+(\.\d+)?([ ,;|][^\s:,;|]+:-?\d+(\.\d+)?)*")
_BETWEEN = re.compile(r"[ ,;|]")
_INTS = re.compile(r"U?(TINY|SMALL|BIG)?INT(EGER)?")


def float_step(column: ColumnProfile) -> int:
    """Spacing of floats of the column's type at its largest value: 1 if every integer is representable.

    >>> [float_step(ColumnProfile("x", kind, 9, 0, 9, 0, 2.0**60)) for kind in ("DOUBLE", "FLOAT", "BIGINT")]
    [256, 137438953472, 1]
    """
    edges = [abs(float(edge)) for edge in (column.low, column.high) if edge is not None]
    bits = {"DOUBLE": 52, "FLOAT": 23}.get(column.type)
    if bits is None or not edges or max(edges) < 1:
        return 1
    return int(2 ** max(0, math.frexp(max(edges))[1] - 1 - bits))


def kind_of(type_: str) -> Kind:
    """
    >>> [kind_of(t) for t in ("UBIGINT", "DECIMAL(9,2)", "VARCHAR", "TIMESTAMP_NS", "INTEGER[]", "STRUCT(a BIGINT)")]
    ['int', 'float', 'text', 'time', 'ints', 'other']
    >>> kind_of("DOUBLE[]"), kind_of("FLOAT[16]")
    ('floats', 'floats')
    """
    if type_.endswith("]"):
        lists: dict[Kind, Kind] = {"int": "ints", "float": "floats", "text": "texts"}
        return lists.get(kind_of(type_[: type_.rindex("[")]), "other")
    if _INTS.fullmatch(type_):
        return "int"
    if type_ in ("FLOAT", "DOUBLE") or type_.startswith("DECIMAL"):
        return "float"
    if type_ == "VARCHAR" or type_.startswith(("ENUM", "UUID")):
        return "text"
    if type_ == "BOOLEAN":
        return "flag"
    return "time" if type_.startswith(("TIMESTAMP", "DATE")) else "other"


def fields(engine: TableEngine, path: Path) -> dict[str, str]:
    """SQL of every column by name; fields of a record count as columns, named like `record_field`."""
    sqls: dict[str, str] = {}

    def add(name: str, sql: str, kind: str) -> None:
        if not kind.startswith("STRUCT(") or kind.endswith("[]"):
            sqls[name if name not in sqls else f"{name}_"] = sql
            return
        for field, inner in engine.types(f"(SELECT unnest({sql}) FROM {parquet(path)})").items():
            add(f"{name}_{field}", f"{sql}.{quoted(field)}", inner)

    for name, kind in engine.types(parquet(path)).items():
        if name != ROW:
            add(name, quoted(name), kind)
    return sqls


@dataclass(frozen=True)
class FileProfile:
    """The columns of a Parquet file, and what else is asked of its rows."""

    engine: TableEngine
    path: Path
    columns: dict[str, ColumnProfile]

    @property
    def rows(self) -> int:
        return max((column.rows for column in self.columns.values()), default=0)

    @property
    def relation(self) -> str:
        return parquet(self.path)

    def ask(self, selected: str, then: str = "") -> tuple[Any, ...]:
        """One row of SQL: `SELECT selected FROM the file then`."""
        return self.engine.row(f"SELECT {selected} FROM {self.relation} {then}")

    def but(self, *names: str) -> FileProfile:
        """The file without some columns."""
        return replace(self, columns={name: column for name, column in self.columns.items() if name not in names})


def profile_file(engine: TableEngine, path: Path) -> FileProfile:
    """Every column of a Parquet file, in its order."""
    sqls = fields(engine, path)
    selected = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in sqls.items())
    types = engine.types(f"(SELECT {selected} FROM {parquet(path)})")
    wanted = [aggregate for name, sql in sqls.items() for aggregate in _aggregates(sql, types[name])]
    rows, *values = engine.row(f"SELECT {', '.join(['count(*)', *wanted])} FROM {parquet(path)}")
    each = len(wanted) // len(sqls)
    columns = {
        name: _column(name, sql, types[name], rows, values[each * place : each * (place + 1)])
        for place, (name, sql) in enumerate(sqls.items())
    }
    counted = {name: _counted(engine, path, column) for name, column in columns.items()}
    return FileProfile(engine, path, _with_forms(engine, path, counted))


def finite(sql: str, type_: str) -> str:
    """SQL of a column's finite values. DuckDB's `isnan` is answered from the statistics of a Parquet file, which
    leave NaN out, and so finds none."""
    kind = kind_of(type_)
    if kind == "float":
        return f"CASE WHEN isfinite({sql}::DOUBLE) THEN {sql} END"
    return f"CASE WHEN isfinite({in_us(sql, type_)}) THEN {sql} END" if kind == "time" else sql


def in_us(sql: str, type_: str) -> str:
    """A time with a zone and in ns as one of a type that DuckDB's functions take."""
    return f"({sql})::TIMESTAMPTZ" if type_ == "TIMESTAMPTZ_NS" else sql


def epoch_ms(sql: str, type_: str) -> str:
    """
    >>> epoch_ms("t", "TIMESTAMP"), epoch_ms("t", "TIMESTAMPTZ_NS")
    ('epoch_ms(t)', 'epoch_ms((t)::TIMESTAMPTZ)')
    """
    return f"epoch_ms({in_us(sql, type_)})"


def _aggregates(sql: str, type_: str) -> list[str]:
    """SQL of the values that `_column` takes: of numbers, of times in ms, or of the lengths of lists."""
    kind = kind_of(type_)
    x = values = "NULL" if kind == "other" else finite(sql, type_)
    if kind == "time":
        x = epoch_ms(values, type_)
    elif kind in (*LISTS, "text"):
        x = "NULL" if kind == "text" else f"len({sql})"
    elif kind == "flag":
        x = f"{sql}::TINYINT"
    infinite = {"float": f"isinf({sql}::DOUBLE)", "time": f"isinf({in_us(sql, type_)})"}.get(kind, "false")
    return [
        f"count({sql})",
        f"count({values})",
        f"approx_count_distinct({values})" if kind not in LISTS else "2" if kind == "floats" else "0",
        f"min({x})",
        f"max({x})",
        f"avg({x}::DOUBLE)",
        f"stddev_pop({x}::DOUBLE)",
        f"count(*) FILTER (WHERE {x} <> floor({x}))" if kind == "float" else "0",
        f"count(*) FILTER (WHERE {infinite})",
        f"coalesce(sum(len({sql}) - list_aggregate({sql}, 'count')), 0)" if kind in LISTS else "0",
    ]


def _column(name: str, sql: str, type_: str, rows: int, values: Sequence[Any]) -> ColumnProfile:
    count, finite_count, distinct, low, high, mean, std, fractions, infinite, inner_nulls = values
    kind = kind_of(type_)
    shortest, longest = (low or 0, high or 0) if kind in LISTS else (0, 0)
    if kind in LISTS:
        low = high = None
    elif kind == "float":
        low, high = (None if edge is None else float(edge) for edge in (low, high))
    nans = count - finite_count - infinite if kind == "float" else 0
    return ColumnProfile(
        name, type_, rows, rows - count + nans, distinct, low, high, kind=kind, sql=sql, mean=mean or 0.0,
        std=std or 0.0, whole=kind == "int" or (kind == "float" and fractions == 0 and low is not None),
        infinite=infinite, nans=nans, shortest=shortest, longest=longest, inner_nulls=int(inner_nulls),
    )  # fmt: skip


def _counted(engine: TableEngine, path: Path, column: ColumnProfile) -> ColumnProfile:
    """A column with few values, or of few rows, counted exactly; what is inside lists is counted."""
    distinct = column.distinct or 0
    if column.kind in ("ints", "texts"):
        edges = "min(x), max(x)" if column.kind == "ints" else "NULL, NULL"
        counted = "count(DISTINCT x)" if column.rows <= SHORT else "approx_count_distinct(x)"
        inside = f"(SELECT unnest({column.sql}) AS x FROM {parquet(path)})"
        distinct, low, high = engine.row(f"SELECT {counted}, {edges} FROM {inside}")
        return replace(column, distinct=distinct, low=low, high=high)
    if column.kind not in ("floats", "other") and (distinct <= FEW or column.rows <= SHORT):
        (distinct,) = engine.row(f"SELECT count(DISTINCT {finite(column.sql, column.type)}) FROM {parquet(path)}")
    return replace(column, distinct=min(distinct, column.rows))


def _with_forms(engine: TableEngine, path: Path, seen: Mapping[str, ColumnProfile]) -> dict[str, ColumnProfile]:
    """Texts, with the form of a sample of them."""
    texts = [column for column in seen.values() if column.kind == "text" and column.distinct]
    if not texts:
        return dict(seen)
    step = max(1, texts[0].rows // SAMPLED)
    sqls = ", ".join(f"{column.sql}::VARCHAR AS {quoted(column.name)}" for column in texts)
    sample = engine.arrow(f"SELECT {sqls} FROM {parquet(path)} WHERE {ROW} % {step} = 0")
    forms = {name: form_of_texts([v for v in sample[name].to_pylist() if v]) for name in sample.column_names}
    return {name: replace(column, form=forms.get(name, "")) for name, column in seen.items()}


def form_of_texts(texts: Collection[str]) -> str:
    """Form of texts with several values: `shown`, ids each with 1 or 0 for clicked or not; `weighted`, ids each with a
    number; a separator; or none.

    >>> [form_of_texts(t) for t in (["Action|Drama", "War"], ["12,55,9"], ["a:0.3,b:0.1"], ["N1-1 N4-0"], ["New York"])]
    ['|', ',', 'weighted', 'shown', '']
    """
    least = max(1, round(SEVERAL * len(texts)))
    if not texts:
        return ""
    enough = sum(bool(_BETWEEN.search(text)) for text in texts) >= least
    for form, pattern in (("shown", _SHOWN), ("weighted", _WEIGHTED)):
        if enough and all(pattern.fullmatch(text) for text in texts):
            return form
    for separator in "|,;":
        several = [text.split(separator) for text in texts if separator in text]
        words = separator == "|" or not any(" " in text for text in texts)
        if len(several) >= least and words and all(map(all, several)):
            return separator
    return ""
