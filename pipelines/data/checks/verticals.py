"""What students select of the verticals that there are."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator

from pipelines.core.config.settings import Config
from pipelines.data.checks.rows import severity_of
from pipelines.data.profile.finding import Finding, Severity, stop, warn


def judge_verticals(config: Config, verticals: Counter[str], *, whole: bool) -> Iterator[Finding]:
    """`whole`: no other vertical will come."""
    if not verticals:
        return
    there = _with_counts(verticals)
    for student in config.students:
        asked = student.row_filter
        absent = [vertical for vertical in asked if vertical not in verticals]
        if not absent:
            continue
        nothing = len(absent) == len(asked)
        near = difflib.get_close_matches(absent[0], verticals, n=1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        kind = stop if nothing and whole else warn
        consequence = ": it would learn nothing" if nothing else ""
        yield kind(
            f"students.{student.name}",
            f"no row has the vertical {', '.join(f'`{v}`' for v in absent)}{consequence}",
            f"{meant}there are: {there}",
        )
    yield from _too_many(config, verticals)
    alike: dict[str, Counter[str]] = {}
    for name, rows in verticals.items():
        alike.setdefault(name.strip().casefold(), Counter())[name] = rows
    for spellings in alike.values():
        if len(spellings) > 1:
            yield warn(
                "source.vertical",
                f"{' and '.join(f'`{name}` ({rows:,} rows)' for name, rows in spellings.most_common())} differ in "
                "blanks or capitals alone, and are different verticals: students of one do not learn the others' rows",
                "write them alike, or have students select each of them",
            )


def _too_many(config: Config, verticals: Counter[str]) -> Iterator[Finding]:
    """At least the rows of the rarest are lost, whatever order they come in."""
    most, total = config.lake.max_verticals, verticals.total()
    if len(verticals) <= most:
        return
    declared = set(config.declared_verticals)
    others = sorted(rows for name, rows in verticals.items() if name not in declared)
    room = max(0, most - len(declared))
    lost = sum(others[: len(others) - room])
    kind = stop if severity_of(lost, total, config.losses) is Severity.STOP else warn
    yield kind(
        "source.vertical",
        f"{len(verticals):,} verticals, which each get files of their own in the lake, and {most} are taken "
        f"(lake.max_verticals): rows of further ones become dead letters, {lost:,} of {total:,} at least",
        "name a column with few values, or raise lake.max_verticals",
    )


def _with_counts(verticals: Counter[str], most: int = 12) -> str:
    """
    >>> _with_counts(Counter(feed=1200, shop=30))
    'feed (1,200), shop (30)'
    """
    shown = ", ".join(f"{name} ({rows:,})" for name, rows in verticals.most_common(most))
    return shown + (f", and {len(verticals) - most:,} more" if len(verticals) > most else "")
