"""The students of a run, in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from pipelines.report.screens.screen import WIDE, duration, ne_text
from pipelines.report.table import Entry, TextTable, Tone, Toned
from pipelines.report.terminal import rendered
from pipelines.report.words import count

TONES: dict[str, Tone] = {
    "running": "good",
    "done": "good",
    "failed": "bad",
    "refused": "bad",
    "paused": "warn",
    "asked": "warn",
}


def students_table(students: Sequence[dict[str, Any]], width: int) -> Group:
    """One line per student, from `exfm students --json`; below `WIDE` columns the less urgent figures are left out."""
    wide = width >= WIDE
    lives = wide and any(student["host"] is not None for student in students)
    head = ["student", "state", "rows of", "rows", "lag rows", "NE as learned"]
    head += ["teacher", "logit age", "champion", "int8, int4 NE"] if wide else []
    rows, notes = [], []
    for student in students:
        row: list[Entry] = [
            student["name"],
            Toned(student["state"], TONES.get(student["state"], "soft")),
            _filter(student["filter"]),
            count(student["rows"]),
            count(student["lag_rows"]),
            ne_text(student["ne"], 2 if wide else 1),
        ]
        if wide:
            version = student["teacher_version"]
            age, champion = duration(student["logit_age_s"]), student["versions"]["champion"]
            row += [None if version is None else f"v{version}", age, champion, _loss(student.get("tables"))]
        if lives:
            host, rss = student["host"], student["rss_bytes"]
            row += [None if host is None else str(host), count(None if rss is None else rss / 2**20)]
        rows.append(row)
        if student["reason"]:
            notes.append(Text(f"{student['name']}: {student['reason']}", style="dim"))
    return Group(rendered(TextTable("", [*head, *(("pid", "MB") if lives else ())], rows, names=3)), *notes)


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
        changes = [change for change in tables[kind]["ne_change"].values() if change is not None]
        worst.append(f"{100 * max(changes):+.2f}" if changes else "–")
    return f"{' '.join(worst)} %"


def _filter(of: dict[str, Any]) -> str:
    """
    >>> _filter({"verticals": ["feed", "shop"], "where": "bid > 1"})
    'feed, shop where bid > 1'
    """
    verticals = of["verticals"] if of["verticals"] == "all" else ", ".join(of["verticals"])
    return verticals if of["where"] is None else f"{verticals} where {of['where']}"
