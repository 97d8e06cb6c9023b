"""The state of a run and its workers as one value, which status.json, the screen and `exfm status` show."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pipelines.rules import Cause, Kind, RunState, WorkerState
from pipelines.workers import Report

WAITS = {Cause.BROKER_AWAY: "broker away", Cause.DISK_FULL: "disk full"}
PAUSED = (WorkerState.RESTARTING, WorkerState.STARTING)
SILENT_S = 30.0


@dataclass
class WorkerStatus:
    name: str
    kind: Kind
    state: WorkerState = WorkerState.STARTING
    restarts: int = 0
    node: str | None = None
    report: Report | None = None
    recent_rows_per_s: float | None = None
    reason: str | None = None
    cause: Cause | None = None
    """The cause of its last death, until it works again."""
    silent_s: float = 0.0
    """How long it has not reported, though it was asked."""
    before: list[Report] = field(default_factory=list)
    """The last reports of this worker's processes that died."""

    @property
    def whole(self) -> list[Report]:
        """The last reports of all processes of this worker since the coordinator started."""
        last = self.report
        return self.before if last is None or last in self.before else [*self.before, last]

    def as_json(self) -> dict[str, Any]:
        report = self.report or Report(self.name, str(self.kind))
        lives = self.state in (WorkerState.RUNNING, WorkerState.DONE)
        return {
            "kind": str(self.kind),
            "pid": report.pid or None if lives else None,
            "node": self.node,
            "state": str(self.state),
            "reason": self.reason,
            "restarts": self.restarts,
            "silent_s": round(self.silent_s, 1),
            "rows": report.rows,
            "rows_per_s": self.recent_rows_per_s,
            "lake_seq": report.lake_seq,
            "lag_rows": report.lag_rows,
            "lag_event_time_s": report.lag_event_time_s,
            "rss_bytes": report.rss_bytes or None if lives else None,
            "ne": report.ne,
            "teacher_version": report.teacher_version,
            "teacher_lag_rows": report.teacher_lag_rows,
            "logit_age_s": report.logit_age_s,
            "note": report.note,
            "ranks": [asdict(rank) for rank in report.ranks] if lives else [],
        }


@dataclass
class RunStatus:
    name: str
    state: RunState = RunState.STARTING
    reason: str | None = None
    mistaken: bool = False
    """It failed by the caller's mistake: the same command would fail again before that is mended."""
    started_monotonic: float = field(default_factory=time.monotonic)
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=lambda: {"bootstrap_servers": None, "pid": None})
    lake: dict[str, Any] = field(default_factory=lambda: {"rows": 0, "bytes": 0, "files": 0, "last_lake_seq": None})
    tracking: dict[str, Any] = field(default_factory=lambda: {"dropped": 0, "problem": None})
    waiting: str | None = None
    """What the run itself waits for, apart from its workers."""

    @property
    def trouble(self) -> str | None:
        """What is wrong although the run continues: who waits for what, who is silent, who has given up."""
        found = [self.waiting] if self.waiting else []
        if self.broker.get("reason"):
            found.append(f"the embedded broker is being started again: {self.broker['reason']}")
        if self.tracking["dropped"]:
            problem = self.tracking["problem"] or "more came than it took"
            found.append(f"{self.tracking['dropped']:,} entries of tracking were dropped, training goes on ({problem})")
        for cause, words in WAITS.items():
            waiting = [w for w in self.workers.values() if w.cause is cause and w.state in PAUSED]
            if waiting:
                names = ", ".join(worker.name for worker in waiting)
                found.append(f"{words}: {names} waiting, nothing is lost ({waiting[0].reason})")
        for worker in self.workers.values():
            if worker.silent_s > SILENT_S:
                found.append(f"{worker.name} has not reported for {worker.silent_s:.0f} s")
            if worker.state is WorkerState.FAILED:
                stale = "stale_teacher: " if worker.kind.publishes else ""
                found.append(f"{stale}{worker.name} has given up, the others go on ({worker.reason})")
        return "; ".join(found) or None

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.started_monotonic

    @property
    def fraction(self) -> float | None:
        """How much of a bounded stream has gone all the way; None where its length is unknown."""
        by_kind = {w.kind: w.report for w in self.workers.values() if w.report}
        ingest, augmentation = by_kind.get(Kind.INGEST), by_kind.get(Kind.AUGMENTATION)
        if ingest is None or ingest.progress is None or augmentation is None or augmentation.progress is None:
            return None
        total = ingest.progress[1]
        settled = augmentation.progress[0]
        lake_rows = 0 if augmentation.lake_seq is None else augmentation.lake_seq + 1
        readers = [
            w.report.lake_seq if w.report and w.report.lake_seq is not None else -1
            for w in self.workers.values()
            if w.kind.reads_lake and w.state is not WorkerState.RETIRED
        ]
        slowest = min(readers, default=-1) + 1
        if not total or lake_rows <= 0:
            return 0.0
        return min(1.0, settled / total) * min(1.0, slowest / lake_rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": str(self.state),
            "reason": self.reason,
            "mistaken": self.mistaken,
            "pid": os.getpid(),
            "updated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "wall_s": round(self.wall_s, 3),
            "fraction": self.fraction,
            "workers": {name: worker.as_json() for name, worker in self.workers.items()},
            "broker": dict(self.broker),  # others write into these while they are turned into text
            "lake": dict(self.lake),
            "tracking": dict(self.tracking),
        }
