"""A report as text: what was seen, each finding with what to do, and a verdict in the last line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.checks.check import Report
from pipelines.checks.sample import ColumnSeen, Sample
from pipelines.checks.times import day
from pipelines.quality import Finding

INDENT = " " * 6
MOST_VERTICALS = 8


def columns_text(columns: Sequence[ColumnSeen], width: int = 80) -> str:
    """
    >>> print(columns_text([ColumnSeen("age", "int64", 4, 1, 30, 41, 2, refused=3)]))
    column  type    null  refused  distinct  range
    age     int64  25.0%        3         2  30 to 41
    """
    return "\n".join(_columns(columns, width))


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
    yield from _columns(sample.columns, width)


def _columns(columns: Sequence[ColumnSeen], width: int) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("column", "type", "null", "refused", "distinct", "range")]
    for seen in columns:
        distinct = "" if seen.distinct is None else f"{seen.distinct:,}"
        null = f"{seen.null_share:.1%}" if seen.nulls else ""
        rows.append((seen.name, seen.type, null, f"{seen.refused:,}" if seen.refused else "", distinct, _range(seen)))
    if not any(seen.refused for seen in columns):
        rows = [(*row[:3], *row[4:]) for row in rows]
    widths = [min(24, max(len(row[place]) for row in rows)) for place in range(len(rows[0]) - 1)]
    room = width - sum(widths) - 2 * len(widths)
    for *cells, last in rows:
        cut = [_cut(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
        texts = [f"{cell:{'<' if place < 2 else '>'}{widths[place]}}" for place, cell in enumerate(cut)]
        yield f"{'  '.join(texts)}  {_cut(last, room)}".rstrip()


def _range(seen: ColumnSeen) -> str:
    if seen.lowest is None:
        return ""
    return _short(seen.lowest) if seen.lowest == seen.highest else f"{_short(seen.lowest)} to {_short(seen.highest)}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _cut(str(value), 24)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _wrapped(text: str, first: str, other: str, width: int) -> list[str]:
    """Words are not broken: a path or a command stays whole."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )
