"""Feedback in a file of its own, joined to the impressions as labels and the times at which they came."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines.data.profile.file import FileProfile, profile_file
from pipelines.data.propose.guess import named, ranked
from pipelines.data.propose.labels import MOST
from pipelines.data.propose.prepared import RowsFile, opened
from pipelines.data.propose.roles import IDS
from pipelines.data.propose.times import event_time
from streaming.errors import BadInput
from streaming.sources.tables.engine import TableEngine, literal, parquet, quoted
from streaming.store.files import move

TASKS: dict[str, float] = {
    "task": 9, "event": 7, "event_type": 9, "type": 6, "action": 8, "kind": 6, "event_name": 8, "behavior": 7,
    "btag": 7,
}  # fmt: skip
MOST_KINDS = 12
ALONE = "click"


def with_feedback(
    engine: TableEngine, impressions: RowsFile, feedback: Path, to: Path, this_year: int, id_: str | None
) -> tuple[RowsFile, tuple[str, ...]]:
    """Impressions with a column for every kind of feedback, 0 or 1, and `<kind>_time`, the first of its times; and the
    names of those columns. Both files have the id in a column of the same name, `id_` or one that is named like an id.

    Raises BadInput where they have none, or the feedback has no time.
    """
    staged = to.with_name(f"{to.name}.feedback")
    try:
        events = profile_file(engine, opened(engine, feedback, staged, None).path)
        own = profile_file(engine, impressions.path)
        identity = _identity(feedback, own, events, id_)
        time, _ = event_time(events.but(identity), this_year, None)
        if time.guess.column is None:
            raise BadInput(f"{feedback} has no column of times; feedback needs the time at which it came")
        tasks = _tasks(events.but(identity, time.guess.column))
        if taken := {*own.columns} & {part for name, _ in tasks for part in (name, f"{name}_time")}:
            raise BadInput(f"the impressions have a column {', '.join(sorted(taken))}, as the feedback would make")
        first = ", ".join(f"min({time.sql}){chosen} AS {quoted(name)}" for name, chosen in tasks)
        came = f"SELECT {events.columns[identity].sql}::VARCHAR AS id, {first} FROM {events.relation} GROUP BY 1"
        made = ", ".join(
            f"(e.{quoted(name)} IS NOT NULL)::TINYINT AS {quoted(name)}, make_timestamp_ms(e.{quoted(name)}) AS "
            f"{quoted(f'{name}_time')}"
            for name, _ in tasks
        )
        joined = f"SELECT i.* EXCLUDE (file_row_number), {made} FROM {parquet(impressions.path)} i "
        joined += f"LEFT JOIN ({came}) e ON i.{quoted(identity)}::VARCHAR = e.id ORDER BY i.file_row_number"
        both = to.with_name(f"{to.name}.joined")
        engine.write(joined, both)
        move(both, to)
    finally:
        staged.unlink(missing_ok=True)
    names = tuple(name for name, _ in tasks)
    said = f"{feedback.name} joined by `{identity}`: {', '.join(names)}, at `{time.guess.column}`"
    return RowsFile(to, True, (*impressions.said, said), joined=True), names


def _identity(feedback: Path, own: FileProfile, events: FileProfile, by_caller: str | None) -> str:
    both = [column for name, column in own.columns.items() if name in events.columns]
    if by_caller is not None and by_caller in (column.name for column in both):
        return by_caller
    ids = ranked(both, lambda column: named(column, IDS))
    if not ids or by_caller is not None:
        shared = ", ".join(column.name for column in both) or "none"
        raise BadInput(
            f"{feedback}: impressions and feedback are matched by an id that both have under one name; columns in "
            f"both: {shared}; name it with --id COLUMN"
        )
    return ids[0].name


def _tasks(events: FileProfile) -> list[tuple[str, str]]:
    """The name of a label's column for each kind of feedback, and the filter of its rows, the most frequent first.
    Every row is a click where no column says what happened."""
    able = [c for c in events.columns.values() if c.kind == "text" and (c.distinct or 0) <= MOST_KINDS]
    columns = ranked(able, lambda column: named(column, TASKS))
    if not columns:
        return [(ALONE, "")]
    x = columns[0].sql
    rows = events.engine.rows(
        f"SELECT {x}, count(*) FROM {events.relation} WHERE {x} <> '' GROUP BY 1 ORDER BY 2 DESC, 1"
    )
    return [(as_column(value), f" FILTER (WHERE {x} = {literal(value)})") for value, _ in rows[:MOST]]


def as_column(kind: str) -> str:
    """The column of a kind of feedback.

    >>> as_column("Add to cart")
    'add_to_cart'
    """
    return re.sub(r"\W+", "_", kind.lower())
