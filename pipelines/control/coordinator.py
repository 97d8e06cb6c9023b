"""Starts the workers, watches them, asks the policies, acts, and tells what is going on.

One loop, no threads: poll every worker, restart the dead, write status.json, pass metrics on. Workers do not know each
other; all they share is the broker, the lake, the snapshots folder, and the orders given here.
"""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pipelines.config import Resources
from pipelines.control.embedded_broker import EmbeddedBroker
from pipelines.control.preflight import GB
from pipelines.launch import Build, Handle, Launcher
from pipelines.rules import (
    RUN_TRANSITIONS,
    WORKER_TRANSITIONS,
    Cause,
    Death,
    Died,
    GiveUp,
    Patience,
    RunState,
    WorkerState,
    cause_of,
    ends_the_run,
    moved,
    still_counting,
    verdict,
)
from pipelines.run_dir import RunDir
from pipelines.status import RunStatus, StatusFile, WorkerStatus
from pipelines.tracking import Tracker
from pipelines.workers import Orders, Report

STATUS_INTERVAL_S = 1.0
POLL_INTERVAL_S = 0.05
CLOSE_WAIT_S = 20.0
LONGEST_BREATH_S = 5.0
ENDS = {WorkerState.DONE, WorkerState.FAILED}

log = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """A worker that is to run, how it is built, and how many processes hold it."""

    name: str
    kind: str
    build: Build
    ranks: int = 1


@dataclass
class Job:
    """A worker that is to run, and what became of it."""

    wanted: Wanted
    status: WorkerStatus
    handle: Handle | None = None
    deaths: list[Death] = field(default_factory=list)
    restart_at: float | None = None
    well_since: float | None = None
    asked_at: float | None = None
    rate: tuple[float, int] | None = None

    @property
    def name(self) -> str:
        return self.wanted.name


