"""README, the text files of the root and docs/**: their fences, code spans, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.places import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.M)
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")


def documents() -> dict[str, str]:
    """Path -> text of every page."""
    paths = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


def fenced(text: str, *languages: str) -> list[str]:
    return [body for _, kind, body in FENCE.findall(text) if kind in languages]


def code_spans(text: str) -> list[str]:
    return SPAN.findall(FENCE.sub("", text))


def links(text: str) -> Iterator[tuple[bool, str]]:
    """(whether it is a picture, target) of every link outside fences and code."""
    for picture, target in LINK.findall(SPAN.sub("", FENCE.sub("", text))):
        yield bool(picture), target


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them.

    >>> sorted(anchors("# Let it grow\\n## `exfm plan`: it's 2 × 3\\n## Again\\n## Again"))
    ['again', 'again-1', 'exfm-plan-its-2--3', 'let-it-grow']
    """
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", text)):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        repeats = sum(slug == known or re.fullmatch(rf"{re.escape(slug)}-\d+", known) is not None for known in found)
        found.append(f"{slug}-{repeats}" if repeats else slug)
    return set(found)
