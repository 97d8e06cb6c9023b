"""One thing found out before a run: how grave it is, where, what was seen, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    STOP = "stop"
    """The run is not started: it would fail, or learn nothing of what was meant."""
    WARN = "warn"
    NOTE = "note"


class Finding(NamedTuple):
    """`where` is a setting or a column; `remedy` what to do, with what is possible."""

    severity: Severity
    where: str
    seen: str
    remedy: str = ""


def stop(where: str, seen: str, remedy: str = "") -> Finding:
    return Finding(Severity.STOP, where, seen, remedy)


def warn(where: str, seen: str, remedy: str = "") -> Finding:
    return Finding(Severity.WARN, where, seen, remedy)


def note(where: str, seen: str, remedy: str = "") -> Finding:
    return Finding(Severity.NOTE, where, seen, remedy)


def verdict_line(findings: Sequence[Finding]) -> str:
    """The whole in one line.

    >>> verdict_line([stop("source.path", "no such file"), warn("rows", "…")])
    '1 problem stops this run, 1 warning'
    >>> verdict_line([])
    'nothing stands in the way of this run'
    """
    stops, warnings = (sum(f.severity is each for f in findings) for each in (Severity.STOP, Severity.WARN))
    more = f", {warnings} warning{'s' * (warnings != 1)}" if warnings else ""
    if stops:
        return f"{stops} problem{'s stop' if stops != 1 else ' stops'} this run{more}"
    return f"nothing stands in the way of this run{more}"


def percent(share: float) -> str:
    """
    >>> percent(0.984), percent(0.0123), percent(0.00004), percent(0)
    ('98 %', '1.2 %', '0.004 %', '0 %')
    """
    if share == 0 or share >= 0.1:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.1g} %"
