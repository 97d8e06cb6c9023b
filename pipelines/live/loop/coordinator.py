"""Starts the workers, watches them, asks the rules, acts, and reports the run's state.

One loop, no threads: poll every worker, restart those that died, write status.json, pass metrics on. Workers do not
know each other; all they share is the broker, the lake, the snapshots folder, and the orders given here. Workers may
join and leave while the loop runs (`add`, `retire`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.live.loop.conclusion import Finishing
from pipelines.live.loop.embedded_broker import EmbeddedBroker
from pipelines.live.loop.reporting import Reporting
from pipelines.live.loop.signals import stopping
from pipelines.live.loop.supervised import Supervised, Supervision
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import RUN_TRANSITIONS, RunState, WorkerState, moved
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders
from streaming.errors import BadInput

POLL_INTERVAL_S = 0.05
CLOSE_WAIT_S = 20.0
ENDS = {WorkerState.DONE, WorkerState.FAILED, WorkerState.RETIRED}


class Coordinator:
    """Runs workers until they are all done (`until_end`), or until a stop is requested.

    finish  is called when every worker is done, before the run is: it leaves the final losses in the status, and a run
            that lost too much has failed; it returns False where there is more to do first
    """

    def __init__(
        self,
        status: RunStatus,
        jobs: Sequence[WorkerSpec],
        rules: Supervision,
        reporting: Reporting,
        *,
        pace: str = "lockstep",
        broker: EmbeddedBroker | None = None,
        finish: Callable[[], bool | None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rules, self._reporting = rules, reporting
        self._finishing = Finishing(finish, rules.patience, rules.clock)
        self._pace, self._broker = pace, broker
        self._sleep = sleep
        self.stop_asked: str | None = None
        self.status = status
        self.orders = Orders()
        self.workers: dict[str, Supervised] = {}
        self._running = False
        for wanted in jobs:
            self.add(wanted)

    def stop(self, reason: str) -> None:
        """Ask the run to end cleanly; it will be resumable."""
        self.stop_asked = self.stop_asked or reason

    def add(self, wanted: WorkerSpec) -> None:
        """Add a worker, even after the end of the stream: it gets the same orders as the others, and the run is not
        over before it is done. One that has left, or that the run has given up on, may come back. To be called from the
        thread that runs `run`.

        Raises BadInput where a worker has that name, or the run is over.
        """
        if self.over:
            raise BadInput(f"the run is {self.status.state}; no worker can join it: start it again")
        held = self.workers.get(wanted.name)
        if held is not None and held.status.state not in (WorkerState.RETIRED, WorkerState.FAILED):
            raise BadInput(f"`{wanted.name}` is a worker of this run already ({held.status.state}); take another name")
        worker = self.workers[wanted.name] = Supervised(wanted, self._rules)
        worker.status.earlier = self.status.earlier.of(wanted.name) if held is None else held.status.so_far
        self.status.workers = self.status.workers | {wanted.name: worker.status}  # others read it in their threads
        if self._running:
            worker.start()

    def declare(self, verticals: Sequence[str]) -> None:
        """Make augmentation accept these verticals, regardless of `lake.max_verticals`. To be called from the thread
        of `run`."""
        self.orders = replace(self.orders, verticals=tuple(dict.fromkeys([*self.orders.verticals, *verticals])))

    def retire(self, name: str) -> None:
        """Make a worker commit and leave permanently, waiting at most `CLOSE_WAIT_S`; other workers continue. To be
        called from the thread that runs `run`.

        Raises BadInput where there is no such worker, or the run needs it.
        """
        worker = self.workers.get(name)
        if worker is None or worker.status.state is WorkerState.RETIRED:
            there = [n for n, w in self.workers.items() if w.status.kind.may_leave]
            raise BadInput(f"no worker is named `{name}`; those that may leave: {', '.join(there) or 'none'}")
        if not worker.status.kind.may_leave:
            raise BadInput(f"`{name}` cannot leave: the run needs it; stop the run instead")
        self._reporting.pass_on(name, worker.retire(CLOSE_WAIT_S))

    def rebuild(self, jobs: Sequence[WorkerSpec]) -> None:
        """Replace the recipes of workers from their next start on; running ones continue unchanged."""
        for wanted in jobs:
            if (worker := self.workers.get(wanted.name)) is not None:
                worker.wanted = wanted

    def run(self) -> RunState:
        with stopping(self.stop, lambda: self.stop_asked is not None):
            try:
                self._running = True
                for worker in list(self.workers.values()):
                    worker.start()
                self._reporting.show(force=True)
                while not self.over:
                    for worker in list(self.workers.values()):
                        self._attend(worker)
                    self._decide()
                    self._reporting.show()
                    self._sleep(POLL_INTERVAL_S)
                self._close_all()
            except KeyboardInterrupt:
                for worker in self.workers.values():
                    worker.kill()
                if not self.over:
                    self._move(RunState.STOPPED, "interrupted, without waiting for the workers")
                raise
            finally:
                self._close_all()
                if not self.over:
                    self._move(RunState.FAILED, "the coordinator broke off; see logs/coordinator.log")
                self._reporting.show(force=True)
        return self.status.state

    @property
    def at_rest(self) -> bool:
        """True if every worker is done, has failed, or has left."""
        return {worker.status.state for worker in self.workers.values()} <= ENDS

    @property
    def over(self) -> bool:
        return self.status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED)

    # --- one worker --------------------------------------------------------------------------------------------

    def _attend(self, worker: Supervised) -> None:
        failed_before = worker.status.state is WorkerState.FAILED
        report = worker.attend(self.orders)
        if report is not None:
            self._note(worker, report)
        elif worker.status.state is WorkerState.FAILED and not failed_before:
            self._do_without(worker)

    def _note(self, worker: Supervised, report: Report) -> None:
        self._reporting.pass_on(worker.name, report)
        if worker.status.kind.writes_lake:
            if report.lake_seq is not None:  # until it has opened the lake it knows of no row
                self.status.lake |= {"last_lake_seq": report.lake_seq, "rows": report.lake_seq + 1}
            if report.done:
                self.orders = replace(self.orders, end_seq=report.lake_seq)

    def _do_without(self, worker: Supervised) -> None:
        """Go on without a worker that has given up. Its end is the run's, or only its own: the others continue, and the
        run fails when they are done."""
        if worker.status.kind.publishes:
            self.orders = replace(self.orders, teacher_gone=True)
        if worker.status.kind.ends_run(self._pace) and not self.over:  # the first reason stays
            self._fail([worker])

    # --- the run -----------------------------------------------------------------------------------------------

    def _move(self, target: RunState, reason: str | None = None) -> None:
        self.status.state = moved(self.status.state, target, RUN_TRANSITIONS)
        self.status.reason = reason

    def _decide(self) -> None:
        if self.over:
            return
        states = {worker.status.state for worker in self.workers.values()}
        if self.stop_asked:
            self._move(RunState.STOPPED, self.stop_asked)
        elif self._broker is not None and self._broker.given_up is not None:
            self._move(RunState.FAILED, self._broker.given_up)
        elif (died := self._rules.launcher.died) is not None:
            self._move(RunState.FAILED, died)
        elif self.status.state is RunState.STARTING and WorkerState.STARTING not in states:
            self._move(RunState.RUNNING)
        elif self.status.state is RunState.RUNNING and self.orders.end_seq is not None:
            self._move(RunState.DRAINING)
        elif self.status.state in (RunState.RUNNING, RunState.DRAINING) and states <= ENDS:
            self._end()

    def _end(self) -> None:
        """All workers are done, have failed, or have left."""
        failed = [worker for worker in self.workers.values() if worker.status.state is WorkerState.FAILED]
        if failed:
            self._fail(failed)
        elif self._finishing.attempt():
            losses = self.status.losses
            failed_by_loss = losses["severity"] == "fail"
            self._move(RunState.FAILED if failed_by_loss else RunState.DONE, "; ".join(losses["words"]) or None)
        elif self._finishing.given_up is not None:
            self._move(RunState.FAILED, self._finishing.given_up)
        else:
            self.status.waiting = self._finishing.waiting

    def _fail(self, workers: Sequence[Supervised]) -> None:
        """These have given up, and the run with them."""
        self._move(RunState.FAILED, "; ".join(f"{worker.name}: {worker.status.reason}" for worker in workers))
        self.status.mistaken = all(worker.status.cause is Cause.MISTAKE for worker in workers)
        self.status.permanent = any(worker.status.cause is Cause.PERMANENT for worker in workers)

    def _close_all(self) -> None:
        """All are asked before any is waited for. Nobody is, where all died with what had started them."""
        if self._rules.launcher.died is not None:
            return
        deadline = self._rules.clock() + CLOSE_WAIT_S
        for worker in self.workers.values():
            worker.ask_to_close()
        for worker in self.workers.values():
            self._reporting.pass_on(worker.name, worker.close(max(0.5, deadline - self._rules.clock())))
