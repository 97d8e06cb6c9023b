"""The students of a run, in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipelines.report.screens.screen import WIDE, duration, ne_text, number

COLOURS = {
    "running": "green",
    "done": "green",
    "failed": "red",
    "refused": "red",
    "paused": "yellow",
    "asked": "yellow",
}


def students_table(students: Sequence[dict[str, Any]], width: int) -> Group:
    """One line per student, from `exfm students --json`; below `WIDE` columns the less urgent figures are left out."""
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("student", overflow="fold", min_width=8)
    table.add_column("state", no_wrap=True)
    table.add_column("rows of", overflow="fold", min_width=8)
    for title in ("rows", "lag rows"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("NE so far", no_wrap=True)
    lives = any(student["host"] is not None for student in students)
    more = ("teacher", "logit age", "champion", "int8, int4 NE", *(("pid", "MB") if lives else ()))
    for title in more if wide else ():
        table.add_column(title, justify="right", no_wrap=True)
    notes = []
    for student in students:
        cells: list[str | Text] = [
            Text(student["name"], style="bold"),
            Text(student["state"], style=COLOURS.get(student["state"], "dim")),
            Text(_filter(student["filter"])),
            number(student["rows"]),
            number(student["lag_rows"]),
            Text(ne_text(student["ne"], 2 if wide else 1)),
        ]
        if wide:
            version, champion, rss = student["teacher_version"], student["versions"]["champion"], student["rss_bytes"]
            cells += [
                "–" if version is None else f"v{version}",
                duration(student["logit_age_s"]),
                champion or "–",
                _loss(student.get("tables")),
            ]
            if lives:
                cells += [
                    "–" if student["host"] is None else str(student["host"]),
                    number(None if rss is None else rss / 2**20),
                ]
        table.add_row(*cells)
        if student["reason"]:
            notes.append(Text(f"{student['name']}: {student['reason']}", style="dim"))
    return Group(table, *notes)


def _loss(tables: dict[str, Any] | None) -> str:
    """The largest change of a task's NE, in %, above 0 is worse.

    >>> change = {"int8": {"ne_change": {"ctr": 1e-6, "cvr": -1e-5}}, "int4": {"ne_change": {"ctr": 9e-4, "cvr": None}}}
    >>> _loss(change), _loss(None)
    ('+0.00 +0.09 %', '–')
    """
    if tables is None:
        return "–"
    worst = []
    for kind in ("int8", "int4"):
        known = [change for change in tables[kind]["ne_change"].values() if change is not None]
        worst.append(f"{100 * max(known):+.2f}" if known else "–")
    return f"{' '.join(worst)} %"


def _filter(of: dict[str, Any]) -> str:
    """
    >>> _filter({"verticals": ["feed", "shop"], "where": "bid > 1"})
    'feed, shop where bid > 1'
    """
    verticals = of["verticals"] if of["verticals"] == "all" else ", ".join(of["verticals"])
    return verticals if of["where"] is None else f"{verticals} where {of['where']}"
