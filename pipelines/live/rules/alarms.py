"""Alarms: conditions of a run that has not failed but is not healthy. They follow from what was seen, from clocks and
limits.

`ALARMS` is their table: what each one says, and whether it calls a person or is a note. docs/operations/alarms.md says
of each what to do.

All times are seconds of one clock that never jumps. Only `words_of` turns them into times of day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import sqrt
from typing import Literal, NamedTuple

from pipelines.core.config.sections import AlarmLimits
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.shares import sure_share
from pipelines.live.training.judged_windows import TWIN, JudgedWindow

UNKNOWN_S = 5.0
"""How long a lag is unknown before that is an alarm: a restart takes less. It is never shown as a number meanwhile."""
FEWEST_REFUSED = 20
"""Fewer refused rows are not a mass, whatever their share."""
IN_THE_FUTURE = "in_the_future"
HOT_ROWS, HOT_TIMES, HOT_S = 10_000, 3, 30.0
"""A partition is hot by so many rows, by so many times what the others have, for so long."""
DAY_S = 86_400


CLOCK_SHARE = 0.01
"""A producer's clock is off where surely more of its rows than this lie in the future."""
QUARANTINED_SHARE = 0.001
"""So many rows that a model cannot learn are no accident."""
GROWN_ROWS = 10_000
"""A lag below is not growing, it is a block."""
FEWEST_POSITIVES = 200
"""Figures of a window with fewer are judged by nobody."""
FEWEST_JOINED = 1000
"""Feedback decided before its share is compared."""
SURE = 3.0
"""Standard deviations by which a figure of a window has to be beyond its limit."""


class Alarm(StrEnum):
    FAILED = "run failed"
    STALLED = "stalled"
    DEAD_LETTERS = "mass dead letters"
    LAG_UNKNOWN = "lag unknown"
    LAG_GROWING = "lag growing"
    EXPORT_REFUSED = "export refused"
    STALE_TEACHER = "stale teacher"
    CALIBRATION = "calibration drift"
    NE_ABOVE = "NE too high"
    LABEL_RATE = "label rate jump"
    JOIN_RATE = "join rate down"
    CLOCK = "clock off"
    QUARANTINE = "quarantine"
    DISK = "disk nearly full"
    TRACKING = "tracking behind"
    NOTHING_READ = "nothing read"
    HOT_PARTITION = "hot partition"

    @property
    def severity(self) -> Severity:
        return ALARMS[self][0]

    @property
    def is_note(self) -> bool:
        """True for an alarm that may be harmless."""
        return self.severity == "note"

    @property
    def sentence(self) -> str:
        """The condition, in one sentence."""
        return ALARMS[self][1]

    @property
    def remedy(self) -> str:
        """Page that says what to do.

        >>> Alarm.NE_ABOVE.remedy
        'docs/operations/alarms.md#ne-too-high'
        """
        return f"{REMEDIES}#{self.lower().replace(' ', '-')}"


Severity = Literal["note", "alarm"]
REMEDIES = "docs/operations/alarms.md"
ALARMS: dict[Alarm, tuple[Severity, str]] = {
    Alarm.FAILED: ("alarm", "The run has ended in failure."),
    Alarm.STALLED: ("alarm", "A worker, or the whole run, makes no progress although rows wait for it."),
    Alarm.DEAD_LETTERS: ("alarm", "A grave share of what was read in the last minutes was refused."),
    Alarm.LAG_UNKNOWN: ("alarm", "How many rows wait cannot be known: the broker or the worker does not answer."),
    Alarm.LAG_GROWING: ("alarm", "More and more rows wait for a worker: it is slower than the stream."),
    Alarm.EXPORT_REFUSED: ("alarm", "What would be served of a student is not that student; nothing was published."),
    Alarm.STALE_TEACHER: ("alarm", "Logits come from an old snapshot: the teacher has given up, or is too slow."),
    Alarm.CALIBRATION: ("alarm", "A model predicts surely more, or fewer, positives than there are."),
    Alarm.NE_ABOVE: ("alarm", "A student predicts worse than its twin without a teacher, or than the base rate."),
    Alarm.LABEL_RATE: ("alarm", "The share of positives is surely another than before."),
    Alarm.JOIN_RATE: ("alarm", "Less feedback than before meets its impression in time."),
    Alarm.CLOCK: ("alarm", "Rows come from the future: a producer's clock is off."),
    Alarm.QUARANTINE: ("alarm", "A model leaves out many rows, because they or what it makes of them is not finite."),
    Alarm.DISK: ("alarm", "Less room is left on the disk than a start of the run would ask for."),
    Alarm.TRACKING: ("note", "MLflow does not take what it is sent; training goes on."),
    Alarm.NOTHING_READ: ("note", "The topics of a live run bring nothing: that may be as it should be."),
    Alarm.HOT_PARTITION: ("note", "Most of the rows that wait lie in one partition: that may be worked off."),
}


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


