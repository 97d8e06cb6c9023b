"""What is going on, as one value: status.json, the screen and `exfm status` all show this."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pipelines.states import RunState, WorkerState
from pipelines.workers.base import Report


@dataclass
class WorkerStatus:
    name: str
    kind: str
    state: WorkerState = WorkerState.STARTING
    restarts: int = 0
    node: str | None = None
    report: Report | None = None
    recent_rows_per_s: float | None = None
    reason: str | None = None
    before: list[Report] = field(default_factory=list)
    """The last reports of this worker's processes that died."""

    @property
    def whole(self) -> list[Report]:
        """Of every process that this worker has had in this run of the coordinator."""
        last = self.report
        return self.before if last is None or last in self.before else [*self.before, last]

    def as_json(self) -> dict[str, Any]:
        report = self.report or Report(self.name, self.kind)
        lives = self.state in (WorkerState.RUNNING, WorkerState.DONE)
        return {
            "kind": self.kind,
            "pid": report.pid or None if lives else None,
            "node": self.node,
            "state": str(self.state),
            "reason": self.reason,
            "restarts": self.restarts,
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
        }


@dataclass
class RunStatus:
    name: str
    state: RunState = RunState.STARTING
    reason: str | None = None
    started_monotonic: float = field(default_factory=time.monotonic)
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    broker: dict[str, Any] = field(default_factory=lambda: {"bootstrap_servers": None, "pid": None})
    lake: dict[str, Any] = field(default_factory=lambda: {"rows": 0, "bytes": 0, "files": 0, "last_lake_seq": None})
    stages: list[str] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.started_monotonic

    @property
    def fraction(self) -> float | None:
        """How much of a bounded stream has gone all the way; None where its length is unknown."""
        by_kind = {w.kind: w.report for w in self.workers.values() if w.report}
        ingest, augmentation = by_kind.get("ingest"), by_kind.get("augmentation")
        if ingest is None or ingest.progress is None or augmentation is None or augmentation.progress is None:
            return None
        total = ingest.progress[1]
        settled = augmentation.progress[0]
        lake_rows = 0 if augmentation.lake_seq is None else augmentation.lake_seq + 1
        readers = [
            w.report.lake_seq if w.report and w.report.lake_seq is not None else -1
            for w in self.workers.values()
            if w.kind in ("teacher", "student")
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
            "pid": os.getpid(),
            "updated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "wall_s": round(self.wall_s, 3),
            "fraction": self.fraction,
            "workers": {name: worker.as_json() for name, worker in self.workers.items()},
            "broker": self.broker,
            "lake": self.lake,
        }
