"""Rules of verticals: what students select of those that there are, how many there are, and how they are spelled."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator

from pipelines.core.config.settings import Config
from pipelines.data.checks.rows import severity_of
from pipelines.data.findings import Finding, Rules, Severity

RULES = Rules("""
warn|stop  vertical.absent  students.{student}
    no row has the vertical {absent}{consequence}
    -> {meant}choose from {verticals}
warn|stop  vertical.too-many  source.vertical
    {count:,} verticals, which each get files of their own in the lake, and {most} are taken (lake.max_verticals): rows
    of further ones become dead letters, {lost:,} of {rows:,} at least
    -> name a column with few values, or raise lake.max_verticals
warn  vertical.alike  source.vertical
    {spellings} differ in blanks or capitals alone, and are different verticals: students of one do not learn the
    others' rows
    -> write them alike, or have students select each of them
""")


def judge_verticals(config: Config, verticals: Counter[str], *, whole: bool) -> Iterator[Finding]:
    """Check each student's verticals; `whole`: no other vertical will come."""
    if not verticals:
        return
    there = _with_counts(verticals)
    for student in config.students:
        selected = student.row_filter
        if absent := [vertical for vertical in selected if vertical not in verticals]:
            nothing = len(absent) == len(selected)
            near = difflib.get_close_matches(absent[0], verticals, n=1)
            yield RULES(
                "vertical.absent", Severity.STOP if nothing and whole else Severity.WARN, student=student.name,
                absent=", ".join(f"`{v}`" for v in absent), consequence=": it would learn nothing" if nothing else "",
                meant=f"did you mean `{near[0]}`? " if near else "", verticals=there,
            )  # fmt: skip
    yield from _too_many(config, verticals)
    alike: dict[str, Counter[str]] = {}
    for name, rows in verticals.items():
        alike.setdefault(name.strip().casefold(), Counter())[name] = rows
    for spellings in alike.values():
        if len(spellings) > 1:
            texts = (f"`{name}` ({rows:,} rows)" for name, rows in spellings.most_common())
            yield RULES("vertical.alike", spellings=" and ".join(texts))


def _too_many(config: Config, verticals: Counter[str]) -> Iterator[Finding]:
    """At least the rows of the rarest are lost, whatever order they come in."""
    most, total = config.lake.max_verticals, verticals.total()
    if len(verticals) <= most:
        return
    declared = set(config.declared_verticals)
    others = sorted(rows for name, rows in verticals.items() if name not in declared)
    room = max(0, most - len(declared))
    lost = sum(others[: len(others) - room])
    severity = Severity.STOP if severity_of(lost, total, config.losses) is Severity.STOP else Severity.WARN
    yield RULES("vertical.too-many", severity, count=len(verticals), most=most, lost=lost, rows=total)


def _with_counts(verticals: Counter[str], most: int = 12) -> str:
    """
    >>> _with_counts(Counter(feed=1200, shop=30))
    'feed (1,200), shop (30)'
    """
    shown = ", ".join(f"{name} ({rows:,})" for name, rows in verticals.most_common(most))
    return shown + (f", and {len(verticals) - most:,} more" if len(verticals) > most else "")