class Coordinator:
    """Runs jobs until they are all done (`until_end`), or until asked to stop.

    `watch(status)` is called about every second, and once at the end; `finish()` when every worker is done, before the
    run is.
    """

    def __init__(
        self,
        run_dir: RunDir,
        status: RunStatus,
        jobs: Sequence[Wanted],
        launcher: Launcher,
        tracker: Tracker | None,
        resources: Resources,
        *,
        give_up_s: float = 300.0,
        pace: str = "lockstep",
        broker: EmbeddedBroker | None = None,
        watch: Callable[[RunStatus], None] = lambda status: None,
        finish: Callable[[], None] = lambda: None,
        status_file: StatusFile | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run_dir = run_dir
        self._launcher = launcher
        self._tracker = tracker
        self._resources = resources
        self._patience = Patience.of(resources, give_up_s)
        self._pace = pace
        self._broker = broker
        self._end_deaths: list[Death] = []
        self._end_at = float("-inf")
        self._watch, self._finish = watch, finish
        self._clock = clock
        self._sleep = sleep
        self._told_at = 0.0
        self._stop_asked: str | None = None
        self._at_once = False
        self.status = status
        self.orders = Orders()
        self.jobs = {wanted.name: Job(wanted, WorkerStatus(wanted.name, wanted.kind)) for wanted in jobs}
        status.workers = {name: job.status for name, job in self.jobs.items()}
        self._file = status_file or StatusFile(run_dir.status)

    def stop(self, reason: str) -> None:
        """Ask the run to end cleanly; it will be resumable."""
        self._stop_asked = self._stop_asked or reason

    def run(self) -> RunState:
        with self._signals():
            try:
                for job in self.jobs.values():
                    self._start(job)
                self._tell(force=True)
                while not self._over():
                    for job in self.jobs.values():
                        self._attend(job)
                    self._decide()
                    self._tell()
                    self._sleep(POLL_INTERVAL_S)
                self._close_all()
            except KeyboardInterrupt:
                self._kill_all()
                if not self._over():
                    self._move(RunState.STOPPED, "interrupted, without waiting for the workers")
                raise
            finally:
                self._close_all()
                if not self._over():
                    self._move(RunState.FAILED, "the coordinator broke off; see logs/coordinator.log")
                self._tell(force=True)
        return self.status.state

    # --- one worker --------------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        job.restart_at = job.well_since = job.asked_at = None
        job.status.silent_s = 0.0
        wanted = job.wanted
        job.handle = self._launcher.start(job.name, wanted.build, self._run_dir.logs / f"{job.name}.log", wanted.ranks)
        job.status.state = moved(job.status.state, WorkerState.STARTING, WORKER_TRANSITIONS)

    def _attend(self, job: Job) -> None:
        if job.restart_at is not None and self._clock() >= job.restart_at:
            self._start(job)
        if job.handle is None or job.status.state is WorkerState.DONE:
            return
        try:
            report = job.handle.poll(self.orders)
            if report is None:
                self._wait_for(job, job.handle)
        except Died as death:
            self._bury(job, death)
            return
        if report is not None:
            self._note(job, report)

    def _wait_for(self, job: Job, handle: Handle) -> None:
        """Raises Died for a worker that has been silent for too long, and is killed.

        Only time spent here counts, in small steps: after a pause of this process nobody is blamed for it.
        """
        now = self._clock()
        if job.asked_at is not None and handle.node is not None:
            job.status.silent_s += min(now - job.asked_at, LONGEST_BREATH_S)
        job.asked_at = now
        if job.status.silent_s > self._resources.hang_s:
            handle.kill()
            raise Died(
                f"it has not reported for {job.status.silent_s:.0f} s; {self._resources.hang_s:g} s are allowed "
                "(resources.hang_s), so it was killed"
            )

    def _bury(self, job: Job, death: Died) -> None:
        now = self._clock()
        job.handle = job.rate = job.status.recent_rows_per_s = None
        job.deaths.append(Death(now, death.cause, str(death)))
        job.status.before = job.status.whole
        job.status.silent_s = 0.0
        job.status.reason, job.status.cause = str(death), death.cause
        decision = verdict(job.deaths, now, self._patience)
        if isinstance(decision, GiveUp):
            self._give_up(job, decision.reason)
            return
        log.warning("%s died (%s: %s); restarting in %.1f s", job.name, death.cause, death, decision.delay_s)
        job.status.state = moved(job.status.state, WorkerState.RESTARTING, WORKER_TRANSITIONS)
        job.status.restarts += 1
        job.restart_at = now + decision.delay_s

    def _give_up(self, job: Job, why: str) -> None:
        """Its end is the run's, or only its own: the others go on without it, and the run fails when they are done."""
        log.error("giving up on %s: %s", job.name, why)
        job.status.state = moved(job.status.state, WorkerState.FAILED, WORKER_TRANSITIONS)
        job.status.reason = why
        if job.status.kind == "teacher":
            self.orders = replace(self.orders, teacher_gone=True)
        if ends_the_run(job.status.kind, self._pace) and not self._over():  # the first reason stays
            self._move(RunState.FAILED, f"{job.name}: {why}")

    def _note(self, job: Job, report: Report) -> None:
        status = job.status
        status.report = report
        status.node = job.handle.node if job.handle else None
        status.reason = status.cause = None
        status.silent_s, job.asked_at = 0.0, None
        target = WorkerState.DONE if report.done else WorkerState.RUNNING
        status.state = moved(status.state, target, WORKER_TRANSITIONS)
        now = self._clock()
        job.well_since = now if job.well_since is None else job.well_since
        if job.deaths:
            job.deaths = still_counting(job.deaths, now - job.well_since, self._disk_has_room())
        if job.rate is None or report.rows < job.rate[1]:
            job.rate = (now, report.rows)
        elif now - job.rate[0] >= 2.0:
            status.recent_rows_per_s = (report.rows - job.rate[1]) / (now - job.rate[0])
            job.rate = (now, report.rows)
        if self._tracker is not None:
            for step, values in report.metrics:
                self._tracker.metrics(job.name, step, values)
        if report.kind == "augmentation":
            self.status.lake["last_lake_seq"] = report.lake_seq
            self.status.lake["rows"] = 0 if report.lake_seq is None else report.lake_seq + 1
            if report.done:
                self.orders = replace(self.orders, end_seq=report.lake_seq)

    # --- the run -----------------------------------------------------------------------------------------------

    def _move(self, target: RunState, reason: str | None = None) -> None:
        self.status.state = moved(self.status.state, target, RUN_TRANSITIONS)
        self.status.reason = reason

    def _over(self) -> bool:
        return self.status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED)

    def _decide(self) -> None:
        if self._over():
            return
        states = {job.status.state for job in self.jobs.values()}
        if self._stop_asked:
            self._move(RunState.STOPPED, self._stop_asked)
        elif self._broker is not None and self._broker.given_up is not None:
            self._move(RunState.FAILED, self._broker.given_up)
        elif self.status.state is RunState.STARTING and WorkerState.STARTING not in states:
            self._move(RunState.RUNNING)
        elif self.status.state is RunState.RUNNING and self.orders.end_seq is not None:
            self._move(RunState.DRAINING)
        elif self.status.state in (RunState.RUNNING, RunState.DRAINING) and states <= ENDS:
            self._end()

    def _end(self) -> None:
        """Everyone has come to an end, good or bad."""
        failed = [job for job in self.jobs.values() if job.status.state is WorkerState.FAILED]
        if failed:
            self._move(RunState.FAILED, "; ".join(f"{job.name}: {job.status.reason}" for job in failed))
            return
        now = self._clock()
        if now < self._end_at:
            return
        try:
            self._finish()
        except Exception as error:
            if cause_of(error) is not Cause.DISK_FULL:
                raise
            self._end_deaths.append(Death(now, Cause.DISK_FULL, str(error)))
            decision = verdict(self._end_deaths, now, self._patience)
            if isinstance(decision, GiveUp):
                self._move(RunState.FAILED, f"writing the summary: {decision.reason}")
                return
            self._end_at = now + decision.delay_s
            self.status.waiting = f"disk full: the summary waits for room ({error})"
            return
        self._move(RunState.DONE)

    def _disk_has_room(self) -> bool:
        return shutil.disk_usage(self._run_dir.root).free >= self._resources.min_free_disk_gb * GB

    def _tell(self, force: bool = False) -> None:
        now = self._clock()
        if force or now - self._told_at >= STATUS_INTERVAL_S:
            self._told_at = now
            self._measure_lake()
            if self._tracker is not None:
                self.status.tracking = {"dropped": self._tracker.dropped, "problem": self._tracker.problem}
            if not self._over():
                self.status.reason = self.status.trouble
            self._file.write(self.status.as_json())
            self._watch(self.status)

    def _measure_lake(self) -> None:
        files = bytes_ = 0
        for path in self._run_dir.lake.glob("*/*/*.parquet"):
            try:
                bytes_ += path.stat().st_size
            except FileNotFoundError:  # vacuumed meanwhile
                continue
            files += 1
        self.status.lake |= {"files": files, "bytes": bytes_}

    def _close_all(self) -> None:
        deadline = self._clock() + CLOSE_WAIT_S
        for job in self.jobs.values():
            if job.handle is not None:
                try:
                    job.handle.ask_to_close()
                except Exception:
                    log.exception("asking %s to close", job.name)
        for job in self.jobs.values():
            if job.handle is None:
                continue
            try:
                report = job.handle.close(max(0.5, deadline - self._clock()))
            except Exception:
                log.exception("closing %s", job.name)
                report = None
            if report is not None and self._tracker is not None:
                for step, values in report.metrics:
                    self._tracker.metrics(job.name, step, values)
            job.handle = None

    def _kill_all(self) -> None:
        for job in self.jobs.values():
            if job.handle is not None:
                job.handle.kill()
                job.handle = None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run cleanly; a second one at once."""

        def asked(number: int, frame: object) -> None:
            if self._at_once:
                return  # it is ending already, and a third one must not break that off
            if self._stop_asked:
                self._at_once = True
                raise KeyboardInterrupt
            self.stop("interrupted" if number == signal.SIGINT else "asked to stop")

        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
