"""The state of a run and its workers as one value, which status.json, the screen and `exfm status` show."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import ENDED, RunState, WorkerState
from pipelines.live.status.counters import Highest
from pipelines.live.status.counts import Counts
from pipelines.live.status.losses import Losses
from pipelines.live.workers.report import Report

WAITS = {
    Cause.BROKER_AWAY: "broker away",
    Cause.DISK_FULL: "disk full",
    Cause.STILL_HELD: "their predecessors' locks are held",
}
PAUSED = (WorkerState.RESTARTING, WorkerState.STARTING)
SILENT_S = 30.0


@dataclass(frozen=True)
class EarlierWork:
    """One worker's work, summed over earlier attempts; memory is the maximum."""

    rows: int = 0
    restarts: int = 0
    busy_s: float = 0.0
    peak_rss_bytes: int = 0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EarlierAttempts:
    """Totals of the attempts before a run was resumed, one for each start of its coordinator; `started_at`: of the
    first one, None without any. `last`: status.json of the last one, whose counters are gone on from."""

    attempts: int = 0
    wall_s: float = 0.0
    started_at: str | None = None
    workers: Mapping[str, EarlierWork] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)

    def of(self, worker: str) -> EarlierWork:
        return self.workers.get(worker, EarlierWork())


@dataclass
class WorkerStatus:
    name: str
    kind: Kind
    state: WorkerState = WorkerState.STARTING
    restarts: int = 0
    """Since the coordinator started; `earlier` has those before."""
    node: str | None = None
    report: Report | None = None
    recent_rows_per_s: float | None = None
    reason: str | None = None
    cause: Cause | None = None
    """The cause of its last death, until it works again."""
    silent_s: float = 0.0
    """How long it has not reported, though it was asked."""
    alarms: list[str] = field(default_factory=list)
    """The states of `RunStatus.alarms` that are its own."""
    lake_from: int | None = None
    """The first row of the lake that it has done since its report before the last one, which reached `lake_seq`."""
    before: list[Report] = field(default_factory=list)
    """The last reports of this worker's processes that died."""
    earlier: EarlierWork = field(default_factory=EarlierWork)
    """What it did before the run was resumed, and before it left the run or was given up on."""

    def take(self, report: Report) -> None:
        """Take a report of its process. A position that did not move leaves the rows that were done last."""
        last, now = None if self.report is None else self.report.lake_seq, report.lake_seq
        if now is None or now < 0:
            self.lake_from = None
        elif now != last:
            self.lake_from = now if last is None or last > now else last + 1
        self.report = report

    @property
    def whole(self) -> list[Report]:
        """The last reports of all processes of this worker since the coordinator started."""
        last = self.report
        return self.before if last is None or last in self.before else [*self.before, last]

    @property
    def is_fresh(self) -> bool:
        """True if the last report is current."""
        return self.report is not None and self.state is WorkerState.RUNNING and self.silent_s <= SILENT_S

    @property
    def lag_rows(self) -> int | None:
        """Number of rows that wait for it; None if not applicable, or unknown (`lag_known`)."""
        if self.report is None or not self.lag_known:
            return None
        return 0 if self.state is WorkerState.DONE and self.report.lag_rows is not None else self.report.lag_rows

    @property
    def lag_known(self) -> bool:
        """False if an unknown number of rows may wait for it."""
        live = self.state not in (WorkerState.DONE, WorkerState.FAILED, WorkerState.RETIRED)
        asked = self.report is not None and live and self.kind.has_lag
        return not asked or (self.is_fresh and self.report is not None and self.report.lag_rows is not None)

    @property
    def rows(self) -> int:
        """Rows since the run began."""
        if self.report is None:
            return self.earlier.rows
        return self.report.rows if self.report.total_rows is None else self.report.total_rows

    @property
    def all_restarts(self) -> int:
        """Restarts since the run began."""
        return self.earlier.restarts + self.restarts

    @property
    def busy_s(self) -> float:
        """Busy seconds since the run began."""
        return self.earlier.busy_s + sum(report.busy_s for report in self.whole)

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds by phase since the run began."""
        return _summed([self.earlier.phases_s, *(report.phases_s for report in self.whole)])

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by phase since the run began."""
        return _summed([self.earlier.cpu_s, *(report.cpu_s for report in self.whole)])

    @property
    def peak_rss_bytes(self) -> int:
        """Peak memory over all its processes; summed over ranks."""
        return max([self.earlier.peak_rss_bytes, *(report.peak_rss_bytes for report in self.whole)])

    @property
    def so_far(self) -> EarlierWork:
        """Totals of this worker for a successor of the same name."""
        return EarlierWork(self.rows, self.all_restarts, self.busy_s, self.peak_rss_bytes, self.phases_s, self.cpu_s)

    def as_json(self) -> dict[str, Any]:
        report = self.report or Report(self.name, str(self.kind))
        lives = self.state in (WorkerState.RUNNING, WorkerState.DONE)
        done = self.state is WorkerState.DONE
        return {
            "kind": str(self.kind),
            "pid": report.pid or None if lives else None,
            "node": self.node,
            "state": str(self.state),
            "reason": self.reason,
            "restarts": self.all_restarts,
            "silent_s": round(self.silent_s, 1),
            "rows": self.rows,
            "rows_per_s": self.recent_rows_per_s,
            "busy_s": round(self.busy_s, 3),
            "cpu_s": {phase: round(seconds, 3) for phase, seconds in self.cpu_s.items()},
            "phases_s": {phase: round(seconds, 3) for phase, seconds in self.phases_s.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "lake_from": self.lake_from,
            "lake_seq": report.lake_seq,
            "lag_rows": self.lag_rows,
            "lag_known": self.lag_known,
            "lag_event_time_s": None if done else report.lag_event_time_s,
            "rss_bytes": report.rss_bytes or None if lives else None,
            "lag": report.lag,
            "watermark": None if report.watermark_ms is None else _time_of_day(report.watermark_ms),
            "reached": {partition: _time_of_day(at) for partition, at in (report.reached_ms or {}).items()},
            "ne": report.ne,
            "windows": {task: asdict(window) for task, window in (report.windows or {}).items()},
            "quarantined_rows": (report.counts or {}).get("quarantined_rows"),
            "state_bytes": (report.counts or {}).get("state_bytes"),
            "teacher_version": report.teacher_version,
            "teacher_lag_rows": report.teacher_lag_rows,
            "teacher_age_s": None if done else report.teacher_age_s,
            "logit_age_s": report.logit_age_s,
            "freshness": report.freshness,
            "tables": report.tables,
            "note": report.note,
            "alarms": self.alarms,
            "versions": report.versions,
            "ranks": [asdict(rank) for rank in report.ranks] if lives else [],
        }


def _time_of_day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _summed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by phase, over processes."""
    phases: Counter[str] = Counter()
    for part in parts:
        phases.update(part)
    return dict(phases)


@dataclass
class LakeSize:
    """Size of the lake; `last_lake_seq` is None while no row is known."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    last_lake_seq: int | None = None

    def grow_to(self, last_lake_seq: int) -> None:
        self.rows, self.last_lake_seq = last_lake_seq + 1, last_lake_seq


@dataclass
class TrackingHealth:
    """Entries that never reached MLflow, and why."""

    dropped: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class StatusAlarm:
    """An active alarm as status.json has it. `severity`: note or alarm; `since`: time of day in UTC, ISO 8601; `about`:
    which one it is of several of its name; `remedy`: page that says what to do."""

    state: str
    severity: Literal["note", "alarm"]
    workers: tuple[str, ...]
    since: str
    for_s: float
    words: str
    about: str = ""
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"workers": list(self.workers)}


