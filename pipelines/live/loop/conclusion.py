"""Conclusion of a run after its workers: summary.json, the picture, its results in MLflow; it waits while the disk
is full."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.core.config.identity import STUDENT
from pipelines.core.config.lineage import hashes_of_run
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.causes import cause_of
from pipelines.live.rules.course import Move
from pipelines.live.rules.restarts import Cause, Death, GiveUp, Patience, verdict
from pipelines.live.rules.states import RunState
from pipelines.live.status.losses import Losses, LossSeverity
from pipelines.live.status.status import RunStatus
from pipelines.live.training.predictions import count_predictions
from pipelines.report.results.champion import Champion, champion_of, outcomes_of
from pipelines.report.results.figures import TaskFigures, clustered_by
from pipelines.report.results.picture import draw
from pipelines.report.results.stored import stored_summary
from pipelines.report.results.summary import Summary, final_metrics, summarise
from pipelines.report.results.verdict import JUDGED, verdict_on
from pipelines.track.mirror import Mirrors, mirror_of
from pipelines.track.mlflow import Tracker
from pipelines.track.registration import champion_lines, registration_of
from pipelines.track.registry.aliases import Action, twin_version
from pipelines.track.registry.ledger import CONCLUSION, HAND, Ledger, LedgerWriter
from streaming.store.files import link_file, make_folder, replacing_folder, write_json
from streaming.store.working_copy import copy_of

FINISHED_WAIT_S = 120.0
STOPPED_WAIT_S = 5.0
"""For entries that are still on their way to MLflow."""
NEEDED = (
    "scipy.special",
    "pyarrow.dataset",
    "matplotlib.pyplot",
    "exfm.models.served",
    "pipelines.live.workers.student.tables",
)
"""What a conclusion imports, for two seconds: a run does without it until then."""

log = logging.getLogger(__name__)

Say = Callable[[str], None]


def earlier_summary(config: Config, run_dir: RunDir) -> Summary | None:
    """The summary of a finished run; a run with a paused student that is to continue is not finished.

    Raises what `stored_summary` raises.
    """
    summary = stored_summary(run_dir)
    if summary is None or summary.run.config_hash not in hashes_of_run(run_dir, config):
        return None
    return summary if set(summary.run.paused) <= run_dir.roster.paused else None


class Conclusion:
    """Results of a run, written once every worker is done: `attempt`, again and again while the disk is full."""

    def __init__(
        self,
        run_dir: RunDir,
        status: RunStatus,
        tracker: Tracker | None,
        say: Say,
        patience: Patience,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._status, self._tracker, self._say = run_dir, status, tracker, say
        self._patience, self._clock = patience, clock
        self.summary: Summary | None = None
        self._importing: threading.Thread | None = None
        self._deaths: list[Death] = []
        self._next_at = float("-inf")
        self._waiting: str | None = None

    def prepare(self) -> None:
        """Import the needs of `conclude` in a thread, while the last workers still run. May be called again."""
        if self._importing is None:
            needed = NEEDED if self._tracker is None else (*NEEDED, "mlflow.pyfunc")
            self._importing = threading.Thread(target=_import, args=(needed,), name="prepare", daemon=True)
            self._importing.start()

    def _prepared(self) -> None:
        if self._importing is not None:
            self._importing.join()

    def attempt(self, config: Config) -> Move | None:
        """Conclude; returns the run's last move. None while the disk is full: `status.waiting` says so then.

        Raises what `conclude` raises unless that is a full disk.
        """
        now, status = self._clock(), self._status
        status.waiting = self._waiting
        if now < self._next_at:
            return None
        try:
            self.conclude(config)
        except Exception as error:
            if cause_of(error) is not Cause.DISK_FULL:
                raise
            self._deaths.append(Death(now, Cause.DISK_FULL, str(error)))
            decision = verdict(self._deaths, now, self._patience)
            if isinstance(decision, GiveUp):
                return Move(RunState.FAILED, f"writing the summary: {decision.reason}")
            self._next_at = now + decision.delay_s
            self._waiting = status.waiting = f"disk full: the summary waits for room ({error})"
            return None
        status.waiting = None
        state = RunState.FAILED if status.losses.severity is LossSeverity.FAIL else RunState.DONE
        return Move(state, "; ".join(status.losses.words) or None)

    def conclude(self, config: Config) -> None:
        """Write the results; called again, it writes what is missing."""
        run_dir, tracker = self._run_dir, self._tracker
        self._prepared()
        if (copy := copy_of(run_dir.root)) is not None:
            copy.follow()  # what workers have put last, on other machines
        self._say("computing the summary from every prediction")
        with ThreadPoolExecutor(1) as thread:
            drawing = thread.submit(draw, config, run_dir)
            summary = summarise(config, run_dir, self._status)
        losses = summary.losses_under(config)
        self._status.losses = losses
        self._drawn(drawing)
        grave = losses if losses.severity is LossSeverity.FAIL else None
        kept_champions = conclude_versions(config, run_dir, summary.students, grave)
        if tracker is not None and not tracker.closed:  # once, however often a full disk has this called
            self._say("writing MLflow")
            if losses.severity is LossSeverity.FAIL:  # nothing that learned from such a stream is to be served
                for name in config.reader_names:
                    tracker.finish(name, "FAILED")
            else:
                track_results(config, run_dir, tracker, summary.students, self._say, kept_champions)
            Mirrors(run_dir, tracker.mirror, time.monotonic).look(config)
            self._close(tracker, FINISHED_WAIT_S)
        write_json(run_dir.summary, summary.as_json())  # the mark of a finished run: nothing is left to do
        self.summary = summary

    def break_off(self, workers: Iterable[str]) -> None:
        """Close the MLflow runs of all workers as failed or killed, for a run without a conclusion."""
        self._prepared()  # a process that ends does not stop in the middle of an import
        if self._tracker is None or self.summary is not None:
            return
        for name in workers:
            self._tracker.finish(name, "FAILED" if self._status.state is RunState.FAILED else "KILLED")
        self._close(self._tracker, STOPPED_WAIT_S)

    def _drawn(self, drawing: Future[Path | None]) -> None:
        if (error := drawing.exception()) is not None:
            log.error("drawing the picture", exc_info=error)
            self._say(f"the picture could not be drawn; {self._run_dir.logs / 'coordinator.log'} says why")

    def _close(self, tracker: Tracker, wait_s: float) -> None:
        tracker.close(wait_s)
        if tracker.problem:
            self._say(f"tracking: {tracker.problem}; {tracker.dropped} entries were dropped, training is not affected")


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        with suppress(Exception):  # who needs it says what is wrong
            importlib.import_module(module)


def tracker_of(config: Config, run_dir: RunDir) -> Tracker | None:
    """The tracker with the models' settings as parameters; None if tracking is off."""
    if not config.tracking.enabled:
        return None
    uri = config.tracking.uri or f"sqlite:///{run_dir.mlflow.absolute()}"
    settings, runs = config.tracking, run_dir.root / "mlflow_runs.json"
    tracker = Tracker(uri, run_dir.artifacts.absolute(), config.name, runs, settings.interval_s, settings.queue_entries)
    if config.follows is None:
        tracker.params("teacher", _of_all(config) | config.teacher.model.model_dump(mode="json"))
    for student in config.students:
        track_student(config, student, tracker)
    return tracker


