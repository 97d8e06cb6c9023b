"""What is known of every column after one pass: nulls, values, range. Distinct values are counted to a few per cent,
and exactly where they are few."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from streaming.tables import ROW, Engine, parquet, quoted

Kind = Literal["int", "float", "text", "flag", "time", "ints", "floats", "texts", "other"]
FEW = 400
"""Up to about so many distinct values are counted exactly."""

SHORT = 1_000_000
"""In files of up to so many rows all are."""

_INTS = re.compile(r"U?(TINY|SMALL|BIG)?INT(EGER)?")


@dataclass(frozen=True)
class Seen:
    """A column by its name, and `sql`, what reads it. `low` and `high` are numbers (times: ms since 1970); `whole`: all
    its numbers are. Of lists, `distinct` counts what is inside; `shortest` and `longest` are the
    lengths of these (the former of floats alone)."""

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
        wanted += _aggregates(sql, kind_of(types[name]))
    values = iter(engine.row(f"SELECT {', '.join(wanted)} FROM {parquet(path)}"))
    rows = next(values)
    seen = {name: _seen(name, sql, types[name], rows, values) for name, sql in sqls.items()}
    return _exactly(engine, path, seen)


def _aggregates(sql: str, kind: Kind) -> Iterator[str]:
    """The eight values that `_seen` takes."""
    if kind in ("ints", "floats", "texts"):
        yield f"count({sql})"
        yield "2" if kind == "floats" else "0"  # of what is inside, few are equal
        yield from [f"min(len({sql}))" if kind == "floats" else "NULL", "NULL"]
        yield f"avg(len({sql}))"
        yield "0"
        yield "0"
        yield f"max(len({sql}))"
        return
    if kind == "other":
        yield from (f"count({sql})", "0", "NULL", "NULL", "0", "0", "0", "0")
        return
    x = f"CASE WHEN isfinite({sql}::DOUBLE) THEN {sql} END" if kind == "float" else sql
    yield f"count({f'CASE WHEN NOT isnan({sql}::DOUBLE) THEN 1 END' if kind == 'float' else sql})"
    yield f"approx_count_distinct({x})"
    if kind == "time":
        yield from (f"epoch_ms(min({sql}))", f"epoch_ms(max({sql}))")
    elif kind == "text":
        yield from ("NULL", "NULL")
    else:
        yield from (f"min({x})", f"max({x})")
    number = kind in ("int", "float")
    yield f"avg({x}::DOUBLE)" if number else "0"
    yield f"stddev_pop({x}::DOUBLE)" if number else "0"
    yield f"count_if({x} <> floor({x}))" if kind == "float" else "0"
    yield f"count_if(isinf({sql}::DOUBLE))" if kind == "float" else "0"


def _seen(name: str, sql: str, type_: str, rows: int, values: Iterator[Any]) -> Seen:
    count, distinct, low, high, mean, std, fractions, last = (next(values) for _ in range(8))
    kind = kind_of(type_)
    lists = kind in ("ints", "floats", "texts")
    if kind == "float":
        low, high = (None if edge is None else float(edge) for edge in (low, high))
    shortest, low = (low, None) if kind == "floats" else (0, low)
    return Seen(
        name,
        sql,
        type_,
        kind,
        rows,
        rows - count,
        distinct,
        low,
        high,
        mean or 0.0,
        std or 0.0,
        kind == "int" or (kind == "float" and fractions == 0 and low is not None),
        0 if lists else last or 0,
        (last or 0) if lists else 0,
        shortest or 0,
    )


def _exactly(engine: Engine, path: Path, seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """Few values, and those of few rows, are counted exactly; what is inside lists is counted."""
    found = dict(seen)
    for name, each in seen.items():
        if each.kind in ("int", "float", "text", "flag", "time") and (each.distinct <= FEW or each.rows <= SHORT):
            (count,) = engine.row(f"SELECT count(DISTINCT {each.sql}) FROM {parquet(path)}")
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