@dataclass
class RunStatus:
    name: str
    state: RunState = RunState.STARTING
    reason: str | None = None
    mistaken: bool = False
    """It failed by the caller's mistake: the same command would fail again before that is mended."""
    permanent: bool = False
    """It failed by what no start mends: data that are gone, a model that diverged."""
    started_monotonic: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """Of the run's first leg."""
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts)
    """The legs before this one, where the run was resumed."""
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=lambda: {"bootstrap_servers": None, "pid": None})
    lake: LakeSize = field(default_factory=LakeSize)
    follows: dict[str, Any] | None = None
    """The run whose lake this one follows: its folder, its state, whether its stream has ended."""
    disk: dict[str, int] = field(default_factory=dict)
    """Bytes in the run directory, by what grows in it."""
    disk_free_bytes: int | None = None
    tracking: TrackingHealth = field(default_factory=TrackingHealth)
    counts: Counts | None = None
    """Outcome of every row; None before the lake's writer has reported."""
    losses: Losses = field(default_factory=Losses)
    alarms: Sequence[StatusAlarm] = ()
    """What is not well although nothing has failed."""
    webhooks: dict[str, Any] | None = None
    """Notices of alarms: how many were sent, and how many were not taken, and why."""
    metrics_url: str | None = None
    """Where Prometheus finds the run's metrics."""
    stage: str | None = None
    """What is being started, before there are workers."""
    waiting: str | None = None
    """What the run itself waits for, apart from its workers."""

    def __post_init__(self) -> None:
        self._highest = Highest(self.earlier.last)

    @staticmethod
    def resuming(name: str, earlier: EarlierAttempts, lake_rows: int = 0) -> RunStatus:
        """Status of a run resumed after `earlier`, with `lake_rows` rows in its lake."""
        status = RunStatus(name, earlier=earlier)
        if lake_rows:
            status.lake.grow_to(lake_rows - 1)
        status.started_at = earlier.started_at or status.started_at
        return status

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def waits_for(self) -> str | None:
        """Current start-up stage until workers run and the first rows are in the lake; None afterwards."""
        if self.over or (self.lake.rows and self.state is not RunState.STARTING):
            return None
        if self.stage is not None:
            return self.stage
        starting = [worker.name for worker in self.workers.values() if worker.state is WorkerState.STARTING]
        if starting:
            return f"waiting for {', '.join(starting)}: their processes start and import torch"
        if self.follows is not None:
            return f"waiting for the first rows of {self.follows['run']}, which is {self.follows['state']}"
        notes = [w.report.note for w in self.workers.values() if w.kind.writes_lake and w.report is not None]
        return notes[0] if notes and not self.lake.rows else None

    @property
    def trouble(self) -> str | None:
        """Problems of a run that continues: waiting, silent or given-up workers."""
        problems = [self.waiting] if self.waiting else []
        if self.broker.get("reason"):
            problems.append(f"the embedded broker is being started again: {self.broker['reason']}")
        if self.tracking.dropped:
            problem = self.tracking.problem or "more came than it took"
            problems.append(f"{self.tracking.dropped:,} entries of tracking were dropped, training goes on ({problem})")
        for cause, words in WAITS.items():
            waiting = [w for w in self.workers.values() if w.cause is cause and w.state in PAUSED]
            if waiting:
                names = ", ".join(worker.name for worker in waiting)
                problems.append(f"{words}: {names} waiting, nothing is lost ({waiting[0].reason})")
        for worker in self.workers.values():
            if worker.silent_s > SILENT_S:
                problems.append(f"{worker.name} has not reported for {worker.silent_s:.0f} s")
            if worker.state is WorkerState.FAILED:
                stale = "stale_teacher: " if worker.kind.publishes else ""
                problems.append(f"{stale}{worker.name} has given up, the others go on ({worker.reason})")
        gone = {worker.name for worker in self.workers.values() if worker.state is WorkerState.FAILED}
        told = [alarm for alarm in self.alarms if alarm.severity != "note" and not (gone & {*alarm.workers})]
        problems += [alarm.words for alarm in told]
        problems += self.losses.words
        return "; ".join(problems) or None

    @property
    def notes(self) -> list[str]:
        """Harmless alarms worth knowing."""
        return [alarm.words for alarm in self.alarms if alarm.severity == "note"]

    def raise_alarms(self, alarms: Sequence[StatusAlarm]) -> None:
        """Replace the alarms."""
        self.alarms = alarms
        for name, worker in self.workers.items():
            worker.alarms = list(dict.fromkeys(alarm.state for alarm in alarms if name in alarm.workers))

    @property
    def leg_wall_s(self) -> float:
        return time.monotonic() - self.started_monotonic

    @property
    def wall_s(self) -> float:
        """Wall time of all attempts."""
        return self.earlier.wall_s + self.leg_wall_s

    @property
    def attempts(self) -> int:
        return self.earlier.attempts + 1

    @property
    def fraction(self) -> float | None:
        """Processed share of a bounded stream; None if its length is unknown."""
        if self.state is RunState.DONE:
            return 1.0
        by_kind = {w.kind: w.report for w in self.workers.values() if w.report}
        ingest, augmentation = by_kind.get(Kind.INGEST), by_kind.get(Kind.AUGMENTATION)
        if ingest is None or ingest.progress is None or augmentation is None or augmentation.progress is None:
            return None
        total = ingest.progress[1]
        settled = augmentation.progress[0]
        lake_rows = 0 if augmentation.lake_seq is None else augmentation.lake_seq + 1
        readers = [
            lake_rows - 1
            if w.state is WorkerState.DONE  # rows behind its last one are not its own
            else w.report.lake_seq
            if w.report and w.report.lake_seq is not None
            else -1
            for w in self.workers.values()
            if w.kind.reads_lake and w.state is not WorkerState.RETIRED
        ]
        slowest = min(readers, default=-1) + 1
        if not total or lake_rows <= 0:
            return 0.0
        return min(1.0, settled / total) * min(1.0, slowest / lake_rows)

    def as_json(self) -> dict[str, Any]:
        value = self._as_json()
        return value | {"ahead": self._highest.ahead(value)}

    @property
    def _not_started(self) -> dict[str, Any]:
        """Earlier work of those that are still to be started."""
        if self.state is RunState.RUNNING:
            return {}
        return {name: asdict(work) for name, work in self.earlier.workers.items() if name not in self.workers}

    def _as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": str(self.state),
            "reason": self.reason,
            "waits_for": self.waits_for,
            "mistaken": self.mistaken,
            "pid": os.getpid(),
            "host": platform.node(),
            "updated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "started_at": self.started_at,
            "wall_s": round(self.wall_s, 3),
            "leg_wall_s": round(self.leg_wall_s, 3),
            "legs": self.attempts,
            "fraction": self.fraction,
            "workers": {name: worker.as_json() for name, worker in self.workers.items()},
            "earlier": self._not_started,
            "broker": dict(self.broker),  # others write into these while they are turned into text
            "lake": asdict(self.lake),
            "follows": self.follows,
            "disk": dict(self.disk),
            "disk_free_bytes": self.disk_free_bytes,
            "tracking": asdict(self.tracking),
            "webhooks": self.webhooks,
            "metrics_url": None if self.over else self.metrics_url,
            "counts": None if self.counts is None else self.counts.as_json(),
            "losses": self.losses.as_json(),
            "alarms": [alarm.as_json() for alarm in self.alarms],
        }
