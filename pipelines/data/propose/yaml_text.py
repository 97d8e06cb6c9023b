"""YAML with comments: a value in a line, and behind it why it is what it is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML, CommentedMap, CommentedSeq
from ruamel.yaml.representer import RoundTripRepresenter

COMMENT_AT = 58
WIDTH = 116


class _Representer(RoundTripRepresenter):
    """A null is written as such."""


_Representer.add_representer(type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null"))


def block(*entries: tuple[str, Any, str] | tuple[str, Any]) -> CommentedMap:
    """A mapping with a line for every key, its value and perhaps a comment.

    >>> print(dumped(block(("seed", 1), ("vertical", "cate", "8 values"))), end="")
    seed: 1
    vertical: cate                                            # 8 values
    """
    section = CommentedMap()
    for key, value, *comments in entries:
        section[key] = value if isinstance(value, CommentedMap | CommentedSeq) else in_line(value)
        if comment := one_line("".join(comments)):
            section.yaml_add_eol_comment(comment, key, column=COMMENT_AT)
    return section


def items(entries: Iterable[tuple[Any, str]]) -> CommentedSeq:
    """A list with a line for every value and its comment.

    >>> print(dumped(block(("tasks", items([({"name": "ctr", "window_s": 10}, "known at once")])))), end="")
    tasks:
      - {name: ctr, window_s: 10}                             # known at once
    """
    section = CommentedSeq()
    for place, (value, comment) in enumerate(entries):
        section.append(in_line(value))
        if comment:
            section.yaml_add_eol_comment(one_line(comment), place, column=COMMENT_AT)
    return section


def in_line(value: Any) -> Any:
    """The value, to be written in one line."""
    section: CommentedMap | CommentedSeq
    if isinstance(value, Mapping):
        section = CommentedMap((key, in_line(inner)) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        section = CommentedSeq(map(in_line, value))
    else:
        return value
    section.fa.set_flow_style()
    return section


def before(section: CommentedMap | CommentedSeq, key: str | int, remarks: Iterable[str], indent: int = 0) -> None:
    """Sentences as comments in front of a key or item, each wrapped; an empty one is an empty line."""
    lines = [line for text in remarks for line in _wrapped(one_line(text)) or [""]]
    section.yaml_set_comment_before_after_key(key, before="\n".join(lines) if any(lines) else "\n", indent=indent)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def dumped(section: CommentedMap) -> str:
    """
    >>> dumped(block(("names", ["8", "yes", "36-45岁"]), ("id", None), ("rate", 5e-7)))
    "names: ['8', 'yes', 36-45岁]\\nid: null\\nrate: 5.0e-07\\n"
    """
    yaml = YAML()
    yaml.Representer, yaml.version, yaml.width = _Representer, (1, 1), 1_000_000  # 1.1: as configs are read
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    yaml.dump(section, text)
    return text.getvalue().removeprefix("%YAML 1.1\n---\n")


def one_line(text: str) -> str:
    return " ".join(text.split())
