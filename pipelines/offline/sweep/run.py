"""A sweep from its rows to its report: finished parts are found again, missing ones are computed by several processes.

rows ──► teachers: logits ──► tuning, first half ──► choice ──► chosen settings, every condition ──► judged ──► report
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.config import Generated
from pipelines.control import writable
from pipelines.display import rows_bar
from pipelines.offline import Pool, Tell, is_stored, load_part
from pipelines.offline.sweep.choice import Chosen, choose
from pipelines.offline.sweep.data import places_of
from pipelines.offline.sweep.jobs import TEACHER_COST, Asked, RowsJob, StudentJob, TeacherJob, work
from pipelines.offline.sweep.judge import JudgeJob, Parts
from pipelines.offline.sweep.picture import draw
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.report import report
from pipelines.offline.sweep.settings import settings_of, students_of
from pipelines.offline.sweep.text import markdown
from streaming.disk import write_json

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
            choices, parts = self._train()
            judged = self._judge(choices, parts)
        finally:
            self._pool.close()
        value = report(self._place, choices, judged, sorted(set(parts.values())))
        folder = self._place.folder
        write_json(folder / "sweep.json", value)
        (folder / "sweep.md").write_text(markdown(value))
        draw(value, folder)
        return value

    # --- stages ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        place, sweep = self._place, self._sweep
        seeds = sweep.seeds[:1] if place.one_stream else sweep.seeds
        source = place.config.source
        rows = sweep.rows or (source.impressions if isinstance(source, Generated) else 0)
        self._do("settling rows", [RowsJob(place, seed) for seed in seeds], rows * len(seeds))

    def _teach(self) -> None:
        place, sweep, jobs = self._place, self._sweep, []
        if place.run_dir is not None:
            return
        for seed in sweep.seeds:
            missing = [b for b in sweep.behinds if not is_stored(place.teacher_part(seed, b))]
            if missing:
                jobs.append(TeacherJob(place, seed, tuple(missing)))
            for reference in sweep.references.values():
                if not is_stored(place.teacher_part(seed, 0, reference)):
                    jobs.append(TeacherJob(place, seed, (0,), reference))
        self._do("teachers", jobs, sum(self._stream_rows(job.seed) for job in jobs) * TEACHER_COST)

    def _train(self) -> tuple[Choices, Lives]:
        """Tune, choose, and train the chosen settings under every condition."""
        place, sweep = self._place, self._sweep
        tried = {(s.name, arm): settings_of(sweep, place.config, s, arm) for s in self._students for arm in sweep.arms}
        fresh = sweep.conditions[sweep.tuned_under]
        trials = {
            (seed, name, arm, s.trial): Asked(s.student, fresh, place.student_part(seed, s.student, fresh, tuning=True))
            for (name, arm), settings in tried.items()
            if len(settings) > 1
            for s in settings
            for seed in sweep.seeds[: sweep.tuning_seeds]
        }
        self._students_bar("tuning, on the first half", trials, tuning=True)
        choices: dict[tuple[str, str], Chosen] = {}
        for (name, arm), settings in tried.items():
            sums: dict[int, list[Any]] = {}
            for (_, of, under, trial), asked in trials.items():
                if (of, under) == (name, arm):
                    sums.setdefault(trial, []).append(load_part(asked.path))
            choices[name, arm] = choose(settings, sums)
        lives = {
            (seed, name, arm, condition): Asked(chosen.setting.student, made, self._life(seed, chosen, condition))
            for (name, arm), chosen in choices.items()
            for condition, made in sweep.conditions.items()
            for seed in sweep.seeds
        }
        self._students_bar("arms, under every condition", lives, tuning=False)
        parts = {(name, condition, arm, seed): asked.path for (seed, name, arm, condition), asked in lives.items()}
        return choices, parts

    def _life(self, seed: int, chosen: Chosen, condition: str) -> Path:
        return self._place.student_part(seed, chosen.setting.student, self._sweep.conditions[condition], tuning=False)

    def _students_bar(self, doing: str, asked: Mapping[Any, Asked], *, tuning: bool) -> None:
        """Train the students whose part is missing; a part that several of them share is computed once."""
        groups: dict[Any, dict[Path, Asked]] = {}
        for (seed, name, *_), one in asked.items():
            if not is_stored(one.path):
                condition = one.condition
                key = (seed, name, condition.behind, condition.scale, condition.shift)
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
        for student in self._students:
            own: Parts = {(c, arm, seed): path for (name, c, arm, seed), path in parts.items() if name == student.name}
            base = choices[student.name, self._sweep.baseline].setting.student
            jobs += [JudgeJob(place, base, task, own) for task in place.config.student_tasks(base)]
        found = {}
        with _progress("judging", len(jobs) * len(self._sweep.conditions)) as tell:
            for name, task, value in self._pool.run(jobs, tell):
                found[name, task] = value
        return {(job.student.name, job.task): found[job.student.name, job.task] for job in jobs}

    # --- how much work there is --------------------------------------------------------------------------------------

    def _stream_rows(self, seed: int) -> int:
        return int(self._place.rows(seed).table.num_rows)

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
