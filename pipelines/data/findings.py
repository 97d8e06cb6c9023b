"""Findings: what is wrong or odd about a config, about its data or about this machine, and what to do about it.

The rows of the table of findings stand as text beside the code that raises them, in the form in which they are shown:

    warn  label.rare  task {task}
        {positives:,} positives in {rows:,} rows are too few to tell models apart
        -> use a longer stream

To add a finding, add a row to the `Rules` of a file and yield `RULES("label.rare", task=…, positives=…, rows=…)` there.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class Severity(StrEnum):
    """Severity of a finding, the gravest first."""

    STOP = "stop"
    """The run is not started: it would fail, or learn nothing of what was meant."""
    WARN = "warn"
    NOTE = "note"
    OK = "ok"
    """A part of this machine that works."""


class Finding(NamedTuple):
    """One thing found: a stable id, the setting or column that it is about, what was seen, what to do (or "")."""

    id: str
    severity: Severity
    where: str
    seen: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {**self._asdict(), "severity": str(self.severity)}


class Rule(NamedTuple):
    """A row of the table: texts with `{names}` for values. Of several severities the code that raises it names one."""

    id: str
    severities: tuple[Severity, ...]
    where: str
    seen: str
    remedy: str


TABLE: dict[str, Rule] = {}
"""All rows of all files that were imported, by id."""


class Rules:
    """The rows of one file.

    >>> rules = Rules('''
    ... note|warn  test.rare  task {task}
    ...     {positives:,} positives are too few
    ...     -> use a longer stream
    ... ''')
    >>> rules("test.rare", Severity.WARN, task="ctr", positives=9000)[1:]
    (<Severity.WARN: 'warn'>, 'task ctr', '9,000 positives are too few', 'use a longer stream')
    >>> TABLE.pop("test.rare").severities
    (<Severity.NOTE: 'note'>, <Severity.WARN: 'warn'>)
    """

    def __init__(self, text: str) -> None:
        self._rules = {rule.id: rule for rule in map(_rule, re.split(r"\n(?=\S)", text.strip()))}
        if twice := self._rules.keys() & TABLE.keys():
            raise ValueError(f"findings of the same id: {', '.join(sorted(twice))}")
        TABLE.update(self._rules)

    def __call__(self, id_: str, severity: Severity | None = None, /, **values: Any) -> Finding:
        """The finding of a row, with its values. `severity`: one of the row's, needed where it has several. What is OK
        needs no remedy."""
        rule = self._rules[id_]
        if severity is None:
            (severity,) = rule.severities
        elif severity not in rule.severities:
            raise ValueError(f"finding {id_} is never of severity {severity}")
        remedy = "" if severity is Severity.OK else rule.remedy
        return Finding(id_, severity, *(text.format(**values) for text in (rule.where, rule.seen, remedy)))


def _rule(row: str) -> Rule:
    header, *lines = row.splitlines()
    severities, id_, where = header.split(maxsplit=2)
    seen, _, remedy = " ".join(line.strip() for line in lines).partition("-> ")
    return Rule(id_, tuple(map(Severity, severities.split("|"))), where, seen.strip(), remedy)


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def stops(findings: Iterable[Finding]) -> bool:
    """True where one of them keeps a run from being started."""
    return any(finding.severity is Severity.STOP for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one line.

    >>> verdict([Finding("a", Severity.STOP, "x", ""), Finding("b", Severity.WARN, "y", "")]), verdict([])
    ('1 problem found, 1 warning', 'no problems found')
    """
    count, warnings = (sum(f.severity is each for f in findings) for each in (Severity.STOP, Severity.WARN))
    problems = f"{count or 'no'} problem{'s' * (count != 1)} found"
    return problems + (f", {warnings} warning{'s' * (warnings != 1)}" if warnings else "")


def finding_lines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """
    >>> print(*finding_lines([Finding("x", "stop", "source.path", "no such file", "give the path of one")]), sep="\\n")
    stop  source.path
          no such file
          -> give the path of one
    """
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:<5} {finding.where}")
        lines += wrapped(finding.seen, " " * 6, " " * 6, width)
        if finding.remedy:
            lines += wrapped(finding.remedy, f"{' ' * 6}-> ", " " * 9, width)
    return lines


def wrapped(text: str, first: str, other: str, width: int) -> list[str]:
    """Lines of a text whose words are not broken: a path or a command stays whole."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )


def percent(share: float) -> str:
    """
    >>> percent(0.984), percent(0.0123), percent(0.00004), percent(0)
    ('98 %', '1.2 %', '0.004 %', '0 %')
    """
    if share == 0 or share >= 0.1:
        return f"{100 * share:.0f} %"
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.1g} %"
