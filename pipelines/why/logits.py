"""A row's teacher logits: which snapshot gave them, how old it was, what revoked them, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.core.config.settings import Config
from pipelines.live.rules.scoring_snapshot import lockstep_version
from pipelines.live.training.freshness import PublishedVersions
from pipelines.why.answer import LogitFate, ScoredBy
from streaming.lake.withdrawn import Withdrawal


def scored_by(row: Mapping[str, Any], versions: PublishedVersions) -> ScoredBy:
    """The snapshot that scored a row of the lake; what it had learned, where the log of versions still knows."""
    version = row["teacher_version"]
    known = None if version is None else versions.get(version)
    if known is None:
        return ScoredBy(version, row["scored_at_ms"])
    behind_s = None if known.event_time_ms is None else (row["event_time_ms"] - known.event_time_ms) / 1000
    return ScoredBy(version, row["scored_at_ms"], known.lake_seq, row["lake_seq"] - known.lake_seq, behind_s)


def logits_of(row: Mapping[str, Any], config: Config, record: Sequence[Withdrawal]) -> list[LogitFate]:
    """The logit of every task that the row may have one of."""
    found = []
    for task in config.tasks:
        value = row[f"teacher_logit_{task}"]
        why = None if value is not None else _why_none(task, row, config)
        revoked = None if value is None else revocation(row, record)
        found.append(LogitFate(task, value, why, None if revoked is None else revoked[1]))
    return found


def revocation(row: Mapping[str, Any], record: Sequence[Withdrawal]) -> tuple[int, str] | None:
    """The first withdrawal of a row's logits, by its number in the record, in words; None where none is."""
    version, seq = row["teacher_version"], row["lake_seq"]
    for number, each in enumerate(record):
        if each.kind == "rescored" and seq >= each.first and (each.last is None or seq <= each.last):
            return number, f"{each.words} in its place: {each.why} (recorded at lake_seq {each.at:,})"
        if each.kind != "logits" or version is None or version < each.first:
            continue
        if (each.last is None or version <= each.last) and (each.before is None or seq < each.before):
            return number, f"{each.words} are revoked: {each.why} (recorded at lake_seq {each.at:,})"
    return None


def _why_none(task: str, row: Mapping[str, Any], config: Config) -> str:
    """The reason of a null logit, by the rules that scored the row."""
    if row["teacher_version"] is None:
        return _why_no_snapshot(row["block"], config)
    names = [group.name for group in config.rows.groups]
    own = next(number for number, group in enumerate(config.rows.groups) if task in (t.name for t in group.tasks))
    if own < names.index(row["settlement"]):
        return f"`{task}` had settled in an earlier row of this impression: the snapshot may have learned that label"
    upto = config.teacher.learned_upto_ms
    if upto is not None and row["event_time_ms"] <= upto:
        return f"the teacher began trained, on rows that were shown up to {upto}, which may have been this one"
    return f"snapshot {row['teacher_version']} had learned no label of `{task}` yet"


def _why_no_snapshot(block: int, config: Config) -> str:
    pace, first = config.pace, config.teacher.first_version
    if pace.mode == "lockstep" and lockstep_version(block, pace.lag, first=first) is None:
        return f"the teacher had no snapshot for block {block}: pace.lag is {pace.lag}, and it had learned nothing"
    if pace.max_age_s is None:
        return "the teacher had published no snapshot yet"
    return f"no snapshot yet, or one that was older than pace.max_age_s, {pace.max_age_s:g} s"
