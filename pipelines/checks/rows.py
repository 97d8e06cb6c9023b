"""Rows that would become dead letters, and columns that say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipelines.checks.finding import Finding, Severity, note, percent, warn
from pipelines.checks.sample import Refused, Sample
from streaming.schema import RowSchema

WARN_SHARE, STOP_SHARE = 0.01, 0.5
"""From these shares of rows, or of feedback, on a loss is worth a warning, and is taken for a mistake."""

REMEDIES = {
    "null": "declare the column with `nullable: true`, or give a value in every row",
    "not_finite": "declare the column with `nullable: true`: NaN then counts as missing",
    "out_of_range": "widen `minimum` and `maximum` of the column, or leave them out",
    "bad_event_time": "check the column of the time and its unit",
    "bad_vertical": "name a column of short texts as `vertical`",
    "unknown_task": "name the tasks of `rows.tasks` as the feedback does",
    "missing_column": "declare the column with `nullable: true`, or take it out of `rows.columns`",
    "wrong_type": "declare the column with the type that it has",
}


def severity_of(share: float) -> Severity:
    """How grave it is to lose a share of all rows.

    >>> [str(severity_of(share)) for share in (0.001, 0.02, 0.98)]
    ['note', 'warn', 'stop']
    """
    if share >= STOP_SHARE:
        return Severity.STOP
    return Severity.WARN if share >= WARN_SHARE else Severity.NOTE


def judge_rows(sample: Sample, schema: RowSchema) -> Iterator[Finding]:
    yield from _refused(sample.refused, sample.looked_at, "rows")
    yield from _refused(sample.feedback_refused, sample.feedback_looked_at, "rows of feedback")
    yield from _repeated_ids(sample)
    known = {column.name: column for column in schema.columns}
    empty = [c.name for c in sample.columns if c.rows and c.null_share == 1 and c.name in known]
    if empty:
        yield warn(f"rows.columns.{empty[0]}", f"no row has a value of {_names(empty)}", "leave it out of the features")
    same = [c.name for c in sample.columns if c.name in known and c.distinct == 1 and c.rows > 1 and not c.nulls]
    if same:
        yield note("rows.columns", f"one value in all rows looked at: {_names(same)}")


def _refused(refused: Mapping[str, Refused], looked_at: int, what: str) -> Iterator[Finding]:
    for reason, seen in sorted(refused.items(), key=lambda item: -item[1].rows):
        share = seen.rows / looked_at
        rule, _, name = reason.partition(":")
        yield Finding(
            severity_of(share),
            f"rows.columns.{name}" if name and what == "rows" else what,
            f"{percent(share)} of {what} ({seen.rows:,} of {looked_at:,}) would become dead letters: "
            f"{reason}; for example {seen.example}",
            REMEDIES.get(rule, ""),
        )


def _repeated_ids(sample: Sample) -> Iterator[Finding]:
    ids = next((c for c in sample.columns if c.name == "impression_id"), None)
    if ids is None or not ids.distinct or not ids.rows:
        return
    share = 1 - (ids.distinct + bool(ids.nulls)) / ids.rows
    if share >= WARN_SHARE:
        yield Finding(
            severity_of(share),
            "source.impression_id",
            f"{percent(share)} of rows repeat the id of another one ({ids.distinct:,} ids in {ids.rows:,} rows), and "
            "repeats are dropped",
            "name a column that is different in every row; without `impression_id` rows are numbered",
        )


def _names(names: list[str], most: int = 5) -> str:
    return ", ".join(f"`{name}`" for name in names[:most]) + (", …" if len(names) > most else "")
