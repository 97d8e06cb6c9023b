"""Alarms and idleness of a live run, from changes between checks: last progress of each worker, refused rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from pipelines.core.config.settings import Config
from pipelines.live.rules.alarms import Health, RaisedAlarm, RefusalCounts, alarms_of, hot_partition, words_of
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.counts import UNMATCHED, Counts
from pipelines.live.status.status import RunStatus, StatusAlarm, WorkerStatus
from pipelines.live.workers.report import Report
from streaming.messages.dead_letters import TOMBSTONE

AT_WORK = {WorkerState.RUNNING, WorkerState.RETIRED, WorkerState.FAILED}
LIVE = (WorkerState.STARTING, WorkerState.RUNNING, WorkerState.RESTARTING)
SAMPLES = 60
"""The window in which refused rows are counted is sampled this often, and is exact to one sample."""


class ReadCounts(NamedTuple):
    """Counts of rows of a kind: read, and refused by reason."""

    rows: int
    reasons: Mapping[str, int]


NOTHING = ReadCounts(0, {})


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
        self._samples: dict[str, deque[tuple[float, ReadCounts]]] = {what: deque() for what in topics}

    def check(self, status: RunStatus) -> list[StatusAlarm]:
        """Compute the active alarms."""
        now_s, now = self._clock(), self._now()
        healths = [health for worker in status.workers.values() if (health := self._health(worker, status, now_s))]
        refused = list(self._refused(status, now_s))
        silent = {}
        if self._config.reads_live and status.state is RunState.RUNNING and status.counts is not None:
            silent = {topic: self._moved[what][1] for what, topic in self._topics.items() if what in self._moved}
        raised = alarms_of(healths, refused, silent, self._limits, now_s)
        return [_for_status(alarm, now_s, now) for alarm in raised]

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
        )

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
        for what, samples in self._samples.items():
            now = _read(what, status.counts)
            self._since(what, (now.rows,), now_s)
            if not samples:
                # A new run has read everything since it began; what a resumed one had read before is not known.
                samples.append((self._began_s, NOTHING) if status.attempts == 1 else (now_s, now))
            while samples and samples[-1][1].rows > now.rows:
                samples.pop()  # of a process that died before its commit
            if not samples:
                samples.append((now_s, now))
            if now_s - samples[-1][0] >= self._limits.refused_window_s / SAMPLES:
                samples.append((now_s, now))
            while len(samples) > 1 and now_s - samples[1][0] >= self._limits.refused_window_s:
                samples.popleft()
            since_s, then = samples[0]
            reasons = {why: number - then.reasons.get(why, 0) for why, number in now.reasons.items()}
            yield RefusalCounts(
                what, since_s, now.rows - then.rows, {why: number for why, number in reasons.items() if number > 0}
            )


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


def _read(what: str, counts: Counts) -> ReadCounts:
    kind, rows = (
        ("impression", counts.impressions_read) if what == "impressions" else ("feedback", counts.feedback_read)
    )
    letters = counts.dead_letters_by_reason[kind]
    return ReadCounts(rows, {why: n for why, n in letters.items() if why not in (UNMATCHED, TOMBSTONE)})


def _or_none(place: int | None) -> int:
    return -1 if place is None else place


def _for_status(raised: RaisedAlarm, now_s: float, now: datetime) -> StatusAlarm:
    since = datetime.fromtimestamp(now.timestamp() - (now_s - raised.since_s), UTC)
    return StatusAlarm(
        state=str(raised.alarm),
        severity="note" if raised.alarm.is_note else "alarm",
        workers=raised.workers,
        since=since.isoformat(timespec="seconds"),
        for_s=round(now_s - raised.since_s, 1),
        words=words_of(raised, now_s, now),
    )
