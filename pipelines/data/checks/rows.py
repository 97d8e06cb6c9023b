"""Rules of rows: those that would become dead letters, ids that repeat, weights, and columns that say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.sections import LossLimits
from pipelines.core.config.settings import Config
from pipelines.data.findings import Finding, Rules, Severity, percent
from pipelines.data.profile.profile import Profile, RefusedRows
from pipelines.live.status.losses import LossSeverity as Loss
from pipelines.live.training.live_metrics import HEAVY, HEAVY_ROWS
from pipelines.report.results.losses import judged
from pipelines.report.results.remedies import remedy_of
from streaming.messages.dead_letters import TOMBSTONE
from streaming.partitioner import PartitionerName
from streaming.schema import SAMPLE_WEIGHT

RULES = Rules("""
note  rows.tombstones  {what}
    {rows:,} messages have no value (tombstones): dead letters, with which no row is lost
note|warn|stop  rows.refused-in-all  {what}
    {share} of {what} ({rows:,} of {of:,}) would become dead letters in all, for {reasons} reasons
    -> mend the columns named for them
note|warn|stop  rows.refused  {where}
    {share} of {what} ({rows:,} of {of:,}) would become dead letters: {reason}; for example {example}
    -> {remedy}
note|warn|stop  rows.elsewhere  topic {topic}
    partition {number}: {share} of the rows looked at ({rows:,} of {of:,}) lie in another partition than their ids',
    would miss their impression and become dead letters (wrong_partition); for example {example}
    -> {remedy}
warn|stop  rows.id-repeats  source.impression_id
    {share} of rows repeat the id of another one ({ids:,} ids in {rows:,} rows), and repeats are dropped{key}
    -> name a column that is different in every row; without `impression_id` rows are numbered
stop  rows.no-weight  rows.columns.sample_weight
    it is 0 in all rows looked at: nothing is learned of them
warn  rows.heavy  rows.columns.sample_weight
    one of {rows:,} rows looked at (impression_id {id}) has {share} of their weight, {weight:,.6g} of {total:,.6g}:
    figures and models would follow this row
    -> see whether its weight is right; a `maximum` of the column refuses larger ones
warn  rows.weight-as-feature  rows.columns.sample_weight
    it says what a row counts, and features read it, too: who serves has to send it with every row
    -> take it out of the features
stop  rows.beyond-int64  rows.columns.{column}
    values up to {largest:,} are more than int64 holds: rows with one of 2^63 or more are refused
    -> {setting}: string keeps their digits
warn  rows.empty-column  rows.columns.{column}
    no row has a value of {columns}
    -> leave it out of the features
note  rows.one-value  rows.columns
    one value in all rows looked at: {columns}
""")

GRAVITY = {Loss.FAIL: Severity.STOP, Loss.WARN: Severity.WARN, Loss.FINE: Severity.NOTE}


def severity_of(lost: int, of: int, limits: LossLimits) -> Severity:
    """Severity of losing a part of all rows, or of feedback, by the limits of a run.

    >>> [str(severity_of(lost, 1000, LossLimits())) for lost in (1, 30, 980)]
    ['note', 'warn', 'stop']
    """
    return GRAVITY[judged(lost, of, limits)]


def judge_rows(config: Config, profile: Profile) -> Iterator[Finding]:
    limits = config.losses
    yield from _refused(profile.refused, profile.looked_at, "rows", limits)
    yield from _refused(profile.feedback_refused, profile.feedback_looked_at, "rows of feedback", limits)
    yield from _elsewhere(config, profile)
    yield from _repeated_ids(profile, limits)
    yield from _weights(profile)
    if SAMPLE_WEIGHT in config.teacher_features.needs_columns():
        yield RULES("rows.weight-as-feature")
    yield from _beyond_int64(config, profile)
    used = set(config.teacher_features.needs_columns()) & {column.name for column in config.rows.columns}
    columns = [column for column in profile.columns if column.name in used]
    if empty := [c.name for c in columns if c.rows and c.null_share == 1]:
        yield RULES("rows.empty-column", column=empty[0], columns=_names(empty))
    if same := [c.name for c in columns if c.distinct == 1 and c.rows > 1 and not c.nulls]:
        yield RULES("rows.one-value", columns=_names(same))


def _refused(refused: Mapping[str, RefusedRows], looked_at: int, what: str, limits: LossLimits) -> Iterator[Finding]:
    if tombstones := refused.get(TOMBSTONE, RefusedRows()).rows:
        yield RULES("rows.tombstones", what=what, rows=tombstones)
    of, refused = looked_at - tombstones, {why: seen for why, seen in refused.items() if why != TOMBSTONE}
    lost = sum(seen.rows for seen in refused.values())  # a row has one reason
    together = severity_of(lost, of, limits)
    if all(severity_of(seen.rows, of, limits) is not together for seen in refused.values()) and refused:
        values = {"what": what, "share": percent(lost / of), "rows": lost, "of": of, "reasons": len(refused)}
        yield RULES("rows.refused-in-all", together, **values)
    for reason, seen in sorted(refused.items(), key=lambda item: -item[1].rows):
        column = reason.partition(":")[2]
        yield RULES(
            "rows.refused", severity_of(seen.rows, of, limits),
            where=f"rows.columns.{column}" if column and what == "rows" else what, what=what, reason=reason,
            share=percent(seen.rows / of), rows=seen.rows, of=of, example=seen.example,
            remedy=remedy_of(reason, None) or "",
        )  # fmt: skip


def _elsewhere(config: Config, profile: Profile) -> Iterator[Finding]:
    """Rows in another partition than their id's, where partitions are settled by themselves."""
    all_placed = profile.placed.values()
    wrong, by_the_other = sum(p.elsewhere for p in all_placed), sum(p.by_the_other for p in all_placed)
    other = next(name for name in get_args(PartitionerName) if name != config.settlement.partitioner)
    remedy = remedy_of("wrong_partition", None) or ""
    if by_the_other < wrong / 100:
        remedy = f"set settlement.partitioner to {other}: by that one they lie where they belong"
    for (topic, number), seen in sorted(profile.placed.items()):
        if seen.elsewhere:
            about = {"share": percent(seen.elsewhere / seen.rows), "rows": seen.elsewhere, "of": seen.rows}
            severity = severity_of(seen.elsewhere, seen.rows, config.losses)
            about |= {"topic": topic, "number": number, "example": seen.example, "remedy": remedy}
            yield RULES("rows.elsewhere", severity, **about)


