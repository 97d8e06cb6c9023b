"""Reporting of a coordinator: status.json and the screen about every second, metrics to the tracker."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.states import RunState
from pipelines.live.status.disk import disk_use
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.report import Report
from pipelines.track.mlflow import Tracker

STATUS_INTERVAL_S = 1.0
DISK_INTERVAL_S = 60.0


class Reporting:
    """Writes `status` to status.json, hands it to `watch`, and passes metrics on to `tracker`.

    assess  fills in counts, losses and alarms of a run that has not ended, before each write
    """

    def __init__(
        self,
        status: RunStatus,
        run_dir: RunDir,
        *,
        file: StatusFile | None = None,
        tracker: Tracker | None = None,
        watch: Callable[[RunStatus], None] = lambda status: None,
        assess: Callable[[RunStatus], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status, self._run_dir = status, run_dir
        self._file = file or StatusFile(run_dir.status)
        self._tracker, self._watch, self._assess, self._clock = tracker, watch, assess, clock
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
            self._assess(status)
            status.reason = status.trouble
        self._file.write(status.as_json())
        self._watch(status)

    def pass_on(self, worker: str, report: Report | None) -> None:
        """Pass on the metrics of a report, if any."""
        if report is not None and self._tracker is not None:
            for step, values in report.metrics:
                self._tracker.metrics(worker, step, values)

    def _measure_lake(self) -> None:
        files = bytes_ = 0
        for path in self._run_dir.lake.glob("*/*/*.parquet"):
            try:
                bytes_ += path.stat().st_size
            except FileNotFoundError:  # vacuumed meanwhile
                continue
            files += 1
        self._status.lake |= {"files": files, "bytes": bytes_}
