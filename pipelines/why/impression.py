"""Fate of an impression: from its record in Kafka to the students that learned it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.freshness import PublishedVersions
from pipelines.why.answer import GroupFate, ImpressionAnswer, LakeRow, SourceRecord, place_of
from pipelines.why.learning import StudentTrace, traces_of
from pipelines.why.letters import held, late, refused
from pipelines.why.logits import logits_of, scored_by
from streaming.errors import BadInput
from streaming.intake.merge import END_OF_TIME
from streaming.lake.delta.log import unfinished
from streaming.lake.reader import LakeReader
from streaming.lake.withdrawn import record_of
from streaming.position import SourcePosition
from streaming.schema import FEEDBACK_TIME, RowSchema
from streaming.settlement.saved.waiting import Held, HeldImpression

OnTopics = Callable[[Config, int | str, Sequence[SourceRecord], Collection[str]], list[SourceRecord]]
"""Looks for an id on the topics: the config, the id, what is known of it, tasks whose label is positive -> all of its
records."""


def id_of(text: str, schema: RowSchema) -> int | str:
    """An impression's id as the run's rows have it. Raises BadInput."""
    if not pa.types.is_integer(schema.id_type):
        return text
    try:
        value = int(text.replace(",", "").replace("_", ""))
        pa.scalar(value, schema.id_type)
    except (ValueError, OverflowError, pa.ArrowException):
        raise BadInput(f"`{text}` is no impression_id of this run: they are whole numbers of 64 bits") from None
    return value


def why_impression(
    run_dir: RunDir, text: str, on_topics: OnTopics | None = None, overrides: list[str] | None = None
) -> ImpressionAnswer:
    """All that the run keeps of an impression; `on_topics`: what to look for its records with, None: they are not
    looked for; `overrides`: of the config, such as a password. Raises BadInput where no run lies there, or the id is
    none."""
    config = config_of(run_dir, overrides)
    impression_id = id_of(text, config.rows)
    lake = None
    if run_dir.lake.is_dir() and unfinished(run_dir.lake) is None:
        lake = LakeReader(run_dir.lake, config.rows)
    learners = traces_of(run_dir, config)
    waiting, table = Held([], [], None), None
    if lake is not None:  # the state first: what leaves it meanwhile is in the lake then
        waiting = held(run_dir, config, lake, impression_id)
        lake.refresh()
        table = lake.read(filter=pc.field("impression_id") == impression_id).table
    rows = [] if table is None else _lake_rows(table, run_dir, config, learners)
    admitted = [_place(row) for row in ([] if table is None else table.to_pylist())]
    records = _records(run_dir, config, impression_id, admitted, waiting)
    if on_topics is not None:
        positive = {task for row in rows for task, label in row.labels.items() if label}
        positive |= {task for impression in waiting.impressions for task in impression.positive}
        records = on_topics(config, impression_id, records, positive)
    groups = _groups(config, rows, waiting)
    searched = _searched(run_dir, lake, waiting, on_topics is not None)
    fate, words = _fate(config, rows, records, groups, waiting)
    if fate == "unknown" and lake is not None and lake.first_lake_seq > 0:
        for learner in learners:
            logged = learner.logged(pc.field("impression_id") == impression_id)
            if logged is not None:
                fate = "deleted"
                words = (
                    f"its row lake_seq {logged.lake_seq:,} is deleted (retention): the lake begins at "
                    f"{lake.first_lake_seq:,}. {learner.name} had learned it, as its row {logged.number:,}"
                )
                break
    return ImpressionAnswer(impression_id, fate, words, groups, records, rows, searched)


def _lake_rows(table: pa.Table, run_dir: RunDir, config: Config, learners: Sequence[StudentTrace]) -> list[LakeRow]:
    versions, record = PublishedVersions(run_dir.teacher_versions), record_of(run_dir.side_tables)
    found = []
    for at in range(table.num_rows):
        row = table.slice(at, 1)
        values = row.to_pylist()[0]
        found.append(
            LakeRow(
                values["lake_seq"],
                values["block"],
                values["settlement"],
                values["vertical"],
                values["event_time_ms"],
                {task: values[f"label_{task}"] for task in config.tasks},
                {t: values[FEEDBACK_TIME + t] for t in config.tasks if values[FEEDBACK_TIME + t] is not None},
                scored_by(values, versions),
                logits_of(values, config, record),
                [learner.fate(row) for learner in learners],
            )
        )
    return found


def _place(row: dict[str, Any]) -> tuple[str, int]:
    """Place and event time of a row's impression."""
    at = SourcePosition(row["source_offset"], row["source_row"])
    return place_of(row["source_topic"], row["source_partition"], at), row["event_time_ms"]


