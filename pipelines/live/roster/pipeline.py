"""Python interface to the students of a run, behind the commands `exfm spawn`, `pause`, `resume` and `retire`."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exfm.errors import ModelError
from exfm.models.growth.refit import MadeWith
from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.manifest import read_manifest
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.object_storage import look_again
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import DesiredState, Presence, RequestOutcome
from pipelines.live.loop.preflight import locked
from pipelines.live.loop.signals import stopping
from pipelines.live.roster.estimate import BackfillEstimate, estimate_backfill, require_room
from pipelines.live.roster.listing import Listed, listed_students
from pipelines.live.roster.section import SpawnRequest, others_than, section_of
from pipelines.live.rules.states import ENDED, WorkerState
from pipelines.live.status.stored import last_status, run_lives
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.errors import BadInput, StreamingError
from streaming.lake.logit_set import LogitSet
from streaming.lake.reader import LakeReader
from streaming.store.files import make_folder, move, sync, sync_all
from streaming.store.working_copy import brought_up

ANSWER_WAIT_S = 60.0
AT_WORK = {WorkerState.STARTING, WorkerState.RUNNING, WorkerState.RESTARTING, WorkerState.DONE}
LOOK_EVERY_S = 0.1
STEP_S = 0.5


@dataclass(frozen=True)
class Spawned:
    """Result of a spawn: `state` is `joined` (the run has it), or `remembered` (it joins when the run starts)."""

    estimate: BackfillEstimate
    state: str
    words: str

    def as_json(self) -> dict[str, Any]:
        return self.estimate.as_json() | {"state": self.state}


@dataclass(frozen=True)
class Progress:
    """Progress of a student: rows learned, rows of the lake not yet seen, and the state of its worker."""

    state: str
    rows: int
    lag_rows: int | None
    reason: str | None

    @property
    def live(self) -> bool:
        """True if it has caught up with the lake, or has learned everything."""
        return self.state == "done" or (self.state == "running" and self.lag_rows is not None and self.lag_rows == 0)


class Pipeline:
    """The run in `run_dir`. Whatever is asked of it is written down there; a run that lives answers within a second or
    two, one that does not when it starts.

        pipeline = Pipeline("runs/demo")
        pipeline.spawn(SpawnRequest("late", verticals=("travel",), like="feed"))
        for student in pipeline.students():
            print(student.name, student.state, student.ne)

    Raises BadInput where no run lies there.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.run_dir = RunDir(Path(run_dir))
        config_of(self.run_dir)

    @property
    def config(self) -> Config:
        """The config with spawned students, without retired ones."""
        return with_roster(config_of(self.run_dir), self.run_dir.roster)

    @property
    def lives(self) -> bool:
        """True if its coordinator runs."""
        return run_lives(self.run_dir.root)

    @property
    def finished(self) -> bool:
        """True if its stream is over and everything was learned."""
        return self.run_dir.summary.exists()

    @property
    def _names(self) -> set[str]:
        return {student.name for student in self.config.students}

    def students(self) -> list[Listed]:
        return listed_students(self.run_dir)

    # --- spawning ----------------------------------------------------------------------------------------------

    def estimate(self, request: SpawnRequest) -> BackfillEstimate:
        """Estimate a spawn without requesting it. Raises BadInput where it cannot be."""
        return self._planned(request)[-1]

    def spawn(self, request: SpawnRequest, *, wait_s: float = ANSWER_WAIT_S) -> Spawned:
        """Add a student: it learns the rows in the lake, catches up, and continues with the stream.

        Raises BadInput for a name that is in use, also where another process asks for it meanwhile, a condition that
        no row meets, too little memory, or what the run refuses; StreamingError where a run that lives does not answer
        within `wait_s`.
        """
        config, student, estimate = self._planned(request)
        if self.lives and self._state(request.name) not in AT_WORK:
            require_room(config, estimate, self.run_dir)
        with self.run_dir.roster.writing() as roster:
            now = self.config
            section = self._section(request, now, LakeReader(self.run_dir.lake, now.rows))  # the name may be taken now
            if request.start is not None:
                self._put_aside(request.start, student)
            desired = roster.ask(request.name, Presence.RUNNING, section, again=self._failed(request.name))
        return Spawned(estimate, *self._answered(desired, wait_s))

    def learn_offline(self, name: str, advance: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Make a spawned student learn the lake of a stopped run to its end, in this process and without a broker, from
        its checkpoint if it has one; returns the number of rows learned now. `advance(done, total)` is called with rows
        of the lake.

        Ctrl-C ends it after a checkpoint; the same call goes on from there. Raises BadInput where the run lives,
        DataLost where rows that it needs were deleted.
        """
        config, run_dir = self.config, self.run_dir
        with locked(run_dir):
            last = LakeReader(run_dir.lake, config.rows).last_lake_seq
            # Before the stream is over, fewer rows than a batch wait for what the run brings when it goes on.
            orders, stop_reasons = Orders(end_seq=last if self.finished else None), list[str]()
            worker = StudentWorker(config, config.student(name), run_dir)
            try:
                with stopping(stop_reasons.append, lambda: bool(stop_reasons)) if _in_main_thread() else nullcontext():
                    worker.open()
                    begins = worker.position + 1
                    while not stop_reasons:
                        report = worker.advance(STEP_S, orders)
                        advance(max(0, (worker.position + 1) - begins), last + 1 - begins)
                        if worker.done or (not self.finished and report.lag_rows == 0):
                            break
            except BaseException:  # in the midst of a batch: what the last checkpoint has is what counts
                worker.abandon()
                raise
            worker.close()
        if stop_reasons:
            raise KeyboardInterrupt
        return worker.rows

    def _planned(self, request: SpawnRequest) -> tuple[Config, StudentSettings, BackfillEstimate]:
        """The config with the new student, its settings, and what its backfill would be. Raises BadInput."""
        config = self.config
        lake = LakeReader(self.run_dir.lake, config.rows)
        section = self._section(request, config, lake)
        config = config.having([*others_than(request.name, config), section])
        student = config.student(request.name)
        estimate = estimate_backfill(config, student, lake, last_status(self.run_dir.root))
        if not estimate.rows and estimate.of and not request.live:
            raise BadInput(_no_rows(student, estimate, lake))
        return config, student, estimate

    def _section(self, request: SpawnRequest, config: Config, lake: LakeReader) -> dict[str, Any]:
        """The new student's section of the config. Where the same student was requested before, it is the section of
        then, which says at which row it begins. Raises BadInput where another student has, or had, the name."""
        section, desired = section_of(request, config, lake), self.run_dir.roster.desired(request.name)
        logits = section.get("logits")
        if logits is not None and logits not in {teacher.name for teacher in config.teachers}:
            LogitSet(self.run_dir.side_tables, logits)  # refused where there is none, or it is not whole
        before = None if desired is None else desired.section
        if request.name in {student.name for student in config.students}:
            if before is None or not _same(before, section):
                raise BadInput(
                    f"a student of this run is named `{request.name}` already; take another name, or retire that one "
                    "first"
                )
            return before
        retired = desired is not None and desired.wanted is Presence.RETIRED
        if before is None or not retired or not self._has_learned(request.name):
            return section
        if not _same(before, section):
            raise BadInput(
                f"`{request.name}` was in this run before, with other settings, and its checkpoints are kept; take "
                "another name, or spawn it with the settings that it had"
            )
        return before

    def _has_learned(self, name: str) -> bool:
        return bool(checkpoint_names(brought_up(self.run_dir.checkpoints(STUDENT + name))))

    def _put_aside(self, name: str, student: StudentSettings) -> None:
        """Keep the checkpoint that the new student starts from: the other one goes on, and its own are replaced."""
        start = self.run_dir.roster.start(student.name)
        if start.exists() and (student.name in self._names or self._has_learned(student.name)):
            return
        shutil.rmtree(start, ignore_errors=True)  # of one of that name that never began
        root = brought_up(self.run_dir.checkpoints(STUDENT + name))
        make_folder(start.parent)
        for _ in range(5):
            saved = checkpoint_names(root)
            if not saved:
                raise BadInput(f"--from {name}: it has no checkpoint yet; wait for its first one, or leave --from out")
            part = start.with_name(f"start.{os.getpid()}.part")
            shutil.rmtree(part, ignore_errors=True)
            try:
                shutil.copytree(root / saved[-1], part)
                made_with = read_manifest(part)["meta"]["made_with"]
            except (OSError, ModelError):  # replaced by a newer one meanwhile
                continue
            if (width := MadeWith.of_meta(made_with).model["width"]) != student.model.width:
                shutil.rmtree(part)
                raise BadInput(
                    f"--from {name}: its embeddings are {width} wide, and those of `{student.name}` are to be "
                    f"{student.model.width}: nothing of it would fit; take --like {name}, too"
                )
            sync_all([part, *part.rglob("*")])
            move(part, start)
            sync(start.parent)
            return
        raise StreamingError(
            f"the newest checkpoint of `{name}` was replaced five times while it was copied; try again"
        )

    # --- afterwards --------------------------------------------------------------------------------------------

    def pause(self, name: str, *, wait_s: float = ANSWER_WAIT_S) -> str:
        """Commit and stop a student; returns the outcome in words. Raises as `spawn` does."""
        return self._asked(name, Presence.PAUSED, wait_s)

    def resume(self, name: str, *, wait_s: float = ANSWER_WAIT_S) -> str:
        """Continue a paused student from its checkpoint."""
        return self._asked(name, Presence.RUNNING, wait_s)

    def retire(self, name: str, *, wait_s: float = ANSWER_WAIT_S) -> str:
        """Remove a student permanently: the lake keeps no rows for it; checkpoints and registered models stay."""
        return self._asked(name, Presence.RETIRED, wait_s)

    def progress(self, name: str) -> Progress:
        """A student's current progress."""
        found = next((student for student in self.students() if student.name == name), None)
        if found is None:
            raise BadInput(self._unknown(name))
        return Progress(found.state, found.rows, found.lag_rows, found.reason)

    def watch(self, name: str, every_s: float = 1.0) -> Iterator[Progress]:
        """Yield a student's progress until it is live, has failed, or its run ends."""
        while True:
            look_again(self.run_dir.root)
            progress = self.progress(name)
            yield progress
            if progress.live or progress.state in ("failed", "refused", "retired", "paused") or not self.lives:
                return
            time.sleep(every_s)

    def _asked(self, name: str, wanted: Presence, wait_s: float) -> str:
        if name not in self._names and self.run_dir.roster.desired(name) is None:
            raise BadInput(self._unknown(name))
        with self.run_dir.roster.writing() as roster:
            before = self.run_dir.roster.desired(name)
            dropped = before is not None and not self.run_dir.roster.answered(before) and before.wanted is not wanted
            desired = roster.ask(name, wanted, again=wanted is Presence.RUNNING and self._failed(name))
        _, words = self._answered(desired, wait_s)
        if dropped:
            assert before is not None
            words += f" (it was to be {before.wanted}, asked at {before.asked_at} and not answered: that is dropped)"
        return words

    def _state(self, name: str) -> str | None:
        """The state of its worker in a run that lives."""
        status = last_status(self.run_dir.root)
        worker = None if status is None or not status.lives else status.workers.get(STUDENT + name)
        return None if worker is None else worker.state

    def _failed(self, name: str) -> bool:
        return self._state(name) == WorkerState.FAILED

    def _unknown(self, name: str) -> str:
        names = ", ".join(student.name for student in self.config.students)
        return f"no student of {self.run_dir.root} is named `{name}`; choose from {names or 'none'}"

    def _answered(self, desired: DesiredState, wait_s: float) -> tuple[str, str]:
        """Outcome of a request: its state, and words. Raises BadInput where it was refused."""
        roster, deadline = self.run_dir.roster, time.monotonic() + wait_s
        while (outcome := _of(roster.outcome(desired.name), desired)) is None and self.lives:
            self._refuse_overtaken(desired)
            if time.monotonic() > deadline:
                raise StreamingError(
                    f"the run has not answered for {wait_s:g} s; it is written down, and will be: see exfm students "
                    f"--run-dir {self.run_dir.root}"
                )
            time.sleep(LOOK_EVERY_S)
            look_again(self.run_dir.root)
        outcome = outcome or _of(
            roster.outcome(desired.name), desired
        )  # the last thing that a run does may be to answer
        if outcome is None:
            self._refuse_overtaken(desired)
            status = last_status(self.run_dir.root)
            ended = status is not None and status.state in ENDED
            why = f"the run is {status.state}" if status is not None and ended else "the run does not run"
            return "remembered", f"{why}; `{desired.name}` will be {desired.wanted} when it starts"
        if outcome.refused:
            raise BadInput(outcome.words)
        return "joined" if desired.wanted is Presence.RUNNING else str(desired.wanted), outcome.words

    def _refuse_overtaken(self, desired: DesiredState) -> None:
        """Raises BadInput where another request for the same student came before this one was answered."""
        last = self.run_dir.roster.desired(desired.name)
        if last is not None and last.number >= desired.number and last.asked_at != desired.asked_at:
            raise BadInput(
                f"another request for `{desired.name}` came before this one was answered, and holds: it is to be "
                f"{last.wanted} (asked at {last.asked_at}), not {desired.wanted}; see exfm students --run-dir "
                f"{self.run_dir.root}, and ask again if it is not what you want"
            )


def _of(outcome: RequestOutcome | None, desired: DesiredState) -> RequestOutcome | None:
    return outcome if outcome is not None and outcome.answers(desired) else None


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if two sections are of one student, wherever it began."""
    return {**one, "first_seq": 0} == {**other, "first_seq": 0}


def _no_rows(student: StudentSettings, estimate: BackfillEstimate, lake: LakeReader) -> str:
    """Reason why no row of the lake is a student's."""
    verticals = lake.verticals
    asked = [v for v in student.row_filter if v not in verticals]
    if asked and len(asked) == len(student.row_filter):
        return (
            f"no row of the lake has the vertical {', '.join(f'`{v}`' for v in asked)}; choose from "
            f"{', '.join(sorted(verticals)) or 'none'}. A student of a vertical that is to come begins with --live"
        )
    condition = f" and `{student.where}`" if student.where is not None else ""
    return (
        f"none of {estimate.of:,} rows from lake_seq {estimate.first_seq:,} on is of "
        f"{', '.join(student.row_filter) or 'any vertical'}"
        f"{condition}; change --where or --since, or begin with --live"
    )


def _in_main_thread() -> bool:
    """True if signals can be taken here."""
    return threading.current_thread() is threading.main_thread()