def track_student(config: Config, student: StudentSettings, tracker: Tracker) -> None:
    values = {"verticals": ",".join(student.row_filter) or "all", "tasks": ",".join(config.student_tasks(student))}
    values["final_window"] = f"{JUDGED.replace('_', ' ')} of the stream"  # of every metric `final/…`
    values["intervals_clustered_by"] = clustered_by(config.metrics.clusters)
    tracker.params(STUDENT + student.name, _of_all(config) | values | student.model.model_dump(mode="json"))


def track_results(
    config: Config,
    run_dir: RunDir,
    tracker: Tracker,
    students: Mapping[str, Mapping[str, TaskFigures]],
    say: Say,
    kept: Mapping[str, str] = {},
) -> None:
    """Log final metrics to MLflow, and register every student that learned a row, with its twin. `kept`: of students
    whose champion stays what a person has chosen, why, as `conclude_versions` gives it."""
    registered = []
    for student in config.students:
        worker, results = STUDENT + student.name, students[student.name]
        registration = registration_of(config, run_dir, student, results)
        if registration is None:
            say(f"student `{student.name}` saw no row: it is not registered")
        else:
            for task, figures in results.items():
                tracker.metrics(worker, figures.rows, final_metrics(task, figures))
            if run_dir.picture.exists():
                tracker.artifact(worker, run_dir.picture)
            if student.name in kept:
                stays = f"models:/{registration.model}@champion stays what a person made it"
                say(f"{stays}: {kept[student.name]}")
                registration = registration.without_champion()
            else:
                registered.append(registration)
            tracker.register(worker, registration, mirror_of(config, run_dir, student.name))
        tracker.finish(worker)
    if config.follows is None:
        tracker.finish("teacher")
    for line in champion_lines(registered):
        say(line)


