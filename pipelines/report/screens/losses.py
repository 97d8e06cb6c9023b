"""Account of a run's losses, with loud warnings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from pipelines.live.status.losses import Losses

STYLES = {"fine": "", "warn": "yellow", "fail": "bold red"}


def account_text(lines: Sequence[str]) -> Group:
    """Format the account of losses."""
    return Group(*map(Text, lines))


def warnings_text(losses: Losses) -> Group:
    """Format the warnings about losses."""
    return Group(*(Text(words, style=STYLES[losses.severity]) for words in losses.words))
