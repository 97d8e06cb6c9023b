"""Answers as data: what `exfm why --json` prints, and the page shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from streaming.position import SourcePosition

Outcome = Literal["admitted", "duplicate", "refused", "label", "repeat", "late", "waits", "not read", "unaccounted"]


@dataclass(frozen=True)
class SourceRecord:
    """One record of a topic that carries the impression's id: `place` is `topic:partition:offset:row`."""

    place: str
    kind: Literal["impression", "feedback"]
    outcome: Outcome
    words: str
    task: str | None = None
    event_time_ms: int | None = None


@dataclass(frozen=True)
class LogitFate:
    """A task's teacher logit in a row: the value as it was logged, and who gave it.

    why_none    None where there is one
    revoked     what withdrew it, and from which `lake_seq` on readers see null
    """

    task: str
    value: float | None
    why_none: str | None = None
    revoked: str | None = None


@dataclass(frozen=True)
class ScoredBy:
    """The teacher's snapshot that scored a row: the last row it had learned, and how far that lies before."""

    version: int | None
    scored_at_ms: int
    learned_upto: int | None = None
    behind_rows: int | None = None
    behind_s: float | None = None


@dataclass(frozen=True)
class StudentFate:
    """A student's use of a row.

    state       learned, learns later, or why it never does
    version     the first published version that has learned it; None where there is none yet
    number      of its own rows, counted from 1, in the order in which it learns
    step        the training step that learned it, counted from 1
    predicted   its logits just before, by task
    """

    student: str
    state: Literal[
        "learned", "later", "not its row", "began later", "other tasks", "withdrawn", "left out", "unknown", "gone"
    ]
    words: str
    version: str | None = None
    number: int | None = None
    step: int | None = None
    predicted: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LakeRow:
    """An impression's row in the lake, for one settlement group."""

    lake_seq: int
    block: int
    settlement: str
    vertical: str
    event_time_ms: int
    labels: dict[str, int | None]
    feedback_ms: dict[str, int]
    scored_by: ScoredBy
    logits: list[LogitFate]
    students: list[StudentFate]


@dataclass(frozen=True)
class GroupFate:
    """State of an impression in one settlement group."""

    settlement: str
    state: Literal["settled", "pending", "not applicable", "deleted", "unknown"]
    words: str


@dataclass(frozen=True)
class ImpressionAnswer:
    """Fate of an impression. `searched`: what was looked through, as far as it goes."""

    impression_id: int | str
    fate: Literal["settled", "pending", "refused", "feedback only", "not applicable", "deleted", "unknown"]
    words: str
    groups: list[GroupFate] = field(default_factory=list)
    records: list[SourceRecord] = field(default_factory=list)
    rows: list[LakeRow] = field(default_factory=list)
    searched: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"of": "impression"} | asdict(self)


@dataclass(frozen=True)
class SnapshotOfTeacher:
    """A snapshot of the teacher: the last row that it had learned; `kept`: it is on the disk."""

    version: int
    learned_upto: int | None
    kept: bool


@dataclass(frozen=True)
class OffsetRange:
    """First and last offset of a partition among the rows of a range of the lake."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class StudentAnswer:
    """Lineage of a student's version: rows of the lake, snapshots of the teacher, offsets in Kafka."""

    student: str
    version: str | None
    words: str
    state: str
    verticals: list[str]
    tasks: list[str]
    aliases: dict[str, str | None]
    published: dict[str, Any] | None
    learned_rows: int | None
    lake_range: list[int] | None
    teacher: list[SnapshotOfTeacher]
    offsets: list[OffsetRange]
    figures: dict[str, float]
    decisions: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return {"of": "student"} | asdict(self)


@dataclass(frozen=True)
class AlarmAnswer:
    """An alarm: whether it stands, since when, and by which figures and limits it is judged."""

    alarm: str
    active: bool
    words: str
    severity: str = "alarm"
    since: str | None = None
    for_s: float | None = None
    workers: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    last_seen: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"of": "alarm"} | asdict(self)


Answer = ImpressionAnswer | StudentAnswer | AlarmAnswer


def place_of(topic: str, partition: int, at: SourcePosition) -> str:
    """Place of a record, as `exfm dead-letters show` takes it.

    >>> place_of("ads", 0, SourcePosition(17, 3))
    'ads:0:17:3'
    """
    return f"{topic}:{partition}:{at.offset}:{at.row}"
