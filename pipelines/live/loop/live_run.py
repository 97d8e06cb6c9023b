"""A live run: one loop, in one thread, from the start of its workers to their end.

    poll       every worker: its report, or its death                         supervised.py
    look       at the lake of another run, where it follows one   each second lake_watch.py
    reconcile  students that join, pause, continue or leave   each second     reconciler.py
    scale      to another number of augmentation workers      each second
    decide     the run's next state, by a pure rule                           rules/course.py
    act        take that state; conclude once every worker is done            conclusion.py
    show       status.json with measures and alarms, screen   each second     measures.py, monitor.py

The parts do not know each other: what one of them finds is handed to the next as a value. Workers do not know each
other either; all they share is the broker, the lake, the snapshots folder, and the orders given here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exfm.errors import ModelError
from pipelines.core.config.identity import STUDENT, TEACHER
from pipelines.core.config.scaling import answer_request, with_workers, workers_request
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.object_storage import shown
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.conclusion import Conclusion, track_student
from pipelines.live.loop.continuation import settle
from pipelines.live.loop.lake_watch import LakeView, LakeWatch
from pipelines.live.loop.measures import Measures
from pipelines.live.loop.monitor import AlarmMonitor, Idleness
from pipelines.live.loop.provision import Provision, Say
from pipelines.live.loop.reconciler import Change, ChangeKind, RosterReconciler
from pipelines.live.loop.signals import stopping
from pipelines.live.loop.supervised import Supervision, Workers
from pipelines.live.loop.worker_spec import WorkerSpec, worker_specs
from pipelines.live.rules.course import Conclude, Move, next_move
from pipelines.live.rules.states import AT_REST, RUN_TRANSITIONS, RunState, WorkerState, moved
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import RunStatus, WorkerStatus
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders
from pipelines.report.results.losses import losses_now
from pipelines.teacher.replace.takeover import TAKES_OVER, is_due
from pipelines.track.mirror import Mirrors
from pipelines.track.mlflow import Tracker
from pipelines.track.webhooks import AlarmNotices, Webhooks
from streaming.errors import BadInput, StreamingError
from streaming.lake.readers import Readers
from streaming.position import NOTHING_YET
from streaming.store.files import sync, write_text
from streaming.store.working_copy import copy_of

POLL_INTERVAL_S = 0.05
STATUS_INTERVAL_S = 1.0
CLOSE_WAIT_S = 20.0
CAUGHT_UP = "nothing new came"
"""Why a run stops that was to stop when idle."""


class LiveRun:
    """Runs `config` until every worker is done (`until_end`), or until it is asked to stop, or has been idle for
    `until_idle_s`. Everything is to be called from the thread that calls `run`."""

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        provision: Provision,
        status: RunStatus,
        status_file: StatusFile,
        conclusion: Conclusion,
        tracker: Tracker | None = None,
        *,
        until_end: bool = False,
        until_idle_s: float | None = None,
        say: Say = lambda text: None,
        specs: Sequence[WorkerSpec] | None = None,
        monitor: AlarmMonitor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`specs`: the workers to begin with; None: those that `config` and the roster ask for."""
        self.config, self.status = config, status
        self._run_dir, self._provision, self._until_end, self._say = run_dir, provision, until_end, say
        self._file, self._conclusion, self._tracker, self._clock = status_file, conclusion, tracker, clock
        rules = Supervision(provision.launcher, run_dir, config.resources, config.kafka.give_up_s, clock)
        self.workers = Workers(rules, status.earlier)
        self._specs = self._first_specs() if specs is None else specs
        self._reconciler, self._measures = RosterReconciler(run_dir.roster, clock), Measures(run_dir, clock)
        self._monitor = AlarmMonitor(config, clock) if monitor is None else monitor
        self._webhooks = Webhooks(config.alarms.webhooks)
        self._notices = AlarmNotices(config.name, run_dir.silences, run_dir.notices, self._webhooks.send, clock)
        self._mirrors = None if tracker is None else Mirrors(run_dir, tracker.mirror, clock)
        self._idleness = None if until_idle_s is None else Idleness(until_idle_s, clock)
        self._watch = None if config.follows is None else LakeWatch(run_dir)
        self._followed: LakeView | None = None
        self._verticals: tuple[str, ...] = ()
        self._next_second = float("-inf")
        self.stop_asked: str | None = None

    def run(
        self,
        watch: Callable[[RunStatus], None] = lambda status: None,
        attend: Callable[[LiveRun], None] = lambda live_run: None,
    ) -> RunState:
        """Run until the end. `watch` and `attend` are called about every second, when status.json was written."""
        with stopping(self.stop, lambda: self.stop_asked is not None):
            try:
                self._look()
                for spec in self._specs:
                    self.join(spec)
                self._show(watch, attend)
                while not self.over:
                    each_second = self._a_second_has_passed()
                    reports = self.workers.poll(self.orders)
                    self._take_in(reports)
                    if each_second:
                        self._look()
                        self._reconcile()
                        self._scale()
                        if is_due(self._run_dir):
                            self.stop(TAKES_OVER)
                    move = next_move(
                        self.status.state,
                        self.status.workers.values(),
                        pace=self.config.pace.mode,
                        stream_ended=self.stream_ended,
                        stop_asked=self.stop_asked,
                        broken=self._broken,
                    )
                    self._act(move)
                    if each_second:
                        self._show(watch, attend)
                    self._provision.launcher.rest(POLL_INTERVAL_S)
                self._close()
            except KeyboardInterrupt:
                self.workers.kill()
                if not self.over:
                    self._move(Move(RunState.STOPPED, "interrupted, without waiting for the workers"))
                raise
            finally:
                self._close()
                if not self.over:
                    self._move(Move(RunState.FAILED, "the coordinator broke off; see logs/coordinator.log"))
                self._show(watch, attend)
        return self.status.state

    def stop(self, reason: str) -> None:
        """Ask the run to end cleanly; it will be resumable."""
        self.stop_asked = self.stop_asked or reason

    @property
    def over(self) -> bool:
        return self.status.over

    @property
    def lake_rows(self) -> int:
        return self.status.lake.rows

    @property
    def orders(self) -> Orders:
        orders, followed = orders_for(self.status.workers.values(), self._verticals), self._followed
        if followed is not None and followed.ended and self._until_end:
            return replace(orders, end_seq=followed.last_seq)
        return orders

    @property
    def stream_ended(self) -> bool:
        return self.orders.end_seq is not None

    # --- the steps of the loop, in their order ------------------------------------------------------------------

    def _a_second_has_passed(self) -> bool:
        now = self._clock()
        if now < self._next_second:
            return False
        self._next_second = now + STATUS_INTERVAL_S
        return True

    def _take_in(self, reports: Mapping[str, Report]) -> None:
        """Pass metrics on to the tracker (augmentation's are of the teacher), and note the rows of the lake."""
        for name, report in reports.items():
            writes_lake = self.workers[name].status.kind.writes_lake
            if self._tracker is not None:
                for step, values in report.metrics:
                    self._tracker.metrics(TEACHER if writes_lake else name, step, values)
            if writes_lake and report.lake_seq is not None:
                self.status.lake.grow_to(report.lake_seq)

    def _look(self) -> None:
        """Look at the lake of another run that this one follows."""
        if self._watch is None:
            return
        view = self._followed = self._watch.look()
        if view.last_seq != NOTHING_YET:
            self.status.lake.grow_to(view.last_seq)
        self.status.follows = {"run": shown(self._run_dir.leader), "state": view.leader, "ended": view.ended}

    def _reconcile(self) -> None:
        """Bring students in line with the roster. A change that cannot be made is refused with the reason, and nothing
        has changed."""
        states = {
            name.removeprefix(STUDENT): worker.state
            for name, worker in self.status.workers.items()
            if name.startswith(STUDENT)
        }
        changes = self._reconciler.changes(self.config, states, self.lake_rows, stream_ended=self.stream_ended)
        for change in changes:
            try:
                self._make(change)
            except (StreamingError, ModelError, OSError) as error:
                self._reconciler.answer(change, error)
            else:
                self._reconciler.answer(change)

    def _scale(self) -> None:
        """Answer a request for another number of augmentation workers."""
        try:
            request = workers_request(self._run_dir)
        except BadInput:  # damaged: whoever asks is told, and so is the next start
            return
        if request is None or request.words is not None:
            return
        try:
            words = self.scale(request.asked)
        except BadInput as error:
            answer_request(self._run_dir, request, str(error), refused=True)
        else:
            answer_request(self._run_dir, request, words)

    def _act(self, move: Move | Conclude | None) -> None:
        self.status.waiting = None
        if isinstance(move, Conclude):
            self._reconcile()  # a student that was asked for a moment ago keeps the run up
            move = self._conclusion.attempt(self.config) if self.workers.at_rest else None
        if move is not None:
            self._move(move)

    def _move(self, move: Move) -> None:
        status = self.status
        status.state = moved(status.state, move.state, RUN_TRANSITIONS)
        status.reason, status.mistaken, status.permanent = move.reason, move.mistaken, move.permanent

    def _show(self, watch: Callable[[RunStatus], None], attend: Callable[[LiveRun], None]) -> None:
        status = self.status
        self._measures.fill_in(status, self._tracker)
        if self.over:
            status.raise_alarms([])
            self._notices.close(status.reason if status.state is RunState.FAILED else None)
            self._file.write(status.as_json)  # whoever reads it need not wait for those who are told
            self._webhooks.close()
        else:
            for worker in status.workers.values():
                if worker.kind.writes_lake and worker.report is not None and worker.report.counts is not None:
                    status.counts, status.losses = losses_now(worker.report.counts, self.config)
            status.raise_alarms(self._monitor.check(status))
            self._notices.look(status.alarms)
            status.reason = status.trouble
        status.webhooks = self._webhooks.as_json() if self.config.alarms.webhooks else None
        self._file.write(status.as_json)
        watch(status)
        if self._mirrors is not None:
            self._mirrors.look(self.config)
        if self.stream_ended:
            self._conclusion.prepare()
        if self._idleness is not None and self._idleness.check(status):
            self.stop(CAUGHT_UP)
        attend(self)

    @property
    def _broken(self) -> str | None:
        """Reason why the broker, a followed lake, or what starts the workers, is gone for good, or the run on object
        storage is another coordinator's by now."""
        broker, followed, copy = self._provision.broker, self._followed, copy_of(self._run_dir.root)
        if followed is not None and followed.lost is not None:
            return followed.lost
        if copy is not None and copy.taken_over is not None:
            return copy.taken_over
        return (None if broker is None else broker.given_up) or self._provision.launcher.died

    def _close(self) -> None:
        """Close all workers, unless all died with what had started them."""
        if self._provision.launcher.died is None:
            self._take_in(self.workers.close(CLOSE_WAIT_S))

    # --- workers and students that join and leave ------------------------------------------------------------------

    def join(self, spec: WorkerSpec) -> None:
        """Start a worker, even after the end of the stream: the run is not over before it is done.

        Raises BadInput where a worker has that name, or the run is over.
        """
        if self.over:
            raise BadInput(f"the run is {self.status.state}; no worker can join it: start it again")
        self.workers.start(spec)
        self.status.workers = self.workers.statuses  # a new dictionary: others read it in their threads

    def leave(self, worker: str) -> None:
        """Make a worker commit and leave permanently; others continue. Raises BadInput as `Workers.retire` does."""
        if (report := self.workers.retire(worker, CLOSE_WAIT_S)) is not None:
            self._take_in({worker: report})

    def declare(self, verticals: Sequence[str]) -> None:
        """Make augmentation accept these verticals, regardless of `lake.max_verticals`."""
        self._verticals = tuple(dict.fromkeys([*self._verticals, *verticals]))

    def scale(self, workers: int) -> str:
        """Share the stream among so many augmentation workers, which begin at the last block; gives that in words.
        Other workers go on. Raises BadInput where there cannot be so many."""
        had, writer = self.config.augmentation.workers, self.workers["augmentation"]
        if workers == had:
            return f"augmentation has {workers} already"
        if self.stream_ended or writer.status.state in AT_REST:
            raise BadInput(f"augmentation is {writer.status.state}: it has nothing left to share")
        config = with_workers(self.config, workers)
        if (lack := self._provision.launcher.lacks(workers - had)) is not None:
            raise BadInput(f"augmentation.workers={workers} does not start: {lack}")
        write_text(self._run_dir.config, dump(config))
        sync(self._run_dir.root)
        self.config = config
        self.workers.rebuild(self._all_specs())
        if (report := writer.begin_anew(CLOSE_WAIT_S)) is not None:
            self._take_in({writer.name: report})
        words = f"augmentation has {workers} workers now, {had} before; they begin at the last block"
        self._say(words)
        return words

    def spawn(self, student: dict[str, Any]) -> None:
        """Add a student: `student` is its section of the config. It learns the lake from its first row on, or resumes
        from its checkpoint where it was in this run before. The run directory's config has it from now on.

        Raises BadInput where the run is over, or the section or the student's checkpoints do not fit.
        """
        if (lack := self._provision.launcher.lacks(student.get("ranks", 1) - 1, of_one_model=True)) is not None:
            raise BadInput(f"ranks: {student['ranks']} of `{student['name']}` do not start: {lack}")
        self._change([*self._sections, student])
        settings = self.config.students[-1]
        self.declare(settings.row_filter)
        self._keep_rows_for(settings.name)
        if self._tracker is not None:
            track_student(self.config, settings, self._tracker)
        self.join(self._spec_of(settings.name))

    def pause(self, name: str) -> None:
        """Make a student commit and stop. It stays in the run: `resume` has it continue from its checkpoint.

        Raises BadInput where no student of the run has that name.
        """
        self.leave(STUDENT + name)
        self.workers[STUDENT + name].status.reason = "paused"

    def resume(self, name: str) -> None:
        """Continue a student that was paused or given up.

        Raises BadInput where no student of the run has that name.
        """
        if name not in {student.name for student in self.config.students}:
            raise BadInput(f"no student of the run is named `{name}`")
        if self._state_of(name) in (None, WorkerState.RETIRED, WorkerState.FAILED):
            self.join(self._spec_of(name))

    def retire(self, name: str) -> None:
        """Make a student commit and leave. The lake keeps no rows for it any more; its checkpoints stay.

        Raises BadInput where no student of the run has that name.
        """
        if self._state_of(name) not in (None, WorkerState.RETIRED):
            self.leave(STUDENT + name)  # first: what it commits registers it with the lake once more
        elif name not in {student.name for student in self.config.students}:
            raise BadInput(f"no student of the run is named `{name}`")
        self._change([student for student in self._sections if student["name"] != name])
        if self._tracker is not None:
            self._tracker.finish(STUDENT + name, "KILLED")

    def _make(self, change: Change) -> None:
        match change.kind:
            case ChangeKind.SPAWN:
                assert change.desired is not None
                assert change.desired.section is not None
                self.spawn(change.desired.section)
            case ChangeKind.RESUME:
                self.resume(change.name)
            case ChangeKind.PAUSE:
                self.pause(change.name)
            case ChangeKind.RETIRE:
                self.retire(change.name)
            case ChangeKind.KEEP_ROWS:
                self._keep_rows_for(change.name)

    def _keep_rows_for(self, name: str) -> None:
        """Protect the lake's rows of a student that has not begun yet from deletion. To be called again now and
        then: a registration expires after `lake.reader_expiry_s`."""
        readers = Readers(self._run_dir.readers)
        before = next((reader.position for reader in readers.all() if reader.name == STUDENT + name), None)
        readers.register(STUDENT + name, self.config.student(name).first_seq - 1 if before is None else before)

    def _state_of(self, student: str) -> WorkerState | None:
        worker = self.workers.get(STUDENT + student)
        return None if worker is None else worker.status.state

    def _change(self, students: Sequence[dict[str, Any]]) -> None:
        """From now on the run has these students; workers that are restarted are built with the new config."""
        if self.over:
            raise BadInput("the run is over; start it again with the students that it is to have")
        config = self.config.having(students)
        settle(config, self._run_dir, evolve=False, drop=(), say=self._say)
        write_text(self._run_dir.config, dump(config))
        sync(self._run_dir.root)
        self.config = config
        self.workers.rebuild(self._all_specs())

    @property
    def _sections(self) -> list[dict[str, Any]]:
        return [student.model_dump(mode="json") for student in self.config.students]

    def _all_specs(self) -> list[WorkerSpec]:
        return worker_specs(self.config, self._run_dir, self._provision.servers, self._until_end)

    def _spec_of(self, student: str) -> WorkerSpec:
        (spec,) = (spec for spec in self._all_specs() if spec.name == STUDENT + student)
        return spec

    def _first_specs(self) -> list[WorkerSpec]:
        """Specs of all workers, except students that are paused or join later."""
        absent = {STUDENT + name for name in self._run_dir.roster.paused}
        absent |= {STUDENT + student.name for student in self.config.students if student.joins_at_rows}
        return [spec for spec in self._all_specs() if spec.name not in absent]


def orders_for(workers: Iterable[WorkerStatus], verticals: tuple[str, ...] = ()) -> Orders:
    """Orders that follow from the workers' states: the last row of the stream, once the lake's writer is done, and that
    the teacher has given up.

    >>> orders_for([])
    Orders(end_seq=None, teacher_gone=False, verticals=())
    """
    end_seq, teacher_gone = None, False
    for worker in workers:
        if worker.kind.writes_lake and worker.report is not None and worker.report.done:
            end_seq = worker.report.lake_seq
        teacher_gone |= worker.kind.publishes and worker.state is WorkerState.FAILED
    return Orders(end_seq, teacher_gone, verticals)
