"""Supervision of one worker: started, polled, restarted when it dies, killed when it hangs, closed."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.ray import Handle, Launcher
from pipelines.live.loop.preflight import GB
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.causes import Died
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Death, GiveUp, Patience, still_counting, verdict
from pipelines.live.rules.states import WORKER_TRANSITIONS, WorkerState, moved
from pipelines.live.status.status import WorkerStatus
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders

LONGEST_STEP_S = 5.0
"""At most so much silence is counted between two polls."""
RATE_WINDOW_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Supervision:
    """Settings of supervision shared by all workers of a run.

    logs           the folder of their logs
    hang_s         a worker that is silent for longer is killed and restarted
    disk_has_room  whether deaths of a full disk may be forgotten
    """

    launcher: Launcher
    logs: Path
    patience: Patience
    hang_s: float
    disk_has_room: Callable[[], bool]
    clock: Callable[[], float]

    @classmethod
    def of(
        cls,
        launcher: Launcher,
        run_dir: RunDir,
        resources: Resources,
        *,
        give_up_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> Supervision:
        """Build from a run's settings; `give_up_s`: how long to wait for an absent broker."""

        def disk_has_room() -> bool:
            return shutil.disk_usage(run_dir.root).free >= resources.min_free_disk_gb * GB

        patience = Patience.of(resources, give_up_s)
        return cls(launcher, run_dir.logs, patience, resources.hang_s, disk_has_room, clock)


class Supervised:
    """A supervised worker and its state; `status` is its public view."""

    def __init__(self, wanted: WorkerSpec, rules: Supervision) -> None:
        self.wanted = wanted
        self.status = WorkerStatus(wanted.name, Kind(wanted.kind))
        self._rules = rules
        self._handle: Handle | None = None
        self._deaths: list[Death] = []
        self._restart_at: float | None = None
        self._well_since: float | None = None
        self._asked_at: float | None = None
        self._rate: tuple[float, int] | None = None

    @property
    def name(self) -> str:
        return self.wanted.name

    def start(self) -> None:
        self._restart_at = self._well_since = self._asked_at = None
        self.status.silent_s = 0.0
        self._handle = self._rules.launcher.start(
            self.name, self.wanted.build, self._rules.logs / f"{self.name}.log", self.wanted.ranks, self.wanted.host
        )
        self._move(WorkerState.STARTING)

    def attend(self, orders: Orders) -> Report | None:
        """Restart the worker if due, poll it, and handle its death. Returns its report where it sent one."""
        if self._restart_at is not None and self._rules.clock() >= self._restart_at:
            self.start()
        if self._handle is None or self.status.state is WorkerState.DONE:
            return None
        try:
            report = self._handle.poll(orders)
            if report is None:
                self._wait(self._handle)
        except Died as death:
            self._bury(death)
            return None
        if report is not None:
            self._note(report, self._handle)
        return report

    def ask_to_close(self) -> None:
        if self._handle is not None:
            try:
                self._handle.ask_to_close()
            except Exception:
                log.exception("asking %s to close", self.name)

    def close(self, wait_s: float) -> Report | None:
        """Make it commit and leave; returns its last report if one arrives within `wait_s`."""
        if self._handle is None:
            return None
        handle, self._handle = self._handle, None
        try:
            return handle.close(wait_s)
        except KeyboardInterrupt:
            self._handle = handle  # to be killed
            raise
        except Exception:
            log.exception("closing %s", self.name)
            return None

    def retire(self, wait_s: float) -> Report | None:
        """Close it permanently: it is neither restarted nor waited for."""
        self.ask_to_close()
        report = self.close(wait_s)
        self._restart_at = None
        if report is not None:
            self.status.report = report
        self.status.reason = self.status.cause = None
        self.status.silent_s, self.status.recent_rows_per_s = 0.0, None
        self._move(WorkerState.RETIRED)
        return report

    def kill(self) -> None:
        if self._handle is not None:
            self._handle.kill()
            self._handle = None

    def _move(self, target: WorkerState) -> None:
        self.status.state = moved(self.status.state, target, WORKER_TRANSITIONS)

    def _wait(self, handle: Handle) -> None:
        """Raises Died for a worker that has been silent for too long, and is killed.

        Only time spent here counts, in small steps: after a pause of this process no worker is blamed for it.
        """
        now, status = self._rules.clock(), self.status
        if self._asked_at is not None and handle.node is not None:
            status.silent_s += min(now - self._asked_at, LONGEST_STEP_S)
        self._asked_at = now
        if status.silent_s > self._rules.hang_s:
            handle.kill()
            raise Died(
                f"it has not reported for {status.silent_s:.0f} s; {self._rules.hang_s:g} s are allowed "
                "(resources.hang_s), so it was killed"
            )

    def _bury(self, death: Died) -> None:
        """Schedule a restart after a pause, or give up."""
        now, status = self._rules.clock(), self.status
        self._handle = self._rate = status.recent_rows_per_s = None
        self._deaths.append(Death(now, death.cause, str(death)))
        status.before = status.whole
        status.silent_s = 0.0
        status.reason, status.cause = str(death), death.cause
        decision = verdict(self._deaths, now, self._rules.patience)
        if isinstance(decision, GiveUp):
            log.error("giving up on %s: %s", self.name, decision.reason)
            self._move(WorkerState.FAILED)
            status.reason = decision.reason
            return
        log.warning("%s died (%s: %s); restarting in %.1f s", self.name, death.cause, death, decision.delay_s)
        self._move(WorkerState.RESTARTING)
        status.restarts += 1
        self._restart_at = now + decision.delay_s

    def _note(self, report: Report, handle: Handle) -> None:
        now, status = self._rules.clock(), self.status
        status.report, status.node = report, handle.node
        status.reason = status.cause = None
        status.silent_s, self._asked_at = 0.0, None
        self._move(WorkerState.DONE if report.done else WorkerState.RUNNING)
        self._well_since = now if self._well_since is None else self._well_since
        if self._deaths:
            self._deaths = still_counting(self._deaths, now - self._well_since, self._rules.disk_has_room())
        if self._rate is None or report.rows < self._rate[1]:
            self._rate = (now, report.rows)
        elif now - self._rate[0] >= RATE_WINDOW_S:
            status.recent_rows_per_s = (report.rows - self._rate[1]) / (now - self._rate[0])
            self._rate = (now, report.rows)