def _records(
    run_dir: RunDir, config: Config, impression_id: int | str, admitted: Sequence[tuple[str, int]], waiting: Held
) -> list[SourceRecord]:
    """The records that are known without a look at the topics."""
    places = dict(admitted)
    for impression in waiting.impressions:
        if impression.place is not None:
            topic, partition, offset, row = impression.place
            places[place_of(topic, partition, SourcePosition(offset, row))] = impression.event_time_ms
    found = [
        SourceRecord(place, "impression", "admitted", "it is the impression of this id", None, at)
        for place, at in places.items()
    ]
    found += [*refused(run_dir, impression_id), *late(run_dir, config, impression_id)]
    for feedback in waiting.feedback:
        topic, partition, offset, row = feedback.place
        place = place_of(topic, partition, SourcePosition(offset, row))
        words = f"it came before its impression, and waits for it until merge time {feedback.until_ms}"
        found.append(SourceRecord(place, "feedback", "waits", words, feedback.task, feedback.event_time_ms))
    return found


def _groups(config: Config, rows: Sequence[LakeRow], waiting: Held) -> list[GroupFate]:
    """State of the impression in each settlement group; nothing where it was never admitted."""
    settled = {row.settlement: row for row in rows}
    pending = waiting.impressions[-1] if waiting.impressions else None
    if not settled and pending is None:
        return []
    found = []
    for group in config.rows.groups:
        row = settled.get(group.name)
        if row is not None:
            labels = ", ".join(
                f"{task.name} {'unknown' if row.labels[task.name] is None else row.labels[task.name]}"
                for task in group.tasks
            )
            found.append(GroupFate(group.name, "settled", f"lake_seq {row.lake_seq:,}, block {row.block:,}: {labels}"))
        elif pending is not None and group.name not in pending.passed:
            found.append(GroupFate(group.name, "pending", _waits(group.name, pending, waiting.watermark_ms)))
        else:
            words = "no task of it has a label that is known: its condition did not come, or it is unknown"
            found.append(GroupFate(group.name, "not applicable", words))
    return found


def _waits(group: str, pending: HeldImpression, watermark_ms: int | None) -> str:
    deadline = pending.deadlines[group]
    left = "" if watermark_ms is None or watermark_ms == END_OF_TIME else f", {_seconds(deadline - watermark_ms)} ahead"
    come = "".join(f"; feedback of {task} came at merge time {at}" for task, at in pending.positive.items())
    return f"its window is open until the watermark is beyond {deadline}{left}{come}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:,.0f} s of event time"


def _fate(
    config: Config,
    rows: Sequence[LakeRow],
    records: Sequence[SourceRecord],
    groups: Sequence[GroupFate],
    waiting: Held,
) -> tuple[Any, str]:
    letters = [record for record in records if record.kind == "impression" and record.outcome == "refused"]
    if rows:
        open_groups = [group.settlement for group in groups if group.state == "pending"]
        more = f"; {', '.join(open_groups)} is still open" if open_groups else ""
        where = ", ".join(f"lake_seq {row.lake_seq:,} ({row.settlement})" for row in rows)
        return "settled", f"it settled: {where}{more}"
    if waiting.impressions:
        if any(group.state == "pending" for group in groups):
            return "pending", "it was read, and waits for its windows to close"
        return "not applicable", "it was read, and left for no group: none of its labels became known"
    if letters:
        return "refused", f"it was refused: {letters[0].words} ({letters[0].place})"
    if any(record.kind == "feedback" for record in records):
        return "feedback only", "feedback names this id; its impression has not been read, or was never sent"
    return "unknown", "nothing that this run keeps names this id"


def _searched(run_dir: RunDir, lake: LakeReader | None, waiting: Held, topics: bool) -> dict[str, str]:
    """Names of the places that were looked through, and how far they go."""
    if lake is None:
        return {"lake": "the run has none yet"}
    found = {"lake": f"lake_seq {lake.first_lake_seq:,} to {lake.last_lake_seq:,}"}
    if lake.first_lake_seq:
        found["lake"] += f"; rows before {lake.first_lake_seq:,} are deleted (retention)"
    if waiting.watermark_ms is not None:
        upto = "the stream's end" if waiting.watermark_ms == END_OF_TIME else f"merge time {waiting.watermark_ms}"
        found["settlement"] = f"as of the last commit, up to {upto}; what was read since is not seen"
    found["tables"] = "dead_letters, late_feedback"
    counts = (lake.metadata() or {}).get("counts") or {}
    if (dropped := counts.get("duplicates_dropped")) and not topics:
        found["duplicates"] = f"{dropped:,} were dropped and are only counted; --topics looks for their records"
    return found
