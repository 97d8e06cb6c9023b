"""Text from the code as Markdown that code hosts and the site show alike."""

from __future__ import annotations

import re
from collections.abc import Iterable

GENERATED = "<!-- Written by docs/generate from the code; change the code, not this page. -->"


def table(columns: str, rows: Iterable[str]) -> str:
    """
    >>> print(table("a | b", ["| 1 | 2 |"]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    return "\n".join([f"| {columns} |", "|---" * len(columns.split("|")) + "|", *rows])


def cell(text: object) -> str:
    """Text that stays inside one cell of a table."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def prose(text: str) -> str:
    """A docstring's paragraph as Markdown: outside back quotes, stars and brackets stand for themselves.

    >>> print(prose("w * h,   `a * b`"))
    w \\* h, `a * b`
    """
    parts = re.split(r"(`[^`]*`)", re.sub(r"\s+", " ", text).strip())
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts)


def slug(heading: str) -> str:
    """The anchor of a heading.

    >>> slug("`kafka.impressions`, `kafka.feedback`")
    'kafkaimpressions-kafkafeedback'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
