"""A sweep from its rows to its report: finished parts are found again, missing ones are computed by several processes.

rows ──► teachers: logits ──► tuning, first half ──► choice ──► chosen settings, every condition ──► judged ──► report
                                  ▲  beyond edges  ╵
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipelines.config import Generated
from pipelines.control import writable
from pipelines.display import rows_bar
from pipelines.offline import Pool, Tell, is_stored, load_part
from pipelines.offline.sweep.choice import Chosen, best_of, beyond, choose
from pipelines.offline.sweep.data import places_of
from pipelines.offline.sweep.jobs import TEACHER_COST, Asked, RowsJob, StudentJob, TeacherJob, work
from pipelines.offline.sweep.judge import JudgeJob, Parts
from pipelines.offline.sweep.picture import draw
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.report import report
from pipelines.offline.sweep.settings import (
    EXTENSIONS,
    TWIN,
    Setting,
    Snapshots,
    setting_of,
    settings_of,
    students_of,
)
from pipelines.offline.sweep.text import markdown
from streaming.disk import write_json
from streaming.errors import BadInput

Choices = Mapping[tuple[str, str], Chosen]
"""Student and arm -> the setting that was chosen."""

Lives = Mapping[tuple[str, str, str, int], Path]
"""Student, condition, arm and seed -> the logits of a life."""

PIECES_PER_PROCESS = 4
"""Jobs are cut this fine, so that all processes finish at about the same time."""


class Runner:
    """Runs one sweep on `processes` processes."""

    def __init__(self, place: Place, processes: int) -> None:
        self._place, self._processes = place, processes
        self._pool = Pool(work, processes)
        self._sweep = place.sweep
        self._students = students_of(place.sweep, place.config)
        self._counted: dict[tuple[int, str], int] = {}

    def run(self) -> dict[str, Any]:
        """Compute what is missing; return the report, also written as `sweep.json`, `sweep.md` and pictures."""
        writable(self._place.folder, "the sweep's folder", "--out")
        try:
            self._settle()
            self._teach()
            choices = self._tune()
            parts = self._live(choices)
            judged = self._judge(choices, parts)
        finally:
            self._pool.close()
        value = report(self._place, choices, self._best_twins(choices), judged, sorted(set(parts.values())))
        folder = self._place.folder
        write_json(folder / "sweep.json", value)
        (folder / "sweep.md").write_text(markdown(value))
        draw(value, folder)
        return value

    # --- stages ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        place, sweep = self._place, self._sweep
        seeds = sweep.all_seeds[:1] if place.one_stream else sweep.all_seeds
        source = place.config.source
        rows = sweep.rows or (source.impressions if isinstance(source, Generated) else 0)
        self._do("settling rows", [RowsJob(place, seed) for seed in seeds], rows * len(seeds))

    def _teach(self) -> None:
        place, sweep, jobs = self._place, self._sweep, []
        if place.run_dir is not None:
            return
        for seed in sweep.all_seeds:
            missing: dict[tuple[str | None, int], list[Snapshots]] = {}
            for snapshots in sweep.snapshots(seed):
                if not is_stored(place.teacher_part(seed, snapshots)):
                    missing.setdefault((snapshots.teacher, snapshots.born), []).append(snapshots)
            jobs += [TeacherJob(place, seed, tuple(asked)) for asked in missing.values()]
        self._do("teachers", jobs, sum(place.taught(job.seed).num_rows for job in jobs) * TEACHER_COST)

    def _tune(self) -> Choices:
        """Try all settings and, where the best one is at an edge of its grid, some beyond; choose."""
        sweep = self._sweep
        tried = {
            (s.name, arm): settings_of(sweep, self._place.config, s, arm) for s in self._students for arm in sweep.arms
        }
        sums: dict[tuple[str, str], dict[int, list[Any]]] = {key: {} for key in tried}
        new = {key: settings for key, settings in tried.items() if self._is_tuned(key[1], settings)}
        for extension in range(EXTENSIONS + 1):
            self._try(new, sums, "tuning, on the first half" if not extension else "tuning, beyond an edge")
            chosen = {key: choose(settings, sums[key]) for key, settings in tried.items()}
            new = {key: self._beyond(key, made, tried[key]) for key, made in chosen.items()} if sweep.extend else {}
            if extension == EXTENSIONS or not any(new.values()):
                break
            for key, settings in new.items():
                tried[key] += settings
        return chosen

    def _is_tuned(self, arm: str, settings: Sequence[Setting]) -> bool:
        """Whether an arm has settings to choose from, or is one of several baselines, of which the best is chosen."""
        return len(settings) > 1 or (arm in self._sweep.baselines and len(self._sweep.baselines) > 1)

    def _try(self, new: Mapping[Any, Sequence[Setting]], sums: Mapping[Any, dict[int, list[Any]]], doing: str) -> None:
        """Train what is tried, and add the losses to `sums`."""
        place, sweep = self._place, self._sweep
        fresh = sweep.conditions[sweep.tuned_under]
        trials = {
            (seed, name, arm, s.trial): Asked(s.student, fresh, place.student_part(seed, s.student, fresh, tuning=True))
            for (name, arm), settings in new.items()
            for s in settings
            for seed in sweep.tuned_with
        }
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
                found.append(setting_of(self._sweep, student, arm, len(tried) + len(found), tuned))
        return found

    def _live(self, choices: Choices) -> Lives:
        """Train the chosen settings under every condition, and before that the twins that teach under some."""
        place, sweep = self._place, self._sweep
        twins: dict[tuple[int, str, str, str], Asked] = {}
        if any(made.teacher == TWIN for made in sweep.conditions.values()):
            first = sweep.conditions[sweep.tuned_under]
            for name in (student.name for student in self._students):
                twin = choices[name, sweep.baselines[0]].setting.student
                for seed in sweep.seeds:
                    path = place.student_part(seed, twin, first, tuning=False, drawn_anew=True)
                    twins[seed, name, TWIN, sweep.tuned_under] = Asked(twin, first, path, drawn_anew=True)
        lives: dict[tuple[int, str, str, str], Asked] = {}
        for (name, arm), chosen in choices.items():
            student = chosen.setting.student
            for condition, made in sweep.conditions.items():
                for seed in sweep.seeds:
                    own = twins[seed, name, TWIN, sweep.tuned_under].path if made.teacher == TWIN else None
                    path = place.student_part(seed, student, made, tuning=False, twin=own)
                    lives[seed, name, arm, condition] = Asked(student, made, path, own)
        self._students_bar("twins that teach", twins, tuning=False)
        self._students_bar("arms, under every condition", lives, tuning=False)
        every = (twins | lives).items()
        return {(name, condition, arm, seed): asked.path for (seed, name, arm, condition), asked in every}

    def _students_bar(self, doing: str, asked: Mapping[Any, Asked], *, tuning: bool) -> None:
        """Train the students whose part is missing; a part that several of them share is computed once."""
        groups: dict[Any, dict[Path, Asked]] = {}
        for (seed, name, *_), one in asked.items():
            if not is_stored(one.path):
                key = (seed, name, one.condition)
                groups.setdefault(key, {}).setdefault(one.path, one)
        done: set[Path] = set()
        jobs, rows = [], 0
        for (seed, *_), group in groups.items():
            new = [one for path, one in group.items() if path not in done]
            done.update(group)
            for piece in _pieces(new, len(groups), self._processes):
                jobs.append(StudentJob(self._place, seed, tuning, tuple(piece)))
                rows += sum(self._student_rows(seed, one, tuning) for one in piece)
        self._do(doing, jobs, rows)

    def _judge(self, choices: Choices, parts: Lives) -> dict[Any, Any]:
        place = self._place
        jobs = []
        for name, best in self._best_twins(choices).items():
            own: Parts = {(c, arm, seed): path for (of, c, arm, seed), path in parts.items() if of == name}
            base = choices[name, best].setting.student
            jobs += [JudgeJob(place, base, task, best, own) for task in place.config.student_tasks(base)]
        found = {}
        with _progress("judging", len(jobs) * len(self._sweep.conditions)) as tell:
            for name, task, value in self._pool.run(jobs, tell):
                found[name, task] = value
        return {(job.student.name, job.task): found[job.student.name, job.task] for job in jobs}

    def _best_twins(self, choices: Choices) -> dict[str, str]:
        """Of each student, the baseline that is best where settings are chosen."""
        names = self._sweep.baselines
        return {s.name: best_of({arm: choices[s.name, arm] for arm in names}) for s in self._students}

    # --- how much work there is --------------------------------------------------------------------------------------

    def _student_rows(self, seed: int, asked: Asked, tuning: bool) -> int:
        table = self._place.rows(seed).table
        place, student = self._place, asked.student
        if (key := (seed, student.name)) not in self._counted:
            self._counted[key] = len(places_of(table, place.config, student))
        share = self._sweep.chosen_on[1] if tuning else 1 - asked.condition.start
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
