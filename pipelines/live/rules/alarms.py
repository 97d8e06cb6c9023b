"""Alarms: conditions of a run that has not failed but is not healthy. They follow from what was seen, from clocks and
limits.

stalled            a worker, or the whole run, makes no progress although rows wait for it
mass dead letters  a grave share of what was read in the last minutes was refused
lag unknown        how many rows wait cannot be known, since the broker or the worker does not answer
export refused     what would be served of a student is not that student: nothing of it was published
nothing read       the topics of a live run bring nothing: a note, since that may be as it should
hot partition      most of the rows that wait lie in one partition of a topic: a note, since it may be worked off

All times are seconds of one clock that never jumps. Only `words_of` turns them into times of day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from pipelines.core.config.sections import AlarmLimits
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.shares import sure_share

UNKNOWN_S = 5.0
"""How long a lag is unknown before that is an alarm: a restart takes less. It is never shown as a number meanwhile."""
FEWEST_REFUSED = 20
"""Fewer refused rows are not a mass, whatever their share."""
HOT_ROWS, HOT_TIMES, HOT_S = 10_000, 3, 30.0
"""A partition is hot by so many rows, by so many times what the others have, for so long."""
DAY_S = 86_400


class Alarm(StrEnum):
    STALLED = "stalled"
    DEAD_LETTERS = "mass dead letters"
    LAG_UNKNOWN = "lag unknown"
    EXPORT_REFUSED = "export refused"
    NOTHING_READ = "nothing read"
    HOT_PARTITION = "hot partition"

    @property
    def is_note(self) -> bool:
        """True for an alarm that may be harmless."""
        return self in (Alarm.NOTHING_READ, Alarm.HOT_PARTITION)


class HotPartition(NamedTuple):
    """A partition (`topic/number`) in which `rows` of the `of` rows wait that its topic has."""

    name: str
    rows: int
    of: int


def hot_partition(lag: Mapping[str, int]) -> HotPartition | None:
    """The partition that has HOT_ROWS rows more than HOT_TIMES what the others of its topic have on average; None where
    none has.

    >>> hot_partition({"ads/0": 90_000, "ads/1": 2_000, "clicks/0": 70_000})
    HotPartition(name='ads/0', rows=90000, of=92000)
    >>> hot_partition({"ads/0": 90_000, "ads/1": 70_000}), hot_partition({"ads/0": 9_000, "ads/1": 0})
    (None, None)
    """
    hot = []
    for name, rows in lag.items():
        topic = name.rpartition("/")[0]
        others = [count for other, count in lag.items() if other.rpartition("/")[0] == topic and other != name]
        if others and rows >= HOT_ROWS + HOT_TIMES * sum(others) / len(others):
            hot.append(HotPartition(name, rows, rows + sum(others)))
    return max(hot, key=lambda each: each.rows, default=None)


@dataclass(frozen=True)
class Health:
    """Health of a worker that has reported and is not at its end.

    moved_s          when its rows or its position last rose
    lag_rows         how many rows wait for it; None: unknown. 0 for one that waits for no rows (ingest)
    unknown_since_s  since when its lag is unknown, and why
    waits_for        a kind of worker without which it cannot continue
    refused          which export of it was refused, and why; since when
    hot              partition in which most of its rows wait; since when
    """

    name: str
    kind: Kind
    moved_s: float
    lag_rows: int | None
    unknown_since_s: float | None = None
    why_unknown: str = "the broker has not answered"
    waits_for: Kind | None = None
    note: str | None = None
    refused: str | None = None
    refused_since_s: float = 0.0
    hot: HotPartition | None = None
    hot_since_s: float = 0.0


@dataclass(frozen=True)
class RefusalCounts:
    """Rows of a kind (`impressions`, `rows of feedback`) read since `since_s`, and those refused, by reason."""

    what: str
    since_s: float
    read: int
    reasons: Mapping[str, int]

    @property
    def rows(self) -> int:
        return sum(self.reasons.values())


@dataclass(frozen=True)
class RaisedAlarm:
    """An active alarm: its start, and the workers it concerns (none for the run's input)."""

    alarm: Alarm
    since_s: float
    text: str
    workers: tuple[str, ...] = ()


def alarms_of(
    healths: Sequence[Health],
    refused: Sequence[RefusalCounts],
    silent_topics: Mapping[str, float],
    limits: AlarmLimits,
    now_s: float,
) -> list[RaisedAlarm]:
    """All active alarms, the gravest first. `silent_topics`: of a live run, when each topic last brought rows.

    >>> student = Health("student-feed", Kind.STUDENT, moved_s=0.0, lag_rows=700)
    >>> teacher = Health("teacher", Kind.TEACHER, moved_s=995.0, lag_rows=9)
    >>> [found] = alarms_of([student, teacher], [], {}, AlarmLimits(), now_s=1000.0)
    >>> found.alarm, found.workers, found.text
    (<Alarm.STALLED: 'stalled'>, ('student-feed',), 'student-feed makes no progress, and 700 rows wait for it')
    """
    return [
        *_stalled(healths, limits, now_s),
        *_dead_letters(refused, limits, now_s),
        *_lag_unknown(healths, now_s),
        *_exports_refused(healths),
        *_nothing_read(healths, silent_topics, limits, now_s),
        *_hot_partitions(healths, now_s),
    ]


def _stalled(healths: Sequence[Health], limits: AlarmLimits, now_s: float) -> Iterator[RaisedAlarm]:
    moving = {health.kind for health in healths if now_s - health.moved_s < limits.stalled_s}
    stuck = [
        health
        for health in healths
        if health.lag_rows and now_s - health.moved_s >= limits.stalled_s and health.waits_for not in moving
    ]
    if len(stuck) > 1 and not moving:
        waiting = ", ".join(f"{health.lag_rows:,} for {health.name}" for health in stuck)
        said = "; ".join(dict.fromkeys(health.note for health in stuck if health.note))
        text = f"no worker makes progress, and rows wait: {waiting}{_in_brackets(said)}"
        last_s = max(health.moved_s for health in healths)
        yield RaisedAlarm(Alarm.STALLED, last_s, text, tuple(health.name for health in stuck))
        return
    for health in stuck:
        text = f"{health.name} makes no progress, and {health.lag_rows:,} rows wait for it{_in_brackets(health.note)}"
        yield RaisedAlarm(Alarm.STALLED, health.moved_s, text, (health.name,))


def _dead_letters(refused: Sequence[RefusalCounts], limits: AlarmLimits, now_s: float) -> Iterator[RaisedAlarm]:
    for found in refused:
        if found.rows < FEWEST_REFUSED or sure_share(found.rows, found.read) <= limits.refused_share:
            continue
        reason, number = min(found.reasons.items(), key=lambda item: (-item[1], item[0]))
        text = (
            f"{found.rows:,} of {found.read:,} {found.what} were refused in the last {now_s - found.since_s:,.0f} s, "
            f"most for `{reason}` ({number:,})"
        )
        yield RaisedAlarm(Alarm.DEAD_LETTERS, found.since_s, text)


def _lag_unknown(healths: Sequence[Health], now_s: float) -> Iterator[RaisedAlarm]:
    for health in healths:
        if (
            health.lag_rows is None
            and health.unknown_since_s is not None
            and now_s - health.unknown_since_s >= UNKNOWN_S
        ):
            text = f"how many rows wait for {health.name} cannot be known: {health.why_unknown}"
            yield RaisedAlarm(Alarm.LAG_UNKNOWN, health.unknown_since_s, text, (health.name,))


def _exports_refused(healths: Sequence[Health]) -> Iterator[RaisedAlarm]:
    for health in healths:
        if health.refused is not None:
            text = f"{health.name}: {health.refused}"
            yield RaisedAlarm(Alarm.EXPORT_REFUSED, health.refused_since_s, text, (health.name,))


def _hot_partitions(healths: Sequence[Health], now_s: float) -> Iterator[RaisedAlarm]:
    for health in healths:
        if health.hot is not None and now_s - health.hot_since_s >= HOT_S:
            name, rows, of = health.hot
            text = f"{rows:,} of {of:,} rows that wait lie in `{name}`"
            yield RaisedAlarm(Alarm.HOT_PARTITION, health.hot_since_s, text, (health.name,))


def _nothing_read(
    healths: Sequence[Health], silent_topics: Mapping[str, float], limits: AlarmLimits, now_s: float
) -> Iterator[RaisedAlarm]:
    """Only where the topics are known to hold nothing more: either nothing waits, or the other topic is read."""
    reader = next((health for health in healths if health.kind.writes_lake), None)
    if reader is None or reader.lag_rows is None:
        return
    if reader.lag_rows and now_s - reader.moved_s >= limits.unread_s:
        return
    silent = {topic: at_s for topic, at_s in silent_topics.items() if now_s - at_s >= limits.unread_s}
    if silent:
        topics = " and ".join(f"`{topic}`" for topic in silent)
        yield RaisedAlarm(Alarm.NOTHING_READ, max(silent.values()), f"topic{'s' * (len(silent) > 1)} {topics}")


def words_of(raised: RaisedAlarm, now_s: float, now: datetime) -> str:
    """An alarm in one sentence, with its time of day.

    >>> noon = datetime(2026, 11, 23, 12, tzinfo=UTC)
    >>> words_of(RaisedAlarm(Alarm.NOTHING_READ, 925.0, "topic `clicks`"), 1000.0, noon)
    'nothing read: topic `clicks` (since 11:58:45 UTC, 75 s)'
    """
    for_s = now_s - raised.since_s
    form = "%H:%M:%S" if for_s < DAY_S else "%Y-%m-%d %H:%M:%S"
    at = datetime.fromtimestamp(now.timestamp() - for_s, UTC).strftime(form)
    return f"{raised.alarm}: {raised.text} (since {at} UTC, {for_s:,.0f} s)"


def _in_brackets(note: str | None) -> str:
    return f" ({note})" if note else ""
