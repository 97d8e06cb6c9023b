"""A table of text as data: what every table on a terminal, in Markdown and on a page is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Tone = Literal["good", "bad", "warn", "soft", "strong"]


class Toned(NamedTuple):
    """Text with a tone, which a renderer shows as a colour or a weight."""

    text: str
    tone: Tone


Entry = str | Toned | None
"""One cell of a table; None is shown as a dash."""

DASH = "–"


@dataclass(frozen=True)
class TextTable:
    """Rows of entries under a head. The first `names` columns say what a row is; the others are figures.

    >>> TextTable("gains", ["arm", "gain %"], [["wide", None]]).columns()
    [['wide'], ['–']]
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    names: int = 1

    def columns(self) -> list[list[str]]:
        """The text of every column."""
        return [[text_of(row[at]) for row in self.rows] for at in range(len(self.head))]


def text_of(entry: Entry) -> str:
    """Return an entry without its tone.

    >>> text_of(Toned("failed", "bad")), text_of(None)
    ('failed', '–')
    """
    if entry is None:
        return DASH
    return entry.text if isinstance(entry, Toned) else entry
