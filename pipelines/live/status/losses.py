"""Losses of a run: their severity, an account of them, and warnings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class LossSeverity(StrEnum):
    FINE = "fine"
    WARN = "warn"  # said loudly, wherever the run is shown
    FAIL = "fail"  # and a bounded run ends with exit code 1


@dataclass(frozen=True)
class Losses:
    """Losses of a run: `lines` account for them, `words` are the warnings.

    >>> Losses().as_json()
    {'severity': <LossSeverity.FINE: 'fine'>, 'lines': [], 'words': []}
    """

    severity: LossSeverity = LossSeverity.FINE
    lines: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"severity": self.severity, "lines": list(self.lines), "words": list(self.words)}
