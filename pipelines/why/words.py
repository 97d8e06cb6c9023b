"""An answer in sentences, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.report.words import moment
from pipelines.why.answer import AlarmAnswer, Answer, ImpressionAnswer, LakeRow, StudentAnswer


def lines_of(answer: Answer) -> list[str]:
    """The answer, a line each.

    >>> lines_of(ImpressionAnswer(7, "unknown", "nothing names this id", searched={"lake": "lake_seq 0 to 9"}))
    ['impression 7: unknown. nothing names this id', 'searched', '  lake: lake_seq 0 to 9']
    """
    if isinstance(answer, ImpressionAnswer):
        return list(_impression(answer))
    return list(_student(answer) if isinstance(answer, StudentAnswer) else _alarm(answer))


def _impression(answer: ImpressionAnswer) -> Iterator[str]:
    yield f"impression {answer.impression_id}: {answer.fate}. {answer.words}"
    if answer.records:
        yield "records (topic:partition:offset:row)"
    for record in answer.records:
        task = "" if record.task is None else f" of {record.task}"
        at = "" if record.event_time_ms is None else f", event time {moment(record.event_time_ms)}"
        yield f"  {record.place}  {record.kind}{task}{at}: {record.outcome}; {record.words}"
    if answer.groups:
        yield "settlement"
    for group in answer.groups:
        yield f"  {group.settlement}: {group.state}; {group.words}"
    for row in answer.rows:
        yield from _row(row)
    yield "searched"
    for name, text in answer.searched.items():
        yield f"  {name}: {text}"


def _row(row: LakeRow) -> Iterator[str]:
    yield f"row lake_seq {row.lake_seq:,} ({row.settlement}), vertical {row.vertical}, block {row.block:,}"
    came = "".join(f"; feedback of {task} came at merge time {moment(at)}" for task, at in row.feedback_ms.items())
    yield f"  shown {moment(row.event_time_ms)}{came}"
    by = row.scored_by
    if by.version is None:
        yield "  scored by no snapshot of the teacher"
    else:
        upto = "" if by.learned_upto is None else f", which had learned up to lake_seq {by.learned_upto:,}"
        behind = "" if by.behind_rows is None else f": {by.behind_rows:,} rows before this one"
        age = "" if by.behind_s is None else f", {by.behind_s:,.0f} s of event time"
        yield f"  scored by the teacher's snapshot {by.version:,}{upto}{behind}{age}"
    for logit in row.logits:
        value = "none" if logit.value is None else f"{logit.value:.4f}"
        why = "" if logit.why_none is None else f": {logit.why_none}"
        revoked = "" if logit.revoked is None else f"; revoked: {logit.revoked}"
        yield f"  logit {logit.task} {value}{why}{revoked}"
    yield "  students"
    for student in row.students:
        step = "" if student.step is None else f", step {student.step:,}"
        number = "" if student.number is None else f", as its row {student.number:,}{step}"
        version = "" if student.version is None else f"; first in version {student.version}"
        logits = "".join(f", {task} {value:.4f}" for task, value in student.predicted.items())
        before = f"; its logits just before{logits.replace(',', ':', 1)}" if logits else ""
        words = f"; {student.words}" if student.words else ""
        yield f"    {student.student}: {student.state}{words}{number}{version}{before}"


def _student(answer: StudentAnswer) -> Iterator[str]:
    yield f"student {answer.student}: {answer.state}. {answer.words}"
    yield f"  for {', '.join(answer.verticals) or 'every vertical'}; tasks {', '.join(answer.tasks)}"
    aliases = ", ".join(f"{alias} {version}" for alias, version in answer.aliases.items() if version)
    yield f"  versions: {aliases or 'none is published'}"
    if answer.lake_range is not None:
        yield f"  lake: lake_seq {answer.lake_range[0]:,} to {answer.lake_range[1]:,}"
    if answer.figures:
        yield "  figures: " + ", ".join(f"{name} {value:.4f}" for name, value in answer.figures.items())
    if answer.teacher:
        first, last = answer.teacher[0], answer.teacher[-1]
        kept = sum(snapshot.kept for snapshot in answer.teacher)
        yield f"  teacher: snapshots {first.version:,} to {last.version:,}, {kept:,} of them still on the disk"
        for snapshot in dict.fromkeys([first, last]):
            upto = "unknown" if snapshot.learned_upto is None else f"{snapshot.learned_upto:,}"
            yield f"    snapshot {snapshot.version:,} had learned up to lake_seq {upto}"
    for offsets in answer.offsets:
        yield (
            f"  kafka: {offsets.topic}/{offsets.partition} offsets {offsets.first:,} to {offsets.last:,} "
            f"({offsets.rows:,} rows)"
        )
    for entry in answer.decisions:
        yield f"  {entry['at']}  {entry['action']} {entry['version'] or ''} by {entry['by']}: {entry['reason']}"


def _alarm(answer: AlarmAnswer) -> Iterator[str]:
    yield f"alarm {answer.alarm}: {'active' if answer.active else 'not active'}. {answer.words}"
    if answer.since is not None:
        yield f"  since {answer.since}, {answer.for_s or 0:,.0f} s"
    for name, figures in answer.figures.items():
        yield f"  {name}: " + ", ".join(f"{key} {value}" for key, value in figures.items())
    if answer.limits:
        yield "  limits: " + ", ".join(f"alarms.{name} {value}" for name, value in answer.limits.items())
    for line in answer.last_seen:
        yield f"  log: {line}"
    if answer.remedy:
        yield f"  what to do: {answer.remedy}"
