"""Feedback in a file of its own, joined to the impressions as labels and the times at which they came."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.data.propose.columns import Seen, look
from pipelines.data.propose.guess import named, ranked
from pipelines.data.propose.labels import MOST
from pipelines.data.propose.prepared import Source, opened
from pipelines.data.propose.roles import IDS
from pipelines.data.propose.times import event_time
from streaming.errors import BadInput
from streaming.sources.tables.engine import Engine, literal, parquet, quoted
from streaming.store.files import move

TASKS: dict[str, float] = {
    "task": 9, "event": 7, "event_type": 9, "type": 6, "action": 8, "kind": 6, "event_name": 8, "behavior": 7,
    "btag": 7,
}  # fmt: skip
MOST_KINDS = 12
ALONE = "click"


def with_feedback(
    engine: Engine, impressions: Source, feedback: Path, to: Path, this_year: int, id_: str | None
) -> tuple[Source, tuple[str, ...]]:
    """Impressions with a column for every kind of feedback, 0 or 1, and `<kind>_time`, the first of its times; and the
    names of those columns. Both files have the id in a column of the same name, `id_` or one that is named like an id.

    Raises BadInput where they have none, or the feedback has no time.
    """
    staged = to.with_name(f"{to.name}.feedback")
    try:
        source = opened(engine, feedback, staged, None)
        columns = look(engine, source.path)
        own = look(engine, impressions.path)
        identity = _identity(feedback, own, columns, id_)
        time, _ = event_time(engine, source.path, _but(columns, identity), this_year, None)
        if time.guess.column is None:
            raise BadInput(f"{feedback} has no column of times; feedback needs the time at which it came")
        kind = _kind(columns, {identity, time.guess.column})
        tasks = _tasks(engine, source.path, columns, kind)
        wanted = []
        for value, name in tasks.items():
            chosen = "" if kind is None else f" FILTER (WHERE {columns[kind].sql} = {literal(value)})"
            wanted.append(f"min({time.sql}){chosen} AS {quoted(name)}")
        events = (
            f"SELECT {columns[identity].sql}::VARCHAR AS id, {', '.join(wanted)} FROM {parquet(source.path)} GROUP BY 1"
        )
        taken = {*own} & {part for name in tasks.values() for part in (name, f"{name}_time")}
        if taken:
            raise BadInput(f"the impressions have a column {', '.join(sorted(taken))}, as the feedback would make")
        made = ", ".join(
            f"(e.{quoted(name)} IS NOT NULL)::TINYINT AS {quoted(name)}, make_timestamp_ms(e.{quoted(name)}) AS "
            f"{quoted(f'{name}_time')}"
            for name in tasks.values()
        )
        joined = f"SELECT i.* EXCLUDE (file_row_number), {made} FROM {parquet(impressions.path)} i "
        joined += f"LEFT JOIN ({events}) e ON i.{quoted(identity)}::VARCHAR = e.id ORDER BY i.file_row_number"
        both = to.with_name(f"{to.name}.joined")
        engine.write(joined, both)
        move(both, to)
    finally:
        staged.unlink(missing_ok=True)
    said = f"{feedback.name} joined by `{identity}`: {', '.join(tasks.values())}, at `{time.guess.column}`"
    return Source(to, True, (*impressions.said, said), joined=True), tuple(tasks.values())


def _identity(feedback: Path, own: Mapping[str, Seen], columns: Mapping[str, Seen], asked: str | None) -> str:
    if asked is not None and asked in own and asked in columns:
        return asked
    both = [column for name, column in own.items() if name in columns]
    found = ranked(both, lambda column: named(column, IDS))
    if not found or asked is not None:
        shared = ", ".join(column.name for column in both) or "none"
        raise BadInput(
            f"{feedback}: impressions and feedback are matched by an id that both have under one name; columns in "
            f"both: {shared}; name it with --id COLUMN"
        )
    return found[0].name


def _but(columns: Mapping[str, Seen], *names: str) -> dict[str, Seen]:
    return {name: column for name, column in columns.items() if name not in names}


def _kind(columns: Mapping[str, Seen], taken: set[str]) -> str | None:
    """The column that says what happened; None: every row is a click."""
    able = [c for c in columns.values() if c.name not in taken and c.kind == "text" and c.distinct <= MOST_KINDS]
    found = ranked(able, lambda column: named(column, TASKS))
    return found[0].name if found else None


def _tasks(engine: Engine, path: Path, columns: Mapping[str, Seen], kind: str | None) -> dict[str, str]:
    """What stands in that column -> the name of a label's column, the most frequent first."""
    if kind is None:
        return {"": ALONE}
    x = columns[kind].sql
    rows = engine.rows(f"SELECT {x}, count(*) FROM {parquet(path)} WHERE {x} <> '' GROUP BY 1 ORDER BY 2 DESC, 1")
    return {value: as_column(value) for value, _ in rows[:MOST]}


def as_column(kind: str) -> str:
    """The column of a kind of feedback.

    >>> as_column("Add to cart")
    'add_to_cart'
    """
    return re.sub(r"\W+", "_", kind.lower())
