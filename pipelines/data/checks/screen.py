"""A report as text: what was seen, each finding with what to do, and a verdict in the last line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from pipelines.data.checks.check import Report
from pipelines.data.checks.sample import Sample
from pipelines.data.checks.times import day
from pipelines.data.profile.column_seen import columns_text
from pipelines.data.profile.finding import Finding

INDENT = " " * 6
MOST_VERTICALS = 8


def report_text(report: Report, width: int = 80) -> str:
    lines = [] if report.sample is None else [*_sample(report.sample, width), ""]
    if report.findings:
        lines += [*finding_lines(report.findings, width), ""]
    return "\n".join([*lines, report.verdict])


def finding_lines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """
    >>> print(*finding_lines([Finding("stop", "source.path", "no such file", "give the path of one")]), sep="\\n")
    stop  source.path
          no such file
          -> give the path of one
    """
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:<5} {finding.where}")
        lines += _wrapped(finding.seen, INDENT, INDENT, width)
        if finding.remedy:
            lines += _wrapped(finding.remedy, INDENT + "-> ", INDENT + "   ", width)
    return lines


def _sample(sample: Sample, width: int) -> Iterator[str]:
    rows = "" if sample.rows is None else f"{sample.rows:,} rows, "
    yield f"{sample.origin}: {rows}{sample.looked_at:,} looked at in every column"
    if sample.time is not None:
        yield f"times      {day(sample.time.lowest_ms)} to {day(sample.time.highest_ms)} UTC"
    if sample.verticals:
        shown = ", ".join(f"{name} {count:,}" for name, count in sample.verticals.most_common(MOST_VERTICALS))
        more = len(sample.verticals) - MOST_VERTICALS
        yield from _wrapped("verticals  " + shown + (f", {more:,} more" if more > 0 else ""), "", " " * 11, width)
    for name, seen in sample.labels.items():
        rule = f", positive: {seen.rule}" if seen.rule else ""
        known = seen.rows - seen.unknown
        yield f"task       {name}: {seen.positives:,} positives in {known:,} rows ({seen.rate:.2%}){rule}"
    yield ""
    yield columns_text(sample.columns, width)


def _wrapped(text: str, first: str, other: str, width: int) -> list[str]:
    """Words are not broken: a path or a command stays whole."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )
