"""The report's JSON value, read: arms and their numbers, students, intervals as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.lab.page.marks import signed

GAIN = "gain, % of NE"
Report = Mapping[str, Any]
Seen = Mapping[str, Any]
"""What the report has of one student and task."""


def arms_of(report: Report) -> dict[str, int]:
    """Every arm and its number, the baselines last."""
    base = report["sweep"]["baselines"]
    names = [arm for arm in report["sweep"]["trials"] if arm not in base]
    return {arm: k for k, arm in enumerate([*names, *base])}


def each_student(report: Report, condition: str | None = None) -> Iterator[tuple[str, str, Seen]]:
    """Student, task and what is known of them, under a condition; None: the first one."""
    under = next(iter(report["conditions"])) if condition is None else condition
    for student, tasks in report["conditions"][under]["students"].items():
        for task, seen in tasks.items():
            yield student, task, seen


def compared_arms(report: Report, seen: Seen) -> list[str]:
    """Arms with a gain, those that gain most first."""
    gains = {arm: of["gain"]["value"] for arm, of in seen["arms"].items() if of.get("gain") and arm in arms_of(report)}
    return sorted(gains, key=lambda arm: -gains[arm])


def interval(of: Mapping[str, Any] | None) -> str | None:
    """
    >>> interval({"value": 0.5, "low": 0.25, "high": 0.75}), interval({"value": 1, "too_few": "positives (9)"})
    ('+0.50 [+0.25, +0.75]', 'too few positives (9)')
    """
    if of is None:
        return None
    if of.get("too_few"):
        return f"too few {of['too_few']}"
    return signed(of["value"]) + ("" if of["low"] is None else f" [{signed(of['low'])}, {signed(of['high'])}]")


def times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f}"