def _repeated_ids(profile: Profile, limits: LossLimits) -> Iterator[Finding]:
    ids = next((c for c in profile.columns if c.name == "impression_id"), None)
    if ids is None or not ids.distinct or not ids.rows:
        return
    repeats = ids.rows - ids.nulls - ids.distinct
    if (severity := severity_of(repeats, ids.rows, limits)) is not Severity.NOTE:
        others = _keys(profile.batch)
        key = f"; together with {others} it is another in every row: make one id of both" if others else ""
        share = percent(repeats / ids.rows)
        yield RULES("rows.id-repeats", severity, share=share, ids=ids.distinct, rows=ids.rows, key=key)


def _keys(rows: pa.Table) -> str:
    """The columns, each of which makes a key together with the id. Rows that are the same in every column were sent
    twice, and count once."""
    plain = [f.name for f in rows.schema if pa.types.is_integer(f.type) or pa.types.is_string(f.type)]
    wanted = rows.group_by(plain).aggregate([]).num_rows
    if wanted == pc.count_distinct(rows["impression_id"]).as_py():
        return ""
    others = [name for name in plain if name not in ("impression_id", "event_time_ms")]
    keys = [name for name in others if rows.group_by(["impression_id", name]).aggregate([]).num_rows == wanted]
    return " or ".join(f"`{name}`" for name in keys[:5])


def _weights(profile: Profile) -> Iterator[Finding]:
    if SAMPLE_WEIGHT not in profile.batch.column_names or profile.batch.num_rows < HEAVY_ROWS:
        return
    weights = profile.batch[SAMPLE_WEIGHT].to_numpy().astype(np.float64)
    heaviest, total = int(weights.argmax()), weights.sum()
    if not total:
        yield RULES("rows.no-weight")
    elif (weight := weights[heaviest]) > HEAVY * total:
        about = {"id": profile.batch["impression_id"][heaviest], "share": percent(weight / total)}
        yield RULES("rows.heavy", rows=len(weights), weight=weight, total=total, **about)


def _beyond_int64(config: Config, profile: Profile) -> Iterator[Finding]:
    """Unsigned integers that int64 does not hold."""
    integers = {column.name for column in config.rows.columns if column.type == "int64"}
    integers |= {"impression_id"} if config.rows.impression_id == "int64" else set()
    for column in profile.columns:
        if column.name in integers and column.type == "uint64" and (column.high or 0) >= 2**63:
            setting = "rows.impression_id" if column.name == "impression_id" else "type"
            yield RULES("rows.beyond-int64", column=column.name, largest=column.high, setting=setting)


def _names(names: list[str], most: int = 5) -> str:
    return ", ".join(f"`{name}`" for name in names[:most]) + (", …" if len(names) > most else "")
