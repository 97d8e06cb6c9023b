"""What a coordinator shows: status.json and the screen about every second, metrics to the tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipelines.results import Losses
from pipelines.rules import RunState
from pipelines.run_dir import RunDir
from pipelines.status import RunStatus, StatusFile, disk_use
from pipelines.tracking import Tracker
from pipelines.workers import Report

STATUS_INTERVAL_S = 1.0
DISK_INTERVAL_S = 60.0


Judge = Callable[[Mapping[str, Any]], tuple[dict[str, Any], Losses]]
"""Counts and losses, from the counters of the worker that writes the lake."""


Look = Callable[[RunStatus], list[dict[str, Any]]]
"""The alarms of a run, from its status now and what was seen before (`Sightings`)."""


class Reporting:
    """Writes `status` to `file`, hands it to `watch`, and passes metrics on to `tracker`."""

    def __init__(
        self,
        status: RunStatus,
        file: StatusFile,
        run_dir: RunDir,
        tracker: Tracker | None,
        watch: Callable[[RunStatus], None],
        judge: Judge | None,
        clock: Callable[[], float],
        look: Look | None = None,
    ) -> None:
        self._judge, self._look = judge, look
        self._status, self._file, self._run_dir = status, file, run_dir
        self._tracker, self._watch, self._clock = tracker, watch, clock
        self._shown_at = 0.0
        self._measured_at: float | None = None

    def show(self, *, force: bool = False) -> None:
        now, status = self._clock(), self._status
        if not force and now - self._shown_at < STATUS_INTERVAL_S:
            return
        self._shown_at = now
        self._measure_lake()
        if force or self._measured_at is None or now - self._measured_at >= DISK_INTERVAL_S:
            self._measured_at = now
            status.disk = disk_use(self._run_dir.root)
        if self._tracker is not None:
            status.tracking = {"dropped": self._tracker.dropped, "problem": self._tracker.problem}
        if status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED):
            status.raise_alarms([])
        else:
            self._account()
            status.raise_alarms([] if self._look is None else self._look(status))
            status.reason = status.trouble
        self._file.write(status.as_json())
        self._watch(status)

    def pass_on(self, worker: str, report: Report | None) -> None:
        """The metrics of a report, where there is one."""
        if report is not None and self._tracker is not None:
            for step, values in report.metrics:
                self._tracker.metrics(worker, step, values)

    def _account(self) -> None:
        status = self._status
        for worker in status.workers.values():
            if self._judge is not None and worker.kind.writes_lake and worker.report is not None:
                status.counts, losses = self._judge(worker.report.counts or {})
                status.losses = losses.as_json()

    def _measure_lake(self) -> None:
        files = bytes_ = 0
        for path in self._run_dir.lake.glob("*/*/*.parquet"):
            try:
                bytes_ += path.stat().st_size
            except FileNotFoundError:  # vacuumed meanwhile
                continue
            files += 1
        self._status.lake |= {"files": files, "bytes": bytes_}
