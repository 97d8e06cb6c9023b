"""A replay from its rows to its report: finished parts are found again, missing ones are computed by several processes.

rows ──► teachers: logits ──► tuning, first half ──► choice ──► chosen settings, every condition ──► judged ──► report
                                  ▲  beyond edges  ╵
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pipelines.config import Generated
from pipelines.control import writable
from pipelines.display import rows_bar
from pipelines.offline import Pool, Tell, is_stored, load_part
from pipelines.offline.asked import TWIN, Snapshots
from pipelines.offline.logits import drop_snapshots, keep_start
from pipelines.offline.replay.choice import Chosen, best_of, beyond, choose
from pipelines.offline.replay.data import places_of
from pipelines.offline.replay.jobs import TEACHER_COST, Asked, RescoreJob, RowsJob, StudentJob, TeacherJob, work
from pipelines.offline.replay.judge import JudgeJob, Parts
from pipelines.offline.replay.outcome import write_outcome
from pipelines.offline.replay.place import Place
from pipelines.offline.replay.report import report
from pipelines.offline.replay.settings import EXTENSIONS, Setting, setting_of, settings_of, students_of
from pipelines.offline.replay.sizes import sizes_of
from pipelines.quality import Severity, examined
from streaming.errors import BadInput
from streaming.lake import Readers

Choices = Mapping[tuple[str, str], Chosen]
"""Student and arm -> the setting that was chosen."""

Lives = Mapping[tuple[str, str, str, int], Path]
"""Student, condition, arm and seed -> the logits of a life."""

PIECES_PER_PROCESS = 4
"""Jobs are cut this fine, so that all processes finish at about the same time."""


class Runner:
    """Runs one replay on `processes` processes; `kind` names its reports."""

    def __init__(
        self, place: Place, processes: int, kind: Literal["replay", "sweep"] = "sweep", command: str = ""
    ) -> None:
        """`command`: what runs it again. `written`: the files that a reader opens, once it has run."""
        self._place, self._processes, self._kind, self._command = place, processes, kind, command
        self.written: list[Path] = []
        self._pool = Pool(work, processes)
        self._spec = place.spec
        self._students = students_of(place.spec, place.config)
        self._counted: dict[tuple[int, str], int] = {}

    def run(self) -> dict[str, Any]:
        """Compute what is missing; return the report, which is written too (outcome.py)."""
        writable(self._place.folder, f"the {self._kind}'s folder", "--out")
        try:
            self._pin()
            self.settle()
            examined = self._look_at_data()
            self._teach()
            choices = self._tune()
            parts = self._live(choices)
            judged = self.judge(choices, parts)
        finally:
            self._pool.close()
            self._unpin()
        drop_snapshots(self._place.folder)
        made = sorted(set(parts.values()))
        value = report(self._place, choices, self._best_twins(choices), judged, made, self._command)
        value["data_checks"] = examined
        value["sizes"] = sizes_of(self._place, value)
        self.written = write_outcome(self._place, self._kind, value, parts)
        return value

    @property
    def _pin_name(self) -> str:
        return f"replay-{self._place.folder.name}-{os.getpid()}"

    def _pin(self) -> None:
        """Keep what a run might delete meanwhile: rows of its lake, snapshots, and checkpoints to start from."""
        place, spec = self._place, self._spec
        for student in self._students:
            for arm in spec.arms:
                for setting in settings_of(spec, student, arm):
                    keep_start(setting.student, place.folder)
        if place.run_dir is None:
            return
        place.pin(Readers(place.run_dir.readers), self._pin_name)
        if any(condition.stored is not None for condition in spec.conditions.values()):
            place.snapshots  # noqa: B018  (looked up, and linked)

    def _unpin(self) -> None:
        if self._place.run_dir is not None:
            Readers(self._place.run_dir.readers).retire(self._pin_name)

    # --- stages ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        place, spec = self._place, self._spec
        seeds = spec.all_seeds[:1] if place.one_stream else spec.all_seeds
        source = place.config.source
        rows = spec.rows or (source.impressions if isinstance(source, Generated) else 0)
        self._do("settling rows", [RowsJob(place, seed) for seed in seeds], rows * len(seeds))

    def _look_at_data(self) -> dict[str, Any]:
        """What is wrong with the rows, said before anything is trained on them."""
        self._spec.check_rows(self._place.rows(self._spec.seeds[0]).table)
        given = self._place.config.rows.given
        found = examined(self._place.rows(self._spec.seeds[0]).table, given=given)
        for finding in found.findings:
            if finding.severity is not Severity.NOTE:
                print(f"{finding.severity}  {finding.where}: {finding.seen}", file=sys.stderr)
        return found.as_json()

    def _teach(self) -> None:
        place, spec = self._place, self._spec
        jobs: list[TeacherJob | RescoreJob] = []
        for seed in spec.all_seeds:
            missing: dict[tuple[str | None, int], list[Snapshots]] = {}
            for snapshots in spec.snapshots(seed):
                made = place.is_trained(snapshots) or (snapshots.stored is not None and seed == spec.all_seeds[0])
                if not made or is_stored(place.teacher_part(seed, snapshots)):
                    continue
                if snapshots.stored is not None:
                    jobs.append(RescoreJob(place, seed, snapshots))
                else:
                    missing.setdefault((snapshots.teacher, snapshots.born), []).append(snapshots)
            jobs += [TeacherJob(place, seed, tuple(asked)) for asked in missing.values()]
        self._do("teachers", jobs, sum(place.taught_rows(job.seed) for job in jobs) * TEACHER_COST)

    def _tune(self) -> Choices:
        """Try all settings and, where the best one is at an edge of its grid, some beyond; choose."""
        spec = self._spec
        tried = {(s.name, arm): settings_of(spec, s, arm) for s in self._students for arm in spec.arms}
        sums: dict[tuple[str, str], dict[int, list[Any]]] = {key: {} for key in tried}
        new = {key: settings for key, settings in tried.items() if self._is_tuned(key[1], settings)}
        for extension in range(EXTENSIONS + 1):
            self._try(new, sums, "tuning, on the first half" if not extension else "tuning, beyond an edge")
            chosen = {key: choose(settings, sums[key]) for key, settings in tried.items()}
            new = {key: self._beyond(key, made, tried[key]) for key, made in chosen.items()} if spec.extend else {}
            if extension == EXTENSIONS or not any(new.values()):
                break
            for key, settings in new.items():
                tried[key] += settings
        return chosen

    def _is_tuned(self, arm: str, settings: Sequence[Setting]) -> bool:
        """Whether an arm has settings to choose from, or is one of several baselines, of which the best is chosen."""
        return len(settings) > 1 or (arm in self._spec.baselines and len(self._spec.baselines) > 1)

    def _try(self, new: Mapping[Any, Sequence[Setting]], sums: Mapping[Any, dict[int, list[Any]]], doing: str) -> None:
        """Train what is tried, and add the losses to `sums`."""
        place, spec = self._place, self._spec
        fresh = spec.conditions[spec.tuned_under]
        trials = {}
        for (name, arm), settings in new.items():
            for s in settings:
                for seed in spec.tuned_with:
                    path = place.student_part(seed, s.student, fresh, tuning=True, arm=arm)
                    trials[seed, name, arm, s.trial] = Asked(s.student, fresh, path, arm=arm)
        self._students_bar(doing, trials, tuning=True)
        for (_, name, arm, trial), asked in trials.items():
            sums[name, arm].setdefault(trial, []).append(load_part(asked.path))

    def _beyond(self, key: tuple[str, str], chosen: Chosen, tried: Sequence[Setting]) -> list[Setting]:
        """What comes after the edges of a grid, as far as it makes a valid student."""
        name, arm = key
        found: list[Setting] = []
        for tuned in beyond(chosen, tried):
            with suppress(BadInput):
                student = self._place.config.student(name)
                found.append(setting_of(self._spec, student, arm, len(tried) + len(found), tuned))
        return found

    def _live(self, choices: Choices) -> Lives:
        """Train the chosen settings under every condition, and before that the twins that teach under some."""
        place, spec = self._place, self._spec
        twins: dict[tuple[int, str, str, str], Asked] = {}
        if any(made.teacher == TWIN for made in spec.conditions.values()):
            first = spec.conditions[spec.tuned_under]
            for name in (student.name for student in self._students):
                twin = choices[name, spec.baselines[0]].setting.student
                for seed in spec.seeds:
                    arm = spec.baselines[0]
                    path = place.student_part(seed, twin, first, tuning=False, drawn_anew=True, arm=arm)
                    twins[seed, name, TWIN, spec.tuned_under] = Asked(twin, first, path, drawn_anew=True, arm=arm)
        lives: dict[tuple[int, str, str, str], Asked] = {}
        for (name, arm), chosen in choices.items():
            student = chosen.setting.student
            for condition, made in spec.conditions.items():
                for seed in spec.seeds:
                    own = twins[seed, name, TWIN, spec.tuned_under].path if made.teacher == TWIN else None
                    path = place.student_part(seed, student, made, tuning=False, twin=own, arm=arm)
                    lives[seed, name, arm, condition] = Asked(student, made, path, own, arm=arm)
        self._students_bar("twins that teach", twins, tuning=False)
        self._students_bar("arms, under every condition", lives, tuning=False)
        every = (twins | lives).items()
        return {(name, condition, arm, seed): asked.path for (seed, name, arm, condition), asked in every}

    def _students_bar(self, doing: str, asked: Mapping[Any, Asked], *, tuning: bool) -> None:
        """Train the students whose part is missing; a part that several of them share is computed once."""
        groups: dict[Any, dict[Path, Asked]] = {}
        for (seed, name, *_), one in asked.items():
            if not is_stored(one.path):
                own = seed if self._place.has_seeds(one.condition) or one.twin is not None else None
                key = (own, name, one.condition)
                groups.setdefault(key, {}).setdefault(one.path, one._replace(seed=seed))
        done: set[Path] = set()
        jobs, rows = [], 0
        for group in groups.values():
            new = [one for path, one in group.items() if path not in done]
            done.update(group)
            for piece in _pieces(new, len(groups), self._processes):
                jobs.append(StudentJob(self._place, piece[0].seed or 0, tuning, tuple(piece)))
                rows += sum(self._student_rows(one.seed or 0, one, tuning) for one in piece)
        self._do(doing, jobs, rows)

    def judge(self, choices: Choices, parts: Lives) -> dict[Any, Any]:
        """Every student and task, on finished parts: what it is under each condition."""
        place = self._place
        jobs = []
        for name, best in self._best_twins(choices).items():
            own: Parts = {(c, arm, seed): path for (of, c, arm, seed), path in parts.items() if of == name}
            knows = {arm: place.knows(made.setting.student) for (of, arm), made in choices.items() if of == name}
            base = place.config.student(name)
            jobs += [JudgeJob(place, base, task, best, own, knows) for task in place.config.student_tasks(base)]
        found = {}
        with _progress("judging", len(jobs) * len(self._spec.conditions)) as tell:
            for name, task, value in self._pool.run(jobs, tell):
                found[name, task] = value
        return {(job.student.name, job.task): found[job.student.name, job.task] for job in jobs}

    def _best_twins(self, choices: Choices) -> dict[str, str]:
        """Of each student, the baseline that is best where settings are chosen."""
        names = self._spec.baselines
        return {s.name: best_of({arm: choices[s.name, arm] for arm in names}) for s in self._students}

    # --- how much work there is --------------------------------------------------------------------------------------

    def _student_rows(self, seed: int, asked: Asked, tuning: bool) -> int:
        place, student = self._place, asked.student
        if (key := (seed, student.name)) not in self._counted:
            self._counted[key] = len(places_of(place.rows(seed), place.config, student))
        share = self._spec.chosen_on[1] if tuning else 1 - asked.condition.start
        return round(self._counted[key] * share)

    def _do(self, doing: str, jobs: Sequence[Any], rows: int) -> None:
        if not jobs:
            return
        with _progress(doing, rows) as tell:
            for _ in self._pool.run(jobs, tell):
                pass


def _pieces(asked: Sequence[Asked], groups: int, processes: int) -> Iterator[Sequence[Asked]]:
    """A group, cut into pieces where there are fewer groups than processes need."""
    wanted = max(1, -(-processes * PIECES_PER_PROCESS // max(1, groups))) if processes > 1 else 1
    size = max(1, -(-len(asked) // wanted))
    for start in range(0, len(asked), size):
        yield asked[start : start + size]


@contextmanager
def _progress(doing: str, total: int) -> Iterator[Tell]:
    """A progress bar, advanced by counts that add up."""
    done = 0
    with rows_bar(doing, total) as advance:

        def tell(count: int) -> None:
            nonlocal done
            done += count
            advance(done)

        yield tell
