"""Alarms and idleness of a live run, from changes between checks: last progress of each worker, refused rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pipelines.core.config.settings import Config
from pipelines.live.rules.alarms import (
    Health,
    JoinedShare,
    RaisedAlarm,
    RefusalCounts,
    RunHealth,
    ScoringTeacher,
    about_of,
    alarms_of,
    hot_partition,
    words_of,
)
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.counts import UNMATCHED, Counts
from pipelines.live.status.status import RunStatus, StatusAlarm, WorkerStatus
from pipelines.live.workers.report import Report
from streaming.messages.dead_letters import TOMBSTONE

AT_WORK = {WorkerState.RUNNING, WorkerState.RETIRED, WorkerState.FAILED}
LIVE = (WorkerState.STARTING, WorkerState.RUNNING, WorkerState.RESTARTING)
SAMPLES = 60
"""The span of what counts as lately is sampled this often, and is exact to one sample."""
READ = "read"


class RecentCounts:
    """Counters and what they were some time ago: samples over the last `span_s`, exact to one of SAMPLES.

    >>> recent = RecentCounts(60.0)
    >>> recent.look(0.0, {"read": 5}), recent.look(30.0, {"read": 7}), recent.look(91.0, {"read": 9})
    ((0.0, {'read': 5}), (0.0, {'read': 5}), (30.0, {'read': 7}))
    """

    def __init__(self, span_s: float, began: tuple[float, Mapping[str, int]] | None = None) -> None:
        """`began`: what they are known to have been before the first look."""
        self._span_s = span_s
        self.samples: deque[tuple[float, Mapping[str, int]]] = deque([began] if began else [])

    def look(self, now_s: float, counts: Mapping[str, int]) -> tuple[float, Mapping[str, int]]:
        """Begin of the span, and the counters then. Counters that fell are of a process that died before its commit:
        what it had counted is forgotten."""
        samples = self.samples
        while samples and any(counts.get(name, 0) < number for name, number in samples[-1][1].items()):
            samples.pop()
        if not samples or now_s - samples[-1][0] >= self._span_s / SAMPLES:
            samples.append((now_s, dict(counts)))
        while len(samples) > 1 and now_s - samples[1][0] >= self._span_s:
            samples.popleft()
        return samples[0]


class AlarmMonitor:
    """Finds the alarms of a run with `config` in its status. `clock` never jumps; `now` is the time of day."""

    def __init__(
        self, config: Config, clock: Callable[[], float], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._config, self._limits, self._clock, self._now = config, config.alarms, clock, now
        self._began_s = clock()
        self._moved: dict[str, tuple[tuple[int, ...], float]] = {}
        self._unknown: dict[str, float] = {}
        self._refused_since: dict[str, float] = {}
        self._hot: tuple[str, float] | None = None
        topics = {"impressions": config.kafka.impressions.topic, "rows of feedback": config.kafka.feedback.topic}
        self._topics = topics
        self._recent: dict[str, RecentCounts] = {}
        self._lags: dict[str, deque[tuple[float, int]]] = {}
        self._first: dict[tuple[str, str], float] = {}

    def check(self, status: RunStatus) -> list[StatusAlarm]:
        """Compute the active alarms."""
        now_s, now = self._clock(), self._now()
        healths = [health for worker in status.workers.values() if (health := self._health(worker, status, now_s))]
        raised = alarms_of(healths, self._run_health(status, now_s), self._limits, now_s)
        keys = {(alarm.alarm, about_of(alarm)): alarm for alarm in raised}
        self._first = {key: min(alarm.since_s, self._first.get(key, now_s)) for key, alarm in keys.items()}
        return [_for_status(replace(alarm, since_s=self._first[key]), now_s, now) for key, alarm in keys.items()]

    def _run_health(self, status: RunStatus, now_s: float) -> RunHealth:
        silent, refused = {}, list(self._refused(status, now_s))
        if self._config.reads_live and status.state is RunState.RUNNING and status.counts is not None:
            silent = {topic: self._moved[what][1] for what, topic in self._topics.items() if what in self._moved}
        dropped = {"dropped": status.tracking.dropped}
        gone = [w.reason for w in status.workers.values() if w.kind.publishes and w.state is WorkerState.FAILED]
        return RunHealth(
            refused=refused,
            quarantined=list(self._quarantined(status, now_s)),
            joined=None if status.counts is None else self._joined(status.counts, now_s),
            silent_topics=silent,
            free_bytes=status.disk_free_bytes,
            least_bytes=self._config.resources.min_free_disk_gb * 1e9,
            dropped=dropped["dropped"] - self._look("tracking", now_s, dropped)[1]["dropped"],
            why_dropped=status.tracking.problem,
            teacher_gone=gone[0] if gone else None,
        )

    def _look(
        self, what: str, now_s: float, counts: Mapping[str, int], *, from_zero: bool = False
    ) -> tuple[float, Mapping[str, int]]:
        """Begin of the last `recent_s` seconds, and these counters then. `from_zero`: they were 0 when it began."""
        if what not in self._recent:
            began = (self._began_s, dict.fromkeys(counts, 0)) if from_zero else None
            self._recent[what] = RecentCounts(self._limits.recent_s, began)
        return self._recent[what].look(now_s, counts)

    def _health(self, worker: WorkerStatus, status: RunStatus, now_s: float) -> Health | None:
        report = worker.report
        if worker.state is WorkerState.STARTING and report is None:
            return Health(worker.name, worker.kind, now_s, 0)  # others may wait for it as for one that works
        if report is None or worker.state not in LIVE:
            self._moved.pop(worker.name, None)
            self._unknown.pop(worker.name, None)
            return None
        moved_s = self._since(worker.name, (worker.rows, report.rows, _or_none(report.lake_seq)), now_s)
        lag, since_s = self._lag(worker, report, status), None
        if lag is None:
            since_s = self._unknown.setdefault(worker.name, now_s)
        else:
            self._unknown.pop(worker.name, None)
        running = worker.state is WorkerState.RUNNING
        silent = "it has not reported" if running else f"it is {worker.state}"
        why = "the broker has not answered" if worker.is_fresh else silent
        waits_for = Kind.TEACHER if report.waits_for_teacher else None
        refused_since_s = now_s
        if report.alarm is None:
            self._refused_since.pop(worker.name, None)
        else:
            refused_since_s = self._refused_since.setdefault(worker.name, now_s)
        hot = hot_partition(report.lag or {})
        if hot is None:
            self._hot = None if report.lag is not None else self._hot
        elif self._hot is None or self._hot[0] != hot.name:
            self._hot = (hot.name, now_s)
        return Health(
            worker.name,
            worker.kind,
            moved_s,
            lag,
            since_s,
            why,
            waits_for,
            report.note,
            refused=report.alarm,
            refused_since_s=refused_since_s,
            hot=hot,
            hot_since_s=now_s if self._hot is None else self._hot[1],
            lags=self._lags_of(worker.name, lag, now_s),
            windows=report.windows or {},
            teacher=self._teacher(report),
        )

    def _teacher(self, report: Report) -> ScoringTeacher | None:
        """Snapshot that scores in free pace; in lockstep scoring waits for it."""
        if self._config.pace.mode != "free" or report.teacher_age_s is None or report.done:
            return None
        publish_rows = self._config.teacher.publish_every_rows
        return ScoringTeacher(report.teacher_age_s, report.teacher_lag_rows or 0, publish_rows)

    def _lag(self, worker: WorkerStatus, report: Report, status: RunStatus) -> int | None:
        if not worker.kind.has_lag:
            return 0
        if worker.is_fresh:
            return report.lag_rows
        if not worker.kind.reads_lake:
            return None
        return max(0, _or_none(status.lake.last_lake_seq) - _or_none(report.lake_seq))

    def _since(self, name: str, place: tuple[int, ...], now_s: float) -> float:
        """When one of these numbers last rose. A restart that lowers them is no progress."""
        before, at_s = self._moved.get(name, (place, now_s))
        rose = any(new > old for new, old in zip(place, before, strict=True))
        self._moved[name] = (place, now_s if rose else at_s)
        return self._moved[name][1]

    def _refused(self, status: RunStatus, now_s: float) -> Iterator[RefusalCounts]:
        if status.counts is None:
            return
        for what in self._topics:
            read, reasons = _read(what, status.counts)
            self._since(what, (read,), now_s)
            # A new run has read everything since it began; what a resumed one had read before is not known.
            since_s, then = self._look(what, now_s, {READ: read, **reasons}, from_zero=status.attempts == 1)
            lately = {why: number - then.get(why, 0) for why, number in reasons.items()}
            yield RefusalCounts(what, since_s, read - then[READ], {w: n for w, n in lately.items() if n > 0})

    def _quarantined(self, status: RunStatus, now_s: float) -> Iterator[RefusalCounts]:
        for worker in status.workers.values():
            left_out = None if worker.report is None else (worker.report.counts or {}).get("quarantined_rows")
            if left_out is not None:
                counts = {READ: worker.rows, "not finite": left_out}
                since_s, then = self._look(worker.name, now_s, counts)
                rows = left_out - then["not finite"]
                reasons = {"not finite": rows} if rows else {}
                yield RefusalCounts(f"rows of {worker.name}", since_s, worker.rows - then[READ], reasons)

    def _joined(self, counts: Counts, now_s: float) -> JoinedShare:
        joined = counts.joined_feedback
        decided = joined + counts.late_feedback + counts.unmatched_feedback
        since_s, then = self._look("feedback joined", now_s, {"joined": joined, "decided": decided}, from_zero=True)
        return JoinedShare(since_s, then["joined"], then["decided"], joined - then["joined"], decided - then["decided"])

    def _lags_of(self, worker: str, lag: int | None, now_s: float) -> Sequence[int]:
        """Numbers of rows that waited for a worker of a live stream over the last `recent_s`; empty before these have
        passed."""
        lags = self._lags.setdefault(worker, deque())
        if not self._config.reads_live or lag is None:
            lags.clear()
            return ()
        if not lags or now_s - lags[-1][0] >= self._limits.recent_s / SAMPLES:
            lags.append((now_s, lag))
        while now_s - lags[0][0] > self._limits.recent_s:
            lags.popleft()
        whole = now_s - lags[0][0] > self._limits.recent_s * (1 - 2 / SAMPLES)
        return [rows for _, rows in lags] if whole else ()


class Idleness:
    """Idleness of a run: nothing came, was committed or was learned for `after_s` seconds. Time counts only while every
    worker is at work and it is known how many rows wait."""

    def __init__(self, after_s: float, clock: Callable[[], float]) -> None:
        self._after_s, self._clock = after_s, clock
        self._progress: Hashable = None
        self._since_s = clock()

    def check(self, status: RunStatus) -> bool:
        """Update with the current progress; True if the run is idle."""
        now_s, workers = self._clock(), status.workers.values()
        writers = [worker.report for worker in workers if worker.kind.writes_lake]
        sure = all(report is not None and report.lag_rows is not None for report in writers)
        sure = sure and all(worker.state in AT_WORK for worker in workers)
        reports = [worker.report for worker in workers if worker.report is not None]
        progress = (status.lake.rows, *((report.rows, report.lag_rows) for report in reports))
        if progress != self._progress or not sure:
            self._progress, self._since_s = progress, now_s
        return now_s - self._since_s >= self._after_s


def _read(what: str, counts: Counts) -> tuple[int, dict[str, int]]:
    """Rows of a kind: read, and refused by reason."""
    kind, rows = (
        ("impression", counts.impressions_read) if what == "impressions" else ("feedback", counts.feedback_read)
    )
    letters = counts.dead_letters_by_reason[kind]
    return rows, {why: n for why, n in letters.items() if why not in (UNMATCHED, TOMBSTONE)}


def _or_none(place: int | None) -> int:
    return -1 if place is None else place


def _for_status(raised: RaisedAlarm, now_s: float, now: datetime) -> StatusAlarm:
    since = datetime.fromtimestamp(now.timestamp() - (now_s - raised.since_s), UTC)
    return StatusAlarm(
        state=str(raised.alarm),
        severity=raised.alarm.severity,
        about=about_of(raised),
        workers=raised.workers,
        since=since.isoformat(timespec="seconds"),
        for_s=round(now_s - raised.since_s, 1),
        words=words_of(raised, now_s, now),
        remedy=raised.alarm.remedy,
    )
