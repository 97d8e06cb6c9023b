"""Supervision of workers: each started, polled, restarted when it dies, killed when it hangs, closed."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.ray import Handle, Launcher
from pipelines.live.loop.preflight import GB
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.causes import Died
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Death, GiveUp, Patience, still_counting, verdict
from pipelines.live.rules.states import AT_REST, WORKER_TRANSITIONS, WorkerState, moved
from pipelines.live.status.status import EarlierAttempts, WorkerStatus
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders
from streaming.errors import BadInput

LONGEST_STEP_S = 5.0
"""At most so much silence is counted between two polls."""
RATE_WINDOW_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Supervision:
    """Settings of supervision shared by all workers of a run. `give_up_s`: how long an absent broker is waited for."""

    launcher: Launcher
    run_dir: RunDir
    resources: Resources
    give_up_s: float = 300.0
    clock: Callable[[], float] = time.monotonic

    @property
    def patience(self) -> Patience:
        return Patience.of(self.resources, self.give_up_s)

    @property
    def disk_has_room(self) -> bool:
        """True if deaths of a full disk may be forgotten."""
        return shutil.disk_usage(self.run_dir.root).free >= self.resources.min_free_disk_gb * GB


class Supervised:
    """A supervised worker and its state; `status` is its public view."""

    def __init__(self, spec: WorkerSpec, rules: Supervision) -> None:
        self.spec = spec
        self.status = WorkerStatus(spec.name, Kind(spec.kind))
        self._rules = rules
        self._handle: Handle | None = None
        self._deaths: list[Death] = []
        self._restart_at: float | None = None
        self._well_since: float | None = None
        self._asked_at: float | None = None
        self._rate: tuple[float, int] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    def start(self) -> None:
        self._restart_at = self._well_since = self._asked_at = None
        self.status.silent_s = 0.0
        log_file = self._rules.run_dir.logs / f"{self.name}.log"
        try:
            self._handle = self._rules.launcher.start(
                self.name, self.spec.build, log_file, self.spec.ranks, self.spec.host
            )
        except Died as death:
            self._bury(death)
        else:
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

    def begin_anew(self, wait_s: float) -> Report | None:
        """Close it, and start it by its present spec; returns its last report."""
        self.ask_to_close()
        if (report := self.close(wait_s)) is not None:
            self.status.take(report)
        self.status.before, self._rate = self.status.whole, None
        self._move(WorkerState.RESTARTING)
        self.start()
        return report

    def retire(self, wait_s: float) -> Report | None:
        """Close it permanently: it is neither restarted nor waited for."""
        self.ask_to_close()
        report = self.close(wait_s)
        self._restart_at = None
        if report is not None:
            self.status.take(report)
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
        if status.silent_s > self._rules.resources.hang_s:
            handle.kill()
            raise Died(
                f"it has not reported for {status.silent_s:.0f} s; {self._rules.resources.hang_s:g} s are allowed "
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
        status.take(report)
        status.node = handle.node
        status.reason = status.cause = None
        status.silent_s, self._asked_at = 0.0, None
        self._move(WorkerState.DONE if report.done else WorkerState.RUNNING)
        self._well_since = now if self._well_since is None else self._well_since
        if self._deaths:
            self._deaths = still_counting(self._deaths, now - self._well_since, self._rules.disk_has_room)
        if self._rate is None or report.rows < self._rate[1]:
            self._rate = (now, report.rows)
        elif now - self._rate[0] >= RATE_WINDOW_S:
            status.recent_rows_per_s = (report.rows - self._rate[1]) / (now - self._rate[0])
            self._rate = (now, report.rows)


class Workers(dict[str, Supervised]):
    """The workers of a run, by name. `earlier`: their work before the run was resumed."""

    def __init__(self, rules: Supervision, earlier: EarlierAttempts) -> None:
        super().__init__()
        self._rules, self._earlier = rules, earlier

    @property
    def statuses(self) -> dict[str, WorkerStatus]:
        return {name: worker.status for name, worker in self.items()}

    @property
    def at_rest(self) -> bool:
        """True if every worker is done, has failed, or has left."""
        return {worker.status.state for worker in self.values()} <= AT_REST

    def start(self, spec: WorkerSpec) -> None:
        """Start a worker. One that has left, or that the run has given up on, may come back.

        Raises BadInput where a worker has that name.
        """
        former = self.get(spec.name)
        if former is not None and former.status.state not in (WorkerState.RETIRED, WorkerState.FAILED):
            raise BadInput(f"`{spec.name}` is a worker of this run already ({former.status.state}); take another name")
        worker = Supervised(spec, self._rules)
        worker.status.earlier = self._earlier.of(spec.name) if former is None else former.status.so_far
        worker.start()
        self[spec.name] = worker

    def poll(self, orders: Orders) -> dict[str, Report]:
        """New reports; workers that died are restarted when due, or given up."""
        reports = {name: worker.attend(orders) for name, worker in self.items()}
        return {name: report for name, report in reports.items() if report is not None}

    def retire(self, name: str, wait_s: float) -> Report | None:
        """Make a worker commit and leave permanently, waiting at most `wait_s`; returns its last report.

        Raises BadInput where there is no such worker, or the run needs it.
        """
        worker = self.get(name)
        if worker is None or worker.status.state is WorkerState.RETIRED:
            leavers = [n for n, w in self.items() if w.status.kind.may_leave]
            raise BadInput(f"no worker is named `{name}`; those that may leave: {', '.join(leavers) or 'none'}")
        if not worker.status.kind.may_leave:
            raise BadInput(f"`{name}` cannot leave: the run needs it; stop the run instead")
        return worker.retire(wait_s)

    def rebuild(self, specs: Sequence[WorkerSpec]) -> None:
        """Replace the specs of workers from their next start on; running ones continue unchanged."""
        for spec in specs:
            if (worker := self.get(spec.name)) is not None:
                worker.spec = spec

    def close(self, wait_s: float) -> dict[str, Report]:
        """Make all commit and leave within `wait_s`; returns their last reports. All are asked before any is waited
        for."""
        end = self._rules.clock() + wait_s
        for worker in self.values():
            worker.ask_to_close()
        reports = {name: worker.close(max(0.5, end - self._rules.clock())) for name, worker in self.items()}
        return {name: report for name, report in reports.items() if report is not None}

    def kill(self) -> None:
        for worker in self.values():
            worker.kill()