class ScoringTeacher(NamedTuple):
    """Snapshot that scores a live stream: its age, the rows that it lacks, and after how many the teacher publishes."""

    age_s: float
    lag_rows: int
    publish_rows: int


@dataclass(frozen=True)
class Health:
    """Health of a worker that has reported and is not at its end.

    moved_s          when its rows or its position last rose
    lag_rows         how many rows wait for it; None: unknown. 0 for one that waits for no rows (ingest)
    unknown_since_s  since when its lag is unknown, and why
    waits_for        a kind of worker without which it cannot continue
    refused          which export of it was refused, and why; since when
    hot              partition in which most of its rows wait; since when
    lags             of a live stream: how many rows waited for it, over the last `recent_s`, in order
    windows          the last window of each task that its models were judged on
    teacher          of a worker that scores: its snapshot
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
    lags: Sequence[int] = ()
    windows: Mapping[str, JudgedWindow] = field(default_factory=dict)
    teacher: ScoringTeacher | None = None


@dataclass(frozen=True)
class RefusalCounts:
    """Rows of a kind (`impressions`, `rows of feedback`, a worker's) taken since `since_s`, and those refused, by
    reason."""

    what: str
    since_s: float
    read: int
    reasons: Mapping[str, int]

    @property
    def rows(self) -> int:
        return sum(self.reasons.values())


class JoinedShare(NamedTuple):
    """Feedback that met its impression in time, of all that was decided: before, and lately (since `since_s`)."""

    since_s: float
    joined_before: int
    decided_before: int
    joined: int
    decided: int


@dataclass(frozen=True)
class RunHealth:
    """Health of what belongs to no worker's progress.

    refused       rows read lately, and those refused
    quarantined   rows that each worker learned lately, and those it left out
    joined        feedback lately and before; None where nothing is known before
    silent_topics  of a live run, when each topic last brought rows
    free_bytes    room on the disk (None: not known), and `least_bytes` for which a start asks
    dropped       entries that MLflow has not taken lately, and why
    teacher_gone  why the teacher has given up, where the others go on
    """

    refused: Sequence[RefusalCounts] = ()
    quarantined: Sequence[RefusalCounts] = ()
    joined: JoinedShare | None = None
    silent_topics: Mapping[str, float] = field(default_factory=dict)
    free_bytes: int | None = None
    least_bytes: float = 0.0
    dropped: int = 0
    why_dropped: str | None = None
    teacher_gone: str | None = None


@dataclass(frozen=True)
class RaisedAlarm:
    """An active alarm: its start, and the workers it concerns (none for the run's input). `about`: which one it is of
    several of its name."""

    alarm: Alarm
    since_s: float
    text: str
    workers: tuple[str, ...] = ()
    about: str = ""


def alarms_of(healths: Sequence[Health], run: RunHealth, limits: AlarmLimits, now_s: float) -> list[RaisedAlarm]:
    """All active alarms, the gravest first.

    >>> student = Health("student-feed", Kind.STUDENT, moved_s=0.0, lag_rows=700)
    >>> teacher = Health("teacher", Kind.TEACHER, moved_s=995.0, lag_rows=9)
    >>> [found] = alarms_of([student, teacher], RunHealth(), AlarmLimits(), now_s=1000.0)
    >>> found.alarm, found.workers, found.text
    (<Alarm.STALLED: 'stalled'>, ('student-feed',), 'student-feed makes no progress, and 700 rows wait for it')
    """
    return [
        *_stalled(healths, limits, now_s),
        *_refused(Alarm.DEAD_LETTERS, "refused", run.refused, limits.refused_share, now_s),
        *_lag_unknown(healths, now_s),
        *_lag_growing(healths, now_s),
        *_exports_refused(healths),
        *_stale_teacher(healths, run, limits, now_s),
        *_windows(healths, limits, now_s),
        *_join_rate(run.joined, limits),
        *_clock(run.refused, now_s),
        *_refused(Alarm.QUARANTINE, "left out", run.quarantined, QUARANTINED_SHARE, now_s),
        *_disk(run, now_s),
        *_tracking(run, now_s),
        *_nothing_read(healths, run.silent_topics, limits, now_s),
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
        yield RaisedAlarm(Alarm.STALLED, last_s, text, tuple(health.name for health in stuck), "all workers")
    for health in stuck:  # those stand beside it: none of them is over
        text = f"{health.name} makes no progress, and {health.lag_rows:,} rows wait for it{_in_brackets(health.note)}"
        yield RaisedAlarm(Alarm.STALLED, health.moved_s, text, (health.name,))


def _refused(
    alarm: Alarm, fate: str, counts: Sequence[RefusalCounts], share: float, now_s: float
) -> Iterator[RaisedAlarm]:
    for found in counts:
        if found.rows < FEWEST_REFUSED or sure_share(found.rows, found.read) <= share:
            continue
        reason, number = min(found.reasons.items(), key=lambda item: (-item[1], item[0]))
        text = (
            f"{found.rows:,} of {found.read:,} {found.what} were {fate} in the last {now_s - found.since_s:,.0f} s, "
            f"most for `{reason}` ({number:,})"
        )
        yield RaisedAlarm(alarm, found.since_s, text, about=found.what)


def _clock(counts: Sequence[RefusalCounts], now_s: float) -> Iterator[RaisedAlarm]:
    for found in counts:
        ahead = found.reasons.get(IN_THE_FUTURE, 0)
        if ahead >= FEWEST_REFUSED and sure_share(ahead, found.read) > CLOCK_SHARE:
            text = (
                f"{ahead:,} of {found.read:,} {found.what} in the last {now_s - found.since_s:,.0f} s lie in the "
                "future; `exfm dead-letters list` names their partitions"
            )
            yield RaisedAlarm(Alarm.CLOCK, found.since_s, text, about=found.what)


def _lag_growing(healths: Sequence[Health], now_s: float) -> Iterator[RaisedAlarm]:
    for health in healths:
        half = len(health.lags) // 2
        if not half or health.lags[-1] < GROWN_ROWS:
            continue
        first, second = health.lags[:half], health.lags[half:]
        if min(second) > max(first):
            text = f"{health.lags[-1]:,} rows wait for {health.name}, and at most {max(first):,} did some minutes ago"
            yield RaisedAlarm(Alarm.LAG_GROWING, now_s, text, (health.name,))


def _stale_teacher(
    healths: Sequence[Health], run: RunHealth, limits: AlarmLimits, now_s: float
) -> Iterator[RaisedAlarm]:
    if run.teacher_gone is not None:
        text = f"the teacher has given up, and its last snapshot keeps scoring ({run.teacher_gone})"
        yield RaisedAlarm(Alarm.STALE_TEACHER, now_s, text, ("teacher",))
        return
    for health in healths:
        if health.teacher is None:
            continue
        age_s, lag_rows, publish_rows = health.teacher
        if age_s >= limits.teacher_s and lag_rows > 2 * publish_rows:
            text = (
                f"the snapshot that scores is {age_s:,.0f} s old and lacks {lag_rows:,} rows; the teacher publishes "
                f"every {publish_rows:,}"
            )
            yield RaisedAlarm(Alarm.STALE_TEACHER, now_s - age_s, text, ("teacher",))


def _windows(healths: Sequence[Health], limits: AlarmLimits, now_s: float) -> Iterator[RaisedAlarm]:
    """Judge complete windows after the first one, in which a model is new. The first model of each is the worker's."""
    for health in healths:
        for task, window in health.windows.items():
            if window.number < 2:
                continue
            for alarm, text in _of_window(window, limits):
                words = f"{text}, in the last {window.rows:,} rows of {task}"
                yield RaisedAlarm(alarm, now_s, f"{health.name}: {words}", (health.name,), f"{health.name} {task}")


def _of_window(window: JudgedWindow, limits: AlarmLimits) -> Iterator[tuple[Alarm, str]]:
    few, many = _certain(window.positives)
    if window.rate_before and max(window.positives, window.rate_before * window.rows) >= FEWEST_POSITIVES:
        times = window.rate / window.rate_before
        expected = window.rate_before * window.rows
        if few > limits.label_rate_times * expected or many * limits.label_rate_times < expected:
            yield Alarm.LABEL_RATE, f"{window.rate:.2%} are positive, {times:.2f} times the share before"
    if window.positives < FEWEST_POSITIVES:
        return
    (_, calibration), *_ = window.calibration.items()
    low, high = limits.calibration
    if calibration is not None:
        predicted = calibration * window.positives
        if predicted > high * many or predicted < low * few:
            yield Alarm.CALIBRATION, f"{calibration:.2f} times as many positives are predicted as there are"
    ne, twin = next(iter(window.ne.values())), window.ne.get(TWIN)
    for other, its in [("the base rate", 1.0), (f"its twin ({twin or 0:.4f})", twin)]:
        if ne is not None and its is not None and ne > its * (1 + limits.ne_margin):
            yield Alarm.NE_ABOVE, f"NE is {ne:.4f}, {ne / its - 1:.1%} above {other}"
            return


def _certain(count: int) -> tuple[float, float]:
    """Least and most that is expected where so many were counted.

    >>> [round(each) for each in _certain(400)], [round(each) for each in _certain(0)]
    ([340, 460], [0, 3])
    """
    return max(0.0, count - SURE * sqrt(count)), count + SURE * sqrt(max(1, count))


def _join_rate(share: JoinedShare | None, limits: AlarmLimits) -> Iterator[RaisedAlarm]:
    if share is None or share.decided_before < FEWEST_JOINED or share.decided < FEWEST_REFUSED:
        return
    before = share.joined_before / share.decided_before
    most = 1 - sure_share(share.decided - share.joined, share.decided)
    if most < limits.joined_share * before:
        text = (
            f"{share.joined:,} of {share.decided:,} rows of feedback met their impression in time lately, "
            f"{share.joined / share.decided:.0%}; before it were {before:.0%}"
        )
        yield RaisedAlarm(Alarm.JOIN_RATE, share.since_s, text, about="feedback")


def _disk(run: RunHealth, now_s: float) -> Iterator[RaisedAlarm]:
    if run.free_bytes is not None and run.free_bytes < run.least_bytes:
        text = f"{run.free_bytes / 1e9:.2f} GB are free, and a start asks for {run.least_bytes / 1e9:.2f}"
        yield RaisedAlarm(Alarm.DISK, now_s, text, about="disk")


def _tracking(run: RunHealth, now_s: float) -> Iterator[RaisedAlarm]:
    if run.dropped:
        why = run.why_dropped or "more came than it took"
        yield RaisedAlarm(Alarm.TRACKING, now_s, f"{run.dropped:,} entries were dropped ({why})", about="MLflow")


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
        words = f"topic{'s' * (len(silent) > 1)} {topics}"
        yield RaisedAlarm(Alarm.NOTHING_READ, max(silent.values()), words, about="topics")


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


def about_of(raised: RaisedAlarm) -> str:
    """Subject that tells it from others of its name, whatever its numbers are by now."""
    return raised.about or ", ".join(raised.workers)


def _in_brackets(note: str | None) -> str:
    return f" ({note})" if note else ""
