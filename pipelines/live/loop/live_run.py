"""A live run: its workers under one coordinator, and students that join and leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.conclusion import Conclusion, track_student, tracker_of
from pipelines.live.loop.continuation import settle
from pipelines.live.loop.coordinator import Coordinator
from pipelines.live.loop.monitor import AlarmMonitor
from pipelines.live.loop.provision import Provision, Say
from pipelines.live.loop.reconciler import RosterReconciler
from pipelines.live.loop.reporting import Reporting
from pipelines.live.loop.supervised import Supervision
from pipelines.live.loop.worker_spec import worker_specs
from pipelines.live.rules.states import WorkerState
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import RunStatus
from pipelines.report.results.losses import losses_now
from pipelines.report.results.summary import Summary
from pipelines.track.mirror import Mirrors
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from streaming.store.files import sync, write_text


class LiveRun:
    """Runs `config` until it ends. `attend(live_run)` is called about every second, from the thread that runs it: the
    place to let students join and leave."""

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        provision: Provision,
        status: RunStatus,
        status_file: StatusFile,
        *,
        until_end: bool,
        watch: Callable[[RunStatus], None],
        attend: Callable[[LiveRun], None],
        say: Say,
    ) -> None:
        self.config = config
        self._run_dir, self._servers, self._until_end, self._say = run_dir, provision.servers, until_end, say
        self._watch, self._attend = watch, attend
        self._reconciler, self._monitor = RosterReconciler(run_dir.roster), AlarmMonitor(config, time.monotonic)
        self._tracker = tracker_of(config, run_dir)
        self._mirrors = None if self._tracker is None else Mirrors(run_dir, self._tracker.mirror, time.monotonic)
        self._conclusion = Conclusion(run_dir, status, self._tracker, say)
        absent = {STUDENT + name for name in run_dir.roster.paused}
        absent |= {STUDENT + student.name for student in config.students if student.joins_at_rows}
        self.coordinator = Coordinator(
            status,
            [job for job in worker_specs(config, run_dir, provision.servers, until_end) if job.name not in absent],
            Supervision.of(provision.launcher, run_dir, config.resources, give_up_s=config.kafka.give_up_s),
            Reporting(
                status,
                run_dir,
                file=status_file,
                tracker=self._tracker,
                watch=self._every_second,
                assess=self._assess,
            ),
            pace=config.pace.mode,
            broker=provision.broker,
            finish=self._finish,
            sleep=provision.launcher.rest,
        )

    def _every_second(self, status: RunStatus) -> None:
        self._watch(status)
        if self._mirrors is not None:
            self._mirrors.look(self.config)
        if not self.coordinator.over:  # later requests are for the next start
            self._reconciler.reconcile(self)
        if self.draining:
            self._conclusion.prepare()
        self._attend(self)

    def _assess(self, status: RunStatus) -> None:
        """Counts, losses and alarms, from what the workers reported."""
        for worker in status.workers.values():
            if worker.kind.writes_lake and worker.report is not None:
                status.counts, losses = losses_now(worker.report.counts or {}, self.config)
                status.losses = losses.as_json()
        status.raise_alarms(self._monitor.check(status))

    def run(self) -> Summary | None:
        """Run until the end; returns the summary of a finished run."""
        self.coordinator.run()
        self._conclusion.break_off(self.coordinator.workers)
        return self._conclusion.summary

    @property
    def lake_rows(self) -> int:
        return int(self.coordinator.status.lake["rows"] or 0)

    @property
    def draining(self) -> bool:
        """True if the stream has ended."""
        return self.coordinator.orders.end_seq is not None

    def _finish(self) -> bool:
        """Conclude, unless a student that was requested a moment ago has joined; False then."""
        self._reconciler.reconcile(self)
        if not self.coordinator.at_rest:
            return False
        self._conclusion.conclude(self.config)
        return True

    def spawn(self, student: dict[str, Any]) -> None:
        """Add a student: `student` is its section of the config. It learns the lake from its first row on, or resumes
        from its checkpoint where it was in this run before. The run directory's config has it from now on.

        Raises BadInput where the run is over, or the section or the student's checkpoints do not fit.
        """
        self._change([*self._sections, student])
        self.coordinator.declare(self.config.students[-1].row_filter)
        name = self.config.students[-1].name
        self.keep_rows_for(name)
        if self._tracker is not None:
            track_student(self.config, self.config.students[-1], self._tracker)
        self._start(STUDENT + name)

    def keep_rows_for(self, name: str) -> None:
        """Protect the lake's rows of a student that has not begun yet from deletion. To be called again now and
        then: a registration expires after `lake.reader_expiry_s`."""
        readers = Readers(self._run_dir.readers)
        before = next((reader.position for reader in readers.all() if reader.name == STUDENT + name), None)
        readers.register(STUDENT + name, self.config.student(name).first_seq - 1 if before is None else before)

    def pause(self, name: str) -> None:
        """Make a student commit and stop. It stays in the run: `resume` has it continue from its checkpoint.

        Raises BadInput where no student of the run has that name.
        """
        self.coordinator.retire(STUDENT + name)
        self.coordinator.workers[STUDENT + name].status.reason = "paused"

    def resume(self, name: str) -> None:
        """Continue a student that was paused or given up.

        Raises BadInput where no student of the run has that name.
        """
        if name not in {student.name for student in self.config.students}:
            raise BadInput(f"no student of the run is named `{name}`")
        if not self.has_worker(name) or self.has_failed(name):
            self._start(STUDENT + name)

    def has_worker(self, name: str) -> bool:
        """True if the run has a worker of this student in any state but retired."""
        worker = self.coordinator.workers.get(STUDENT + name)
        return worker is not None and worker.status.state is not WorkerState.RETIRED

    def has_failed(self, name: str) -> bool:
        """True if the run has given up on this student."""
        worker = self.coordinator.workers.get(STUDENT + name)
        return worker is not None and worker.status.state is WorkerState.FAILED

    def _start(self, worker: str) -> None:
        jobs = worker_specs(self.config, self._run_dir, self._servers, self._until_end)
        (wanted,) = (job for job in jobs if job.name == worker)
        self.coordinator.add(wanted)

    def retire(self, name: str) -> None:
        """Make a student commit and leave. The lake keeps no rows for it any more; its checkpoints stay.

        Raises BadInput where no student of the run has that name.
        """
        kept = [student for student in self._sections if student["name"] != name]
        if self.has_worker(name):
            self.coordinator.retire(STUDENT + name)  # first: what it commits registers it with the lake once more
        elif name not in {student.name for student in self.config.students}:
            raise BadInput(f"no student of the run is named `{name}`")
        self._change(kept)
        if self._tracker is not None:
            self._tracker.finish(STUDENT + name, "KILLED")

    @property
    def _sections(self) -> list[dict[str, Any]]:
        return [student.model_dump(mode="json") for student in self.config.students]

    def _change(self, students: Sequence[dict[str, Any]]) -> None:
        """From now on the run has these students; workers that are restarted are built with the new config."""
        if self.coordinator.over:
            raise BadInput("the run is over; start it again with the students that it is to have")
        config = self.config.having(students)
        settle(config, self._run_dir, evolve=False, drop=(), say=self._say)
        write_text(self._run_dir.config, dump(config))
        sync(self._run_dir.root)
        self.config = config
        self.coordinator.rebuild(worker_specs(config, self._run_dir, self._servers, self._until_end))
