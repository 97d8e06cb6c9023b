"""Rows that would become dead letters, and columns that say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.sections import LossLimits
from pipelines.core.config.settings import Config
from pipelines.data.checks.sample import Refused, Sample
from pipelines.data.profile.finding import Finding, Severity, note, percent, stop, warn
from pipelines.live.training.live_metrics import HEAVY, HEAVY_ROWS
from pipelines.report.results.losses import Severity as Loss
from pipelines.report.results.losses import judged
from streaming.messages.dead_letters import TOMBSTONE
from streaming.schema import SAMPLE_WEIGHT

REMEDIES = {
    "null": "declare the column with `nullable: true`, or give a value in every row; inside a list of floats each "
    "value has its place: fill it, or write null for the whole list",
    "not_finite": "declare the column with `nullable: true`: NaN then counts as missing",
    "out_of_range": "widen `minimum` and `maximum` of the column, or the table that it is an index into; a dense "
    "feature of large numbers takes them with transform `log1p` or `standardise`",
    "too_long": "raise `max_length` of the column, or leave it out",
    "bad_event_time": "check the column of the time and its unit",
    "in_the_future": "correct the producer's clock; settlement.max_future_skew_s bounds how far clocks may differ",
    "bad_vertical": "name a column of short texts as `vertical`",
    "too_many_verticals": "name a column with few values as `vertical`, or raise lake.max_verticals",
    "unknown_task": "name the tasks of `rows.tasks` as the feedback does",
    "missing_column": "declare the column with `nullable: true`, or take it out of `rows.columns`",
    "wrong_type": "declare the column with the type that it has",
}

GRAVITY = {Loss.FAIL: Severity.STOP, Loss.WARN: Severity.WARN, Loss.FINE: Severity.NOTE}


def severity_of(lost: int, of: int, limits: LossLimits) -> Severity:
    """How grave it is to lose a part of all rows, or of feedback: by the limits at which a run would say so.

    >>> [str(severity_of(lost, 1000, LossLimits())) for lost in (1, 30, 980)]
    ['note', 'warn', 'stop']
    """
    return GRAVITY[judged(lost, of, limits)]


def judge_rows(config: Config, sample: Sample) -> Iterator[Finding]:
    limits = config.losses
    yield from _refused(sample.refused, sample.looked_at, "rows", limits)
    yield from _refused(sample.feedback_refused, sample.feedback_looked_at, "rows of feedback", limits)
    yield from _repeated_ids(sample, limits)
    yield from _heavy_row(sample)
    if SAMPLE_WEIGHT in config.features.needs_columns():
        yield warn(
            f"rows.columns.{SAMPLE_WEIGHT}",
            "it says what a row counts, and features read it, too: who serves has to send it with every row",
            "take it out of the features",
        )
    yield from _wrapped_ids(config, sample)
    used = set(config.features.needs_columns()) & {column.name for column in config.rows.columns}
    empty = [c.name for c in sample.columns if c.rows and c.null_share == 1 and c.name in used]
    if empty:
        yield warn(f"rows.columns.{empty[0]}", f"no row has a value of {_names(empty)}", "leave it out of the features")
    same = [c.name for c in sample.columns if c.name in used and c.distinct == 1 and c.rows > 1 and not c.nulls]
    if same:
        yield note("rows.columns", f"one value in all rows looked at: {_names(same)}")


def _refused(refused: Mapping[str, Refused], looked_at: int, what: str, limits: LossLimits) -> Iterator[Finding]:
    if tombstones := refused.get(TOMBSTONE, Refused()).rows:
        yield note(what, f"{tombstones:,} messages have no value (tombstones): dead letters, with which no row is lost")
    refused, looked_at = {why: seen for why, seen in refused.items() if why != TOMBSTONE}, looked_at - tombstones
    lost = sum(seen.rows for seen in refused.values())  # a row has one reason
    together = severity_of(lost, looked_at, limits)
    if all(severity_of(seen.rows, looked_at, limits) is not together for seen in refused.values()) and refused:
        yield Finding(
            together,
            what,
            f"{percent(lost / looked_at)} of {what} ({lost:,} of {looked_at:,}) would become dead letters in all, for "
            f"{len(refused)} reasons",
            "mend the columns named for them",
        )
    for reason, seen in sorted(refused.items(), key=lambda item: -item[1].rows):
        rule, _, name = reason.partition(":")
        yield Finding(
            severity_of(seen.rows, looked_at, limits),
            f"rows.columns.{name}" if name and what == "rows" else what,
            f"{percent(seen.rows / looked_at)} of {what} ({seen.rows:,} of {looked_at:,}) would become dead letters: "
            f"{reason}; for example {seen.example}",
            REMEDIES.get(rule, ""),
        )


def _repeated_ids(sample: Sample, limits: LossLimits) -> Iterator[Finding]:
    ids = next((c for c in sample.columns if c.name == "impression_id"), None)
    if ids is None or not ids.distinct or not ids.rows:
        return
    repeats = ids.rows - ids.nulls - ids.distinct
    if (severity := severity_of(repeats, ids.rows, limits)) is not Severity.NOTE:
        with_it = _keys(sample.batch)
        found = f"; together with {with_it} it is another in every row: make one id of both" if with_it else ""
        yield Finding(
            severity,
            "source.impression_id",
            f"{percent(repeats / ids.rows)} of rows repeat the id of another one ({ids.distinct:,} ids in "
            f"{ids.rows:,} rows), and repeats are dropped{found}",
            "name a column that is different in every row; without `impression_id` rows are numbered",
        )


def _keys(rows: pa.Table) -> str:
    """The columns, each of which makes a key together with the id. Rows that are the same in every column were sent
    twice, and count once."""
    plain = [f.name for f in rows.schema if pa.types.is_integer(f.type) or pa.types.is_string(f.type)]
    wanted = rows.group_by(plain).aggregate([]).num_rows
    if wanted == pc.count_distinct(rows["impression_id"]).as_py():
        return ""
    others = [name for name in plain if name not in ("impression_id", "event_time_ms")]
    found = [name for name in others if rows.group_by(["impression_id", name]).aggregate([]).num_rows == wanted]
    return " or ".join(f"`{name}`" for name in found[:5])


def _heavy_row(sample: Sample) -> Iterator[Finding]:
    if SAMPLE_WEIGHT not in sample.batch.column_names or sample.batch.num_rows < HEAVY_ROWS:
        return
    weights = sample.batch[SAMPLE_WEIGHT].to_numpy().astype(np.float64)
    heaviest, total = int(weights.argmax()), weights.sum()
    if not total:
        yield stop(f"rows.columns.{SAMPLE_WEIGHT}", "it is 0 in all rows looked at: nothing is learned of them")
    elif weights[heaviest] > HEAVY * total:
        yield warn(
            f"rows.columns.{SAMPLE_WEIGHT}",
            f"one of {len(weights):,} rows looked at (impression_id {sample.batch['impression_id'][heaviest]}) has "
            f"{percent(weights[heaviest] / total)} of their weight, {weights[heaviest]:,.6g} of {total:,.6g}: figures "
            "and models would follow this row",
            "see whether its weight is right; a `maximum` of the column refuses larger ones",
        )


def _wrapped_ids(config: Config, sample: Sample) -> Iterator[Finding]:
    """Unsigned integers that int64 does not hold."""
    integers = {column.name for column in config.rows.columns if column.type == "int64"}
    integers |= {"impression_id"} if config.rows.impression_id == "int64" else set()
    for column in sample.columns:
        if column.name in integers and column.type == "uint64" and (column.highest or 0) >= 2**63:
            own = "rows.impression_id: string" if column.name == "impression_id" else "type: string"
            yield stop(
                f"rows.columns.{column.name}",
                f"values up to {column.highest:,} are more than int64 holds: rows with one of 2^63 or more are refused",
                f"{own} keeps their digits",
            )


def _names(names: list[str], most: int = 5) -> str:
    return ", ".join(f"`{name}`" for name in names[:most]) + (", …" if len(names) > most else "")
