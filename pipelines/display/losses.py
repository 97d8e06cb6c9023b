"""The account of a run's losses, and loudly what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

STYLES = {"fine": "", "warn": "yellow", "fail": "bold red"}


def losses_text(losses: Mapping[str, Any], *, lines: bool = True) -> Group:
    """`losses` as status.json and summary.json hold them; `lines`: with the account, not the loud words alone."""
    account = [Text(line) for line in losses["lines"]] if lines else []
    loud = [Text(words, style=STYLES[losses["severity"]]) for words in losses["words"]]
    return Group(*account, *loud)
