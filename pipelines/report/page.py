"""One HTML page from sections: it needs no server, no network and no script, on a phone as on a desk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from pipelines.report.figure import Figure
from pipelines.report.pictures import svg
from pipelines.report.table import TextTable


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    rows: Mapping[str, str]


@dataclass(frozen=True)
class Code:
    """Text as it is typed."""

    text: str


@dataclass(frozen=True)
class Card:
    """A box with a loud first line. `kind`: good, bad, warn or soft, which is its colour."""

    kind: str
    word: str
    text: str
    facts: Mapping[str, str] = field(default_factory=dict)
    more: str = ""


@dataclass(frozen=True)
class PageFigures:
    """Pictures side by side, where there is room."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Folded:
    """Blocks that are shown when their title is clicked."""

    title: str
    blocks: Sequence[Block]
    open: bool = False


Block = Words | Facts | Code | Card | PageFigures | Folded | TextTable


@dataclass(frozen=True)
class Section:
    """A part of a page, under its `name` in the list of parts."""

    name: str
    title: str
    blocks: Sequence[Block]

    @property
    def ident(self) -> str:
        return self.name.lower().replace(" ", "-")


def page(title: str, sections: Sequence[Section], foot: str) -> str:
    """The whole document.

    >>> "<td>–</td>" in page("x", [Section("A", "B", [TextTable("t", ["a", "b"], [["c", None]])])], "")
    True
    """
    numbers = iter(range(1_000_000))

    def drawn(figure: Figure) -> str:
        return svg(figure, f"f{next(numbers)}")

    return _template().render(title=title, sections=sections, foot=foot, svg=drawn, kind=lambda of: type(of).__name__)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
