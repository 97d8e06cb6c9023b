"""Elements of a page, as text: everything that comes from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def el(name: str, *children: object, **attributes: object) -> Html:
    """An element. Underscores in the names of attributes stand for hyphens, a trailing one is dropped; None: no such
    attribute.

    >>> print(el("p", "a < b ", el("b", 1), class_="loud", aria_label='"'))
    <p class="loud" aria-label="&quot;">a &lt; b <b>1</b></p>
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """Children one after the other; what is no markup is escaped, None is left out."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Html:
    """A table that scrolls where it is too wide, with the keyboard too; the first column says what a row is."""
    header = el("tr", *(el("th", name, scope="col") for name in head))
    body = [
        el("tr", el("th", row[0], scope="row"), *(el("td", "–" if cell is None else cell) for cell in row[1:]))
        for row in rows
    ]
    inner = el("table", el("caption", caption), el("thead", header), el("tbody", *body))
    return el("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def folded(summary: str, *children: object, open_: bool = False) -> Html:
    """Children that are shown when asked for."""
    return el("details", el("summary", summary), *children, open="" if open_ else None)


def section(ident: str, title: str, *children: object) -> Html:
    return el("section", el("h2", title, id=f"{ident}-title"), *children, id=ident, aria_labelledby=f"{ident}-title")
