"""Tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.report.table import DASH, Entry, TextTable, Toned

STYLES = {"good": "green", "bad": "red", "warn": "yellow", "soft": "dim", "strong": "bold"}
FILE_WIDTH = 220
"""Columns where output goes to a file, which has no right edge."""
UNBROKEN = 20
"""Characters of an interval, which stays on one line."""


def console() -> Console:
    """A console on standard output that never cuts what goes to a file."""
    made = Console()
    if not made.is_terminal:
        made.width = FILE_WIDTH
    return made


def rendered(table: TextTable) -> Table:
    """A table as rich draws it: long names fold, figures are never broken."""
    made = Table(
        title=f"\n{table.title}" if table.title else None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for at, (head, column) in enumerate(zip(table.head, table.columns(), strict=True)):
        widest = max((len(text) for text in column), default=0)
        if at < table.names or all(text[:1].isalpha() or text in ("", DASH) for text in column):  # words, not figures
            made.add_column(Text(head), overflow="fold", min_width=min(max(widest, len(head)), 10))
        elif any(" " in text for text in column):
            made.add_column(Text(head), justify="right", min_width=min(widest, UNBROKEN))
        else:
            made.add_column(Text(head), justify="right", no_wrap=True)
    for row in table.rows:
        made.add_row(*(_text(entry, name=at == 0) for at, entry in enumerate(row)))
    return made


def _text(entry: Entry, *, name: bool) -> Text:
    if isinstance(entry, Toned):
        return Text(entry.text, style=STYLES[entry.tone])
    return Text(DASH if entry is None else entry, style="bold" if name else "")
