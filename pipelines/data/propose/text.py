"""A config as text: every guess with its evidence in a comment behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

COMMENT_AT = 58
WIDTH = 118
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*")
_WORDS = frozenset(["y", "n", "yes", "no", "true", "false", "on", "off", "null", "none", "~", "inf", "nan", "all"])


def scalar(value: Any) -> str:
    """
    >>> [scalar(v) for v in ("user_id", "8", "yes", "36-45岁", True, None, 0.0005, 12)]
    ['user_id', '"8"', '"yes"', '"36-45岁"', 'true', 'null', '0.0005', '12']
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        if value == "all" or (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
            return value
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        text = f"{value:.10g}"
        return f"{float(text):.12f}".rstrip("0") + "0" * text.endswith(".") if "e" in text and abs(value) < 1 else (
            text if re.search(r"[.]", text) else f"{float(text):.1f}"
        )  # fmt: skip
    return str(value)


def flow(value: Any) -> str:
    """A value in one line.

    >>> flow({"name": "age", "rows": 8, "verticals": ["a", "b"]})
    '{name: age, rows: 8, verticals: [a, b]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    return scalar(value)


def line(text: str, comment: str = "") -> str:
    """
    >>> line("seed: 1"), line("  vertical: cate", "8 values")
    ('seed: 1', '  vertical: cate                                           # 8 values')
    """
    return f"{text:<{COMMENT_AT}} # {one_line(comment)}" if comment else text


def one_line(text: str) -> str:
    return " ".join(text.split())


def remarks(lines: Iterable[str], indent: str = "") -> Iterator[str]:
    """Sentences as comments, each wrapped."""
    import textwrap

    for text in lines:
        yield from textwrap.wrap(
            one_line(text),
            WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
