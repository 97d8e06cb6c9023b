"""README, the text files of the root and docs/**: their fences, code spans, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from tests.support.places import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.M)
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
SMALLEST_PICTURE = 1000
SPAN = re.compile(r"`([^`\n]+)`")


def documents() -> dict[str, str]:
    """Path -> text of every page that is written by hand."""
    paths = [*ROOT.glob("*.md"), *(path for path in DOCS.rglob("*.md") if path.parent.name != "generated")]
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


def target_of(page: str, link: str) -> tuple[str, str]:
    """(path in the repository, anchor) of a relative link.

    >>> target_of("docs/guides/kafka.md", "../results/arms.md#what-it-costs")
    ('docs/results/arms.md', 'what-it-costs')
    >>> target_of("README.md", "#try-it")
    ('README.md', 'try-it')
    """
    path, _, anchor = link.partition("#")
    if not path:
        return page, anchor
    parts: list[str] = []
    for part in (PurePosixPath(page).parent / path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts), anchor


def is_external(link: str) -> bool:
    return link.startswith(("https://", "http://", "mailto:"))


def broken(page: str, text: str, generated: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The links of a page that lead nowhere; `generated` are pages that need not lie in the tree."""
    found = []
    for picture, link in links(text):
        if is_external(link):
            continue
        path, anchor = target_of(page, link)
        if path not in generated and not (ROOT / path).is_file():
            found.append(f"{link}: no such file")
        elif page.startswith("docs/") and not path.startswith("docs/"):
            found.append(f"{link}: outside docs/, which the site does not have; name it in back quotes")
        elif anchor and anchor not in anchors(generated.get(path) or (ROOT / path).read_text()):
            found.append(f"{link}: no such heading")
        elif picture and (ROOT / path).stat().st_size < SMALLEST_PICTURE:
            found.append(f"{link}: an empty picture")
    return found
