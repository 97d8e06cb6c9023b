"""A replay from its rows to its report: finished parts are reused, missing ones are computed by several processes.

rows ──► teachers: logits ──► tuning, first half ──► choice ──► chosen settings, every condition ──► judged ──► report
                                  ▲  beyond edges  ╵
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pipelines.core.config.sections import Generated
from pipelines.data.checks.examine import examined
from pipelines.data.findings import Severity
from pipelines.lab.data import places_of
from pipelines.lab.logits.kept import drop_snapshots
from pipelines.lab.logits.starts import keep_start
from pipelines.lab.parts import is_stored, load_part
from pipelines.lab.pool import AddDone, Pool
from pipelines.lab.replay.choice import Choices, Chosen, best_of, beyond, choose
from pipelines.lab.replay.flops import of_equal_flops
from pipelines.lab.replay.jobs import TEACHER_COST, RescoreJob, RowsJob, StudentJob, TeacherJob, work
from pipelines.lab.replay.judge import REGRESSION, Judge, JudgedStudent
from pipelines.lab.replay.report import ReplayReport, report
from pipelines.lab.replay.settings import EXTENSIONS, Setting, setting_of, settings_of, students_of
from pipelines.lab.replay.store import TrainRequest, requested, teacher_part
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import TWIN, LogitSource
from pipelines.live.loop.preflight import writable
from pipelines.report.screens.progress import rows_bar
from streaming.errors import BadInput
from streaming.lake.readers import Readers

StudentParts = Mapping[tuple[str, str, str, int], Path]
"""Student, condition, arm and seed -> the part with the logits of a trained student."""

PIECES_PER_PROCESS = 4
"""Jobs are cut this fine, so that all processes finish at about the same time."""


class Runner:
    """Runs one replay on `processes` processes; `kind` names its reports."""

    def __init__(
        self,
        workspace: Workspace,
        processes: int,
        kind: Literal["replay", "sweep"] = "sweep",
        command: str = "",
    ) -> None:
        """`command`: what runs it again."""
        self._workspace, self._processes, self._kind, self._command = workspace, processes, kind, command
        self._pool = Pool(work, processes)
        self._spec = workspace.spec
        self._students = students_of(workspace.spec, workspace.config)
        self._counted: dict[tuple[int, str], int] = {}

    def run(self) -> tuple[ReplayReport, StudentParts]:
        """Compute what is missing; return the report, and the parts that it is made of."""
        with self._begun(f"the {self._kind}'s folder"):
            self.settle()
            data = self._check_data()
            self._train_teachers()
            choices = self._choose_settings()
            parts = self._train_chosen(choices)
            judged = self.judge(choices, parts)
        drop_snapshots(self._workspace.folder)
        made, best = sorted(set(parts.values())), self._best_twins(choices)
        return report(self._workspace, choices, best, judged, made, data=data, command=self._command), parts

    def teach(self) -> None:
        """Compute the teachers' logits that are missing, and nothing else."""
        with self._begun("the folder"):
            self.settle()
            self._train_teachers()

    @contextmanager
    def _begun(self, folder: str) -> Iterator[None]:
        """Keep what a run might delete meanwhile: rows of its lake, snapshots, and checkpoints to start from."""
        workspace, spec = self._workspace, self._spec
        writable(workspace.folder, folder, "--out")
        readers = None if workspace.run_dir is None else Readers(workspace.run_dir.readers)
        pin = f"replay-{workspace.folder.name}-{os.getpid()}"
        try:
            for student in self._students:
                for arm in spec.arms:
                    for setting in settings_of(spec, student, arm):
                        keep_start(setting.student, workspace.folder)
            if readers is not None:
                workspace.pin(readers, pin)
                if any(condition.stored is not None for condition in spec.conditions.values()):
                    workspace.snapshots  # noqa: B018  (looked up, and linked)
            yield
        finally:
            self._pool.close()
            if readers is not None:
                readers.retire(pin)

    # --- stages ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        workspace, spec = self._workspace, self._spec
        seeds = spec.all_seeds[:1] if workspace.one_stream else spec.all_seeds
        source = workspace.config.source
        rows = spec.rows or (source.impressions if isinstance(source, Generated) else 0)
        self._run_jobs("settling rows", [RowsJob(workspace, seed) for seed in seeds], rows * len(seeds))

    def _check_data(self) -> dict[str, Any]:
        """Check the rows, and print what is wrong with them before anything is trained."""
        table = self._workspace.rows(self._spec.seeds[0]).table
        self._spec.check_rows(table)
        rows = self._workspace.config.rows
        data = examined(table, given=rows.given, growing=[column.name for column in rows.asof.columns])
        for finding in data.findings:
            if finding.severity is not Severity.NOTE:
                print(f"{finding.severity}  {finding.where}: {finding.seen}", file=sys.stderr)
        return data.as_json()

    def _train_teachers(self) -> None:
        workspace, spec = self._workspace, self._spec
        jobs: list[TeacherJob | RescoreJob] = []
        for seed in spec.all_seeds:
            missing: dict[tuple[str | None, int], list[LogitSource]] = {}
            for source in spec.logit_sources(seed):
                if source.stored is not None:  # the rows of a lake: the same for all seeds
                    if seed == spec.all_seeds[0] and not is_stored(teacher_part(workspace, seed, source)):
                        jobs.append(RescoreJob(workspace, seed, source))
                elif workspace.is_trained(source) and not is_stored(teacher_part(workspace, seed, source)):
                    missing.setdefault((source.teacher, source.born), []).append(source)
            jobs += [TeacherJob(workspace, seed, tuple(sources)) for sources in missing.values()]
        self._run_jobs("teachers", jobs, sum(workspace.taught_rows(job.seed) for job in jobs) * TEACHER_COST)

    def _choose_settings(self) -> Choices:
        """Try all settings and, where the best one is at an edge of its grid, some beyond; choose."""
        spec = self._spec
        tried = {
            (s.name, arm): [of_equal_flops(self._workspace, setting) for setting in settings_of(spec, s, arm)]
            for s in self._students
            for arm in spec.arms
        }
        sums: dict[tuple[str, str], dict[int, list[Any]]] = {key: {} for key in tried}
        new = {key: settings for key, settings in tried.items() if self._is_tuned(key[1], settings)}
        for extension in range(EXTENSIONS + 1):
            self._train_trials(new, sums, "tuning, on the first half" if not extension else "tuning, beyond an edge")
            chosen = {key: choose(settings, sums[key]) for key, settings in tried.items()}
            new = {key: self._beyond(key, made, tried[key]) for key, made in chosen.items()} if spec.extend else {}
            if extension == EXTENSIONS or not any(new.values()):
                break
            for key, settings in new.items():
                tried[key] += settings
        return chosen

    def _is_tuned(self, arm: str, settings: Sequence[Setting]) -> bool:
        """True if an arm has settings to choose from, or is one of several baselines, of which the best is chosen."""
        return len(settings) > 1 or (arm in self._spec.baselines and len(self._spec.baselines) > 1)

    def _train_trials(
        self, new: Mapping[Any, Sequence[Setting]], sums: Mapping[Any, dict[int, list[Any]]], doing: str
    ) -> None:
        """Train what is tried, and add the losses to `sums`."""
        spec = self._spec
        fresh = spec.conditions[spec.tuned_under]
        trials = {
            (seed, name, arm, s.trial): requested(self._workspace, seed, s.student, fresh, tuning=True, arm=arm)
            for (name, arm), settings in new.items()
            for s in settings
            for seed in spec.tuned_with
        }
        self._train_students(doing, trials.values(), tuning=True)
        for (_, name, arm, trial), request in trials.items():
            sums[name, arm].setdefault(trial, []).append(load_part(request.path))

    def _beyond(self, key: tuple[str, str], chosen: Chosen, tried: Sequence[Setting]) -> list[Setting]:
        """Settings after the edges of a grid, as far as they make a valid student."""
        name, arm = key
        more: list[Setting] = []
        for tuned in beyond(chosen, tried):
            with suppress(BadInput):
                student = self._workspace.config.student(name)
                further = setting_of(self._spec, student, arm, len(tried) + len(more), tuned)
                more.append(of_equal_flops(self._workspace, further))
        return more

    def _train_chosen(self, choices: Choices) -> StudentParts:
        """Train the chosen settings under every condition, after the twins that teach under some of them."""
        workspace, spec = self._workspace, self._spec
        twins = self._twin_requests(choices)
        requests: dict[tuple[str, str, str, int], TrainRequest] = {}
        for (name, arm), chosen in choices.items():
            for condition, setting in spec.conditions.items():
                for seed in spec.seeds:
                    twin = twins[name, spec.tuned_under, TWIN, seed].path if setting.teacher == TWIN else None
                    student = chosen.setting.student
                    requests[name, condition, arm, seed] = requested(
                        workspace, seed, student, setting, twin=twin, arm=arm
                    )
                    if arm == spec.baselines[0] and student.baselines:
                        requests[name, condition, REGRESSION, seed] = requested(
                            workspace, seed, student, setting, twin=twin, arm=arm, regression=True
                        )
        self._train_students("twins that teach", twins.values(), tuning=False)
        self._train_students("arms, under every condition", requests.values(), tuning=False)
        return {key: request.path for key, request in (twins | requests).items()}

    def _twin_requests(self, choices: Choices) -> dict[tuple[str, str, str, int], TrainRequest]:
        """The students without a teacher that teach others, where a condition asks for it: another draw of the first
        baseline."""
        spec = self._spec
        if all(setting.teacher != TWIN for setting in spec.conditions.values()):
            return {}
        first, arm = spec.conditions[spec.tuned_under], spec.baselines[0]
        twins = {student.name: choices[student.name, arm].setting.student for student in self._students}
        return {
            (name, spec.tuned_under, TWIN, seed): requested(
                self._workspace, seed, twin, first, drawn_anew=True, arm=arm
            )
            for name, twin in twins.items()
            for seed in spec.seeds
        }

    def _train_students(self, doing: str, requests: Iterable[TrainRequest], *, tuning: bool) -> None:
        """Train the students whose part is missing; a part that several requests share is computed once."""
        groups: dict[Any, dict[Path, TrainRequest]] = {}
        for request in requests:
            if not is_stored(request.path):
                by_seed = self._workspace.has_seeds(request.condition) or request.twin is not None
                key = (request.seed if by_seed else None, request.student.name, request.condition)
                groups.setdefault(key, {}).setdefault(request.path, request)
        done: set[Path] = set()
        jobs, rows = [], 0
        for group in groups.values():
            new = [request for path, request in group.items() if path not in done]
            done.update(group)
            for piece in _pieces(new, len(groups), self._processes):
                jobs.append(StudentJob(self._workspace, tuning, tuple(piece)))
                rows += sum(self._student_rows(request, tuning) for request in piece)
        self._run_jobs(doing, jobs, rows)

    def judge(self, choices: Choices, parts: StudentParts) -> list[JudgedStudent]:
        """Judge every student and task under each condition, on finished parts."""
        workspace = self._workspace
        jobs = []
        for name, best in self._best_twins(choices).items():
            own = {(condition, arm, seed): path for (of, condition, arm, seed), path in parts.items() if of == name}
            base = workspace.config.student(name)
            jobs += [Judge(workspace, base, task, best, own) for task in workspace.config.student_tasks(base)]
        with _progress("judging", len(jobs) * len(self._spec.conditions)) as add_done:
            by_job = {(judged[0].student, judged[0].task): judged for judged in self._pool.run(jobs, add_done)}
        return [judged for job in jobs for judged in by_job[job.student.name, job.task]]

    def _best_twins(self, choices: Choices) -> dict[str, str]:
        """Best baseline of each student, where settings are chosen."""
        names = self._spec.baselines
        return {s.name: best_of({arm: choices[s.name, arm] for arm in names}) for s in self._students}

    # --- how much work there is --------------------------------------------------------------------------------------

    def _student_rows(self, request: TrainRequest, tuning: bool) -> int:
        workspace, student = self._workspace, request.student
        if (key := (request.seed, student.name)) not in self._counted:
            self._counted[key] = len(places_of(workspace.rows(request.seed), workspace.config, student))
        share = self._spec.chosen_on[1] if tuning else 1 - request.condition.start
        return round(self._counted[key] * share)

    def _run_jobs(self, doing: str, jobs: Sequence[Any], rows: int) -> None:
        if not jobs:
            return
        with _progress(doing, rows) as add_done:
            for _ in self._pool.run(jobs, add_done):
                pass


def _pieces(requests: Sequence[TrainRequest], groups: int, processes: int) -> Iterator[Sequence[TrainRequest]]:
    """A group, cut into pieces where there are fewer groups than processes need."""
    wanted = max(1, -(-processes * PIECES_PER_PROCESS // max(1, groups))) if processes > 1 else 1
    size = max(1, -(-len(requests) // wanted))
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


@contextmanager
def _progress(doing: str, total: int) -> Iterator[AddDone]:
    """A progress bar, advanced by counts that add up."""
    done = 0
    with rows_bar(doing, total) as advance:

        def add_done(count: int) -> None:
            nonlocal done
            done += count
            advance(done)

        yield add_done