def conclude_versions(
    config: Config, run_dir: RunDir, students: Mapping[str, Mapping[str, TaskFigures]], grave: Losses | None
) -> dict[str, str]:
    """Record the end of the run in the ledgers: the last version of each student and of its twin; the better of the
    two becomes champion, unless a person chose one. Returns whose champion stays for that, with the person's reason.
    Of a run with `grave` losses nothing is to be served. Called again, it changes nothing."""
    kept_champions = {}
    for student in config.students:
        ledger = Ledger(run_dir, student.name)
        results, exports = students.get(student.name, {}), _last_exports(run_dir, student)
        if not exports and not ledger.size:
            continue
        with ledger.writing() as writing:
            if grave is not None:
                if writing.aliases.champion is not None:
                    writing.add(Action.WITHDRAWN, None, by=CONCLUSION, reason="; ".join(grave.words))
                continue
            for role, (name, export) in exports.items():
                stated = partial(_stated, config, student, run_dir, export)
                _publish(writing, ledger, role, name, export, stated)
            chosen = champion_of(outcomes_of(results), twin=Champion.TWIN in exports)
            if chosen not in exports:
                continue
            changes = [e for e in writing.entries if e["action"] in (Action.PROMOTED, Action.ROLLED_BACK)]
            if changes and changes[-1]["by"] == HAND:
                kept_champions[student.name] = changes[-1]["reason"]
            elif writing.aliases.champion != exports[chosen][0]:
                reason = f"the run has ended: {verdict_on(results)}"
                writing.add(Action.PROMOTED, exports[chosen][0], by=CONCLUSION, reason=reason)
    return kept_champions


def _last_exports(run_dir: RunDir, student: StudentSettings) -> dict[Champion, tuple[str, Path]]:
    """By role, the name of its version and where it was exported to; nothing of a student that learned no row."""
    exports = sorted(run_dir.served(student.name).glob("v*"))
    if not exports or not count_predictions(run_dir.predictions(student.name)):
        return {}
    name, twin = exports[-1].name, run_dir.served_twin(student.name) / exports[-1].name
    found = {Champion.STUDENT: (name, exports[-1])}
    return found | ({Champion.TWIN: (twin_version(name), twin)} if twin.exists() else {})


def _stated(config: Config, student: StudentSettings, run_dir: RunDir, export: Path) -> dict[str, Any]:
    """Cost of smaller tables for an export, for its entry."""
    from exfm.models.served import load_served
    from pipelines.live.workers.student.tables import stated_tables

    tables = stated_tables(config, student, run_dir.lake, load_served(export))
    return {} if tables is None else {"tables": tables}


def _publish(
    writing: LedgerWriter, ledger: Ledger, role: Champion, name: str, export: Path, stated: Callable[[], dict[str, Any]]
) -> None:
    """An export among the versions, and its entry, where it is not there already."""
    if not ledger.folder(name).exists():
        make_folder(ledger.versions)
        with replacing_folder(ledger.folder(name)) as folder:
            for file in export.iterdir():
                link_file(file, folder / file.name)
    if not any(entry["action"] == Action.PUBLISHED and entry["version"] == name for entry in writing.entries):
        size = sum(file.stat().st_size for file in export.iterdir())
        writing.add(Action.PUBLISHED, name, by=CONCLUSION, reason="the end of the run", role=str(role), bytes=size,
                    **stated())  # fmt: skip


def _of_all(config: Config) -> dict[str, object]:
    return {"config_hash": config.hash, "seed": config.seed, "pace": config.pace.mode}
