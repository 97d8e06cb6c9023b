"""What is known of every column after one pass: nulls, values, range. Distinct values are counted to a few per cent,
and exactly where they are few."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from streaming.sources.tables.engine import Engine, parquet, quoted
from streaming.sources.tables.in_order import ROW

Kind = Literal["int", "float", "text", "flag", "time", "ints", "floats", "texts", "other"]
FEW = 400
"""Up to about so many distinct values are counted exactly."""

SHORT = 1_000_000
"""In files of up to so many rows all are."""

SAMPLED = 2000
SEVERAL = 0.1
"""Of texts, the share that must hold more than one value."""

_SHOWN = re.compile(r"\S+-[01]( \S+-[01])*")
_WEIGHTED = re.compile(r"[^\s:,;|]+:-?\d+(\.\d+)?([ ,;|][^\s:,;|]+:-?\d+(\.\d+)?)*")
_BETWEEN = re.compile(r"[ ,;|]")
_INTS = re.compile(r"U?(TINY|SMALL|BIG)?INT(EGER)?")


@dataclass(frozen=True)
class Seen:
    """A column by its name, and `sql`, what reads it. `low` and `high` are numbers (times: ms since 1970); `whole`: all
    its numbers are. Of lists, `distinct` counts what is inside; `shortest` and `longest` are the
    lengths of these (the former of floats alone). `nulls` holds the `nans`, too; `inner_nulls`: those inside lists.
    `form`: of texts that hold several values, as `form_of_texts` has it."""

    name: str
    sql: str
    type: str
    kind: Kind
    rows: int
    nulls: int
    distinct: int
    low: float | int | None = None
    high: float | int | None = None
    mean: float = 0.0
    std: float = 0.0
    whole: bool = False
    infinite: int = 0
    longest: int = 0
    shortest: int = 0
    nans: int = 0
    inner_nulls: int = 0
    form: str = ""

    @property
    def rows_each(self) -> float:
        return (self.rows - self.nulls) / max(1, self.distinct)

    @property
    def words(self) -> frozenset[str]:
        """
        >>> sorted(Seen("userId_v2", "", "BIGINT", "int", 1, 0, 1).words)
        ['2', 'id', 'user', 'v']
        """
        return words_of(self.name)

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "float")


def words_of(name: str) -> frozenset[str]:
    """The parts of a name, in small letters.

    >>> sorted(words_of("userID")), sorted(words_of("click_time.ms"))
    (['id', 'user'], ['click', 'ms', 'time'])
    """
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return frozenset(re.findall(r"[a-z]+|\d+", apart.lower()))


def float_step(column: Seen) -> int:
    """How far apart floats of the column's type stand at its largest value: 1 where every whole number is one.

    >>> [float_step(Seen("x", "", kind, "float", 9, 0, 9, 0, 2.0**60)) for kind in ("DOUBLE", "FLOAT", "BIGINT")]
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


def fields(engine: Engine, path: Path) -> dict[str, str]:
    """Name -> SQL of every column; those of a record by themselves, as `record_field`."""
    found: dict[str, str] = {}

    def add(name: str, sql: str, kind: str) -> None:
        if not kind.startswith("STRUCT(") or kind.endswith("[]"):
            found[name if name not in found else f"{name}_"] = sql
            return
        for field, inner in engine.types(f"(SELECT unnest({sql}) FROM {parquet(path)})").items():
            add(f"{name}_{field}", f"{sql}.{quoted(field)}", inner)

    for name, kind in engine.types(parquet(path)).items():
        if name != ROW:
            add(name, quoted(name), kind)
    return found


def look(engine: Engine, path: Path) -> dict[str, Seen]:
    """Every column of a Parquet file, in its order."""
    sqls = fields(engine, path)
    selected = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in sqls.items())
    types = engine.types(f"(SELECT {selected} FROM {parquet(path)})")
    wanted = ["count(*)"]
    for name, sql in sqls.items():
        wanted += _aggregates(sql, types[name])
    values = iter(engine.row(f"SELECT {', '.join(wanted)} FROM {parquet(path)}"))
    rows = next(values)
    seen = {name: _seen(name, sql, types[name], rows, values) for name, sql in sqls.items()}
    return _with_forms(engine, path, _exactly(engine, path, seen))


