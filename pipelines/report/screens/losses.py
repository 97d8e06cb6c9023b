"""Account of a run's losses, with loud warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

STYLES = {"fine": "", "warn": "yellow", "fail": "bold red"}


def losses_text(losses: Mapping[str, Any], *, words: bool = True) -> Group:
    """Format `losses` of status.json and summary.json; with `words` including the warnings."""
    account = [Text(line) for line in losses["lines"]]
    loud = [Text(said, style=STYLES[losses["severity"]]) for said in losses["words"]] if words else []
    return Group(*account, *loud)
