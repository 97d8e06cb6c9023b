"""Lineage of a student's version: rows of the lake, snapshots of the teacher, offsets in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.training.freshness import PublishedVersions
from pipelines.track.registry.ledger import Entry, Ledger
from pipelines.why.answer import OffsetRange, SnapshotOfTeacher, StudentAnswer
from pipelines.why.learning import StudentTrace, learned_upto, traces_of
from streaming.errors import BadInput
from streaming.lake.delta.log import unfinished
from streaming.lake.reader import LakeReader

REGISTRY = "registry"
"""What a student's checkpoint says of its versions (Coverage)."""
DECISIONS = 20
"""So many of the last entries of the ledger are told."""


def why_student(run_dir: RunDir, name: str, version: str | None = None, *, offsets: bool = True) -> StudentAnswer:
    """Lineage of a student's version; None: its champion, or the newest that was published. `offsets`: look through the
    lake for the offsets of its rows.

    Raises BadInput where there is no such run, student or version."""
    config = config_of(run_dir)
    learners = {learner.name: learner for learner in traces_of(run_dir, config)}
    if name not in learners:
        raise BadInput(f"no student `{name}` in {run_dir.root}; choose from {', '.join(learners) or 'none'}")
    learner = learners[name]
    ledger = Ledger(run_dir, name)
    aliases = ledger.aliases().as_json()
    published = learner.published
    if version is not None and version not in published:
        known = ", ".join(published) or "none is published yet"
        raise BadInput(f"`{name}` has no version {version}; choose from {known}")
    chosen = version or aliases["champion"] or next(reversed(published), None)
    entry = published.get(chosen) if chosen is not None else None
    lineage = {} if entry is None else entry.get("lineage") or {}
    lake_range = lineage.get("lake_range") or _learned_range(learner, entry)
    teachers = lineage.get("teacher_versions") or _learned_teachers(learner)
    return StudentAnswer(
        name,
        chosen,
        _words(learner, chosen, entry),
        "unknown" if learner.worker is None else learner.worker.state,
        list(learner.settings.row_filter),
        list(learner.config.student_tasks(learner.settings)),
        aliases,
        None if entry is None else {name: entry.get(name) for name in ("at", "reason", "lake_seq", "event_time_ms")},
        _rows(learner, entry),
        lake_range,
        [] if teachers is None else _snapshots(run_dir, *teachers),
        _offsets(run_dir, learner, lake_range) if offsets and lake_range is not None else [],
        {} if entry is None else {k: v for k, v in (entry.get("figures") or {}).items() if v is not None},
        [
            {name: each.get(name) for name in ("at", "action", "version", "by", "reason")}
            for each in learner.entries[-DECISIONS:]
        ],
    )


def _words(learner: StudentTrace, version: str | None, entry: Entry | None) -> str:
    if entry is None:
        return f"no version of it is published; it stands at lake_seq {learner.position:,}"
    return (
        f"version {version} was published at {entry['at']}, with all rows up to lake_seq {learned_upto(entry):,} "
        f"learned; it stands at lake_seq {learner.position:,} now"
    )


def _rows(learner: StudentTrace, entry: Entry | None) -> int | None:
    if entry is not None:
        return entry.get("rows")
    return None if learner.checkpoint is None else int(learner.checkpoint["rows"])


def _learned_range(learner: StudentTrace, entry: Entry | None) -> list[int] | None:
    """Rows of a version without lineage, as the end of a run publishes it, by its newest checkpoint."""
    first = _registry(learner).get("first_seq")
    return None if first is None else [first, learner.position if entry is None else learned_upto(entry)]


def _learned_teachers(learner: StudentTrace) -> list[int] | None:
    return _registry(learner).get("teachers")


def _registry(learner: StudentTrace) -> Mapping[str, Any]:
    return (learner.checkpoint or {}).get(REGISTRY) or {}


def _snapshots(run_dir: RunDir, first: int, last: int) -> list[SnapshotOfTeacher]:
    known = PublishedVersions(run_dir.teacher_versions)
    found = []
    for version in range(first, last + 1):
        published = known.get(version)
        kept = (run_dir.snapshots / version_name(version)).is_dir()
        if published is not None or kept or version in (first, last):
            found.append(SnapshotOfTeacher(version, None if published is None else published.lake_seq, kept))
    return found


def _offsets(run_dir: RunDir, learner: StudentTrace, lake_range: list[int]) -> list[OffsetRange]:
    """Offsets of the rows of its verticals, as far as the lake still has them."""
    if not run_dir.lake.is_dir() or unfinished(run_dir.lake) is not None:
        return []
    lake = LakeReader(run_dir.lake, learner.config.rows)
    names = ["source_topic", "source_partition", "source_offset"]
    verticals = None if learner.settings.learns_from_others else set(learner.settings.row_filter) or None
    at, upto = max(lake_range[0], lake.first_lake_seq) - 1, min(lake_range[1], lake.last_lake_seq)
    parts = []
    cursor = lake.cursor(names, verticals)
    cursor.position = at
    while cursor.position < upto:
        rows = lake.read_from(cursor, upto=upto, limit_rows=lake.chunk_rows).table
        grouped = rows.group_by(names[:2]).aggregate([("source_offset", each) for each in ("min", "max", "count")])
        parts.append(grouped)
    if not parts:
        return []
    whole = pa.concat_tables(parts).group_by(names[:2])
    found = whole.aggregate(
        [("source_offset_min", "min"), ("source_offset_max", "max"), ("source_offset_count", "sum")]
    )
    return sorted(
        (
            OffsetRange(
                row["source_topic"],
                row["source_partition"],
                row["source_offset_min_min"],
                row["source_offset_max_max"],
                row["source_offset_count_sum"],
            )
            for row in found.to_pylist()
        ),
        key=lambda each: (each.topic, each.partition),
    )