def finite(sql: str, type_: str) -> str:
    """A column's values without NaN and what is infinite, as SQL. DuckDB's `isnan` is answered from the statistics of a
    Parquet file, which leave NaN out, and so finds none."""
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


def _aggregates(sql: str, type_: str) -> Iterator[str]:
    """The nine values that `_seen` takes."""
    kind = kind_of(type_)
    if kind in ("ints", "floats", "texts"):
        yield f"count({sql})"
        yield "2" if kind == "floats" else "0"  # of what is inside, few are equal
        yield from [f"min(len({sql}))" if kind == "floats" else "NULL", "NULL"]
        yield f"avg(len({sql}))"
        yield "0"
        yield "0"
        yield f"max(len({sql}))"
        yield f"coalesce(sum(len({sql}) - list_aggregate({sql}, 'count')), 0)"
        return
    if kind == "other":
        yield from (f"count({sql})", "0", "NULL", "NULL", "0", "0", "0", "0", "0")
        return
    x = finite(sql, type_)
    yield f"count({sql})"
    yield f"approx_count_distinct({x})"
    if kind == "time":
        yield from (epoch_ms(f"min({x})", type_), epoch_ms(f"max({x})", type_))
    elif kind == "text":
        yield from ("NULL", "NULL")
    else:
        yield from (f"min({x})", f"max({x})")
    number = kind in ("int", "float")
    yield f"avg({x}::DOUBLE)" if number else "0"
    yield f"stddev_pop({x}::DOUBLE)" if number else "0"
    yield f"count_if({x} <> floor({x}))" if kind == "float" else "0"
    number_or_time = in_us(sql, type_) if kind == "time" else f"{sql}::DOUBLE"
    yield f"count_if(isinf({number_or_time}))" if kind in ("float", "time") else "0"
    yield f"count({sql}) - count({x}) - count_if(isinf({sql}::DOUBLE))" if kind == "float" else "0"


def _seen(name: str, sql: str, type_: str, rows: int, values: Iterator[Any]) -> Seen:
    count, distinct, low, high, mean, std, fractions, last, missing = (next(values) for _ in range(9))
    kind = kind_of(type_)
    lists = kind in ("ints", "floats", "texts")
    nans, inner_nulls = (0, int(missing)) if lists else (missing, 0)
    if kind == "float":
        low, high = (None if edge is None else float(edge) for edge in (low, high))
    shortest, low = (low, None) if kind == "floats" else (0, low)
    return Seen(
        name,
        sql,
        type_,
        kind,
        rows,
        rows - count + nans,
        distinct,
        low,
        high,
        mean or 0.0,
        std or 0.0,
        kind == "int" or (kind == "float" and fractions == 0 and low is not None),
        0 if lists else last or 0,
        (last or 0) if lists else 0,
        shortest or 0,
        nans,
        inner_nulls,
    )


def _exactly(engine: Engine, path: Path, seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """Few values, and those of few rows, are counted exactly; what is inside lists is counted."""
    found = dict(seen)
    for name, each in seen.items():
        if each.kind in ("int", "float", "text", "flag", "time") and (each.distinct <= FEW or each.rows <= SHORT):
            (count,) = engine.row(f"SELECT count(DISTINCT {finite(each.sql, each.type)}) FROM {parquet(path)}")
            found[name] = replace(each, distinct=count)
        else:
            found[name] = replace(each, distinct=min(each.distinct, each.rows))
    for name, each in seen.items():
        if each.kind in ("ints", "texts"):
            edges = "min(x), max(x)" if each.kind == "ints" else "NULL, NULL"
            inside = f"(SELECT unnest({each.sql}) AS x FROM {parquet(path)})"
            counted = "count(DISTINCT x)" if each.rows <= SHORT else "approx_count_distinct(x)"
            distinct, low, high = engine.row(f"SELECT {counted}, {edges} FROM {inside}")
            found[name] = replace(each, distinct=distinct, low=low, high=high)
    return found


def _with_forms(engine: Engine, path: Path, seen: Mapping[str, Seen]) -> dict[str, Seen]:
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
    """How texts hold several values: `shown`, ids each with 1 or 0 for clicked or not; `weighted`, ids each with a
    number; a separator; or nothing of that kind.

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
