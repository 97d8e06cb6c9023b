"""Tables in Markdown."""

from __future__ import annotations

from pipelines.report.table import Entry, TextTable, Toned, text_of


def markdown(table: TextTable) -> str:
    """A heading and the table below it.

    >>> print(markdown(TextTable("gains", ["arm", "gain %"], [["a|b", None]])))
    ## gains
    <BLANKLINE>
    | arm | gain % |
    |---|---|
    | a\\|b | – |
    <BLANKLINE>
    """
    lines = [f"## {table.title}", "", _line(table.head), "|" + "---|" * len(table.head)]
    return "\n".join([*lines, *(_line(row) for row in table.rows), ""])


def _line(row: object) -> str:
    assert isinstance(row, list | tuple)
    return "| " + " | ".join(_escaped(entry) for entry in row) + " |"


def _escaped(entry: Entry) -> str:
    text = text_of(entry).replace("|", "\\|")
    return f"**{text}**" if isinstance(entry, Toned) and entry.tone == "strong" else text
