"""What a sweep's processes do: settle rows, train teachers, train students; each leaves parts and reports its progress.

RowsJob -> rows     TeacherJob -> logits by age of snapshot     StudentJob -> tuning sums, or logits of a whole life
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from exfm.metrics import cross_entropy
from exfm.models import STUDENT, StudentEngine
from exfm.threads import set_threads
from pipelines.config import StudentSettings
from pipelines.offline import Tell, save_part
from pipelines.offline.sweep.data import Data, data_of
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.settings import Condition, Snapshots
from pipelines.offline.sweep.teachers import lockstep_logits
from streaming.errors import BadInput

TEACHER_COST = 8
"""How many times longer a teacher's row takes than a student's; progress is counted in students' rows."""

ANOTHER_DRAW = 1_000_003
"""Added to the seed of a student that is drawn anew."""


class SweepJob(Protocol):
    def run(self, tell: Tell) -> Any: ...


def work(job: SweepJob, tell: Tell) -> Any:
    set_threads(1)
    return job.run(tell)


@dataclass(frozen=True)
class RowsJob:
    place: Place
    seed: int

    def run(self, tell: Tell) -> tuple[int, str]:
        self.place.rows(self.seed, _increments(tell))
        return self.seed, "rows"


@dataclass(frozen=True)
class TeacherJob:
    """One teacher's logits by snapshots of those ages that are not there yet: `asked` differ in `behind` alone."""

    place: Place
    seed: int
    asked: tuple[Snapshots, ...]

    def run(self, tell: Tell) -> tuple[int, str]:
        place, more = self.place, _increments(tell)
        name, born, _ = self.asked[0]
        features, model = place.teacher(name)
        found = lockstep_logits(
            place.of(self.seed),
            features,
            model,
            place.taught(self.seed),
            behinds=[snapshots.behind for snapshots in self.asked],
            born=born,
            advance=lambda done: more(done * TEACHER_COST),
        )
        for snapshots in self.asked:
            save_part(place.teacher_part(self.seed, snapshots), **found[snapshots.behind]._asdict())
        return self.seed, "teacher"


class Asked(NamedTuple):
    """A student with its model as set, and where its part goes; `twin` has the logits of a student like it without a
    teacher, where those teach it. One that is `drawn_anew` has other initial weights than those of the seed."""

    student: StudentSettings
    condition: Condition
    path: Path
    twin: Path | None = None
    drawn_anew: bool = False


@dataclass(frozen=True)
class StudentJob:
    """Students of one name and seed, one after the other, on batches built once."""

    place: Place
    seed: int
    tuning: bool
    asked: tuple[Asked, ...]

    def run(self, tell: Tell) -> int:
        for asked in self.asked:
            data, stream_rows = _data(self.place, self.seed, self.tuning, _columns_of(asked))
            passed = one_life(self.place, self.seed, asked.student, data, tell, drawn_anew=asked.drawn_anew)
            if self.tuning:
                passed = self._sums(passed, data, stream_rows)
            save_part(asked.path, **passed)
        return len(self.asked)

    def _sums(self, passed: dict[str, Any], data: Data, stream_rows: int) -> dict[str, Any]:
        """Sums over the part of the stream that settings are chosen on: by task, Σ w·h, Σ w and Σ w·y."""
        low, high = (share * stream_rows for share in self.place.sweep.chosen_on)
        chosen = (data.places >= low) & (data.places < high)
        weights = np.where(chosen[:, None], data.weights, 0.0)
        losses = np.where(weights > 0, cross_entropy(passed.pop("logits"), data.labels), 0.0)
        return passed | {
            "loss": (losses * weights).sum(0),
            "weight": weights.sum(0),
            "positive": (data.labels * weights).sum(0),
        }


def one_life(
    place: Place, seed: int, student: StudentSettings, data: Data, tell: Tell, *, drawn_anew: bool = False
) -> dict[str, Any]:
    """A student's way over its rows from its birth on: its logits (n, T) of each, before it learned it, and where
    batches know when their rows were shown, those as `shown`. `seconds` of the core that it took to learn `rows`."""
    config = place.of(seed)
    tasks = config.student_tasks(student)
    features = config.student_features(student)
    draw = seed + ANOTHER_DRAW if drawn_anew else seed
    rows, full = student.learned_rows, student.batch_rows
    timed = bool(data.batches) and data.batches[0].shown_ms is not None
    versions = config.as_shown_of(student) if timed else None
    engine = StudentEngine(student.model, features, tasks, draw, learned_rows=rows, full_batch=full, as_shown=versions)
    if engine.as_shown_is_off is not None:
        raise BadInput(engine.as_shown_is_off)
    logits = np.full((len(data.places), len(tasks)), np.nan, np.float32)
    shown = logits.copy()
    seconds, left_out = 0.0, 0
    for i, batch in enumerate(data.batches):
        if (scored_only := data.scored_only[i]) is not None:
            logits[scored_only[0]] = engine.score(scored_only[1])
        began = time.process_time()
        judged = engine.step(batch)
        seconds += time.process_time() - began
        learned = data.learned[data.bounds[i] : data.bounds[i + 1]]
        logits[learned] = judged.logits
        if STUDENT in judged.as_shown:
            shown[learned] = judged.as_shown[STUDENT]
        own = data.bounds[i + 1] - data.bounds[i]
        left_out += own - judged.finite_rows
        tell(own)
    own = logits[data.first :]
    found = {"logits": own, "first": data.first, "seconds": seconds, "left_out": left_out, "rows": len(own)}
    return found | ({"shown": shown[data.first :]} if timed else {})


class _Columns(NamedTuple):
    """What decides a student's batches: all but its model, of which it matters whether it distils."""

    settings: str
    condition: Condition
    twin: Path | None


def _columns_of(asked: Asked) -> _Columns:
    whose = asked.student.learned_rows.distillation
    settings = asked.student.model_copy(update={"model": type(asked.student.model)(), "distillation_rows": whose})
    return _Columns(settings.model_dump_json(), asked.condition, asked.twin)


@lru_cache(maxsize=1)
def _data_of(cached: _Key) -> tuple[Data, int]:
    place, seed, tuning, (settings, condition, twin) = cached.parts
    student = StudentSettings.model_validate_json(settings)
    table = place.lake(seed, condition, student, twin)
    count = table.num_rows
    if tuning:
        table = table.slice(0, round(place.sweep.chosen_on[1] * count))
    as_shown = place.sweep.as_shown and not tuning
    return data_of(table, place.of(seed), student, condition.start, as_shown=as_shown), count


def _data(place: Place, seed: int, tuning: bool, columns: _Columns) -> tuple[Data, int]:
    """Batches, and how many rows the whole stream has."""
    return _data_of(_Key((place, seed, tuning, columns)))


class _Key(NamedTuple):
    """Equal for equal sweeps of equal configs: a place itself cannot be hashed."""

    parts: tuple[Place, int, bool, _Columns]

    def __hash__(self) -> int:
        return hash(self._plain())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._plain() == other._plain()

    def _plain(self) -> Any:
        place, *rest = self.parts
        return place.folder, place.sweep.model_dump_json(), place.config.hash, *rest


def _increments(tell: Tell) -> Tell:
    """From how many are done, how many more."""
    done = 0

    def advance(now: int) -> None:
        nonlocal done
        tell(now - done)
        done = now

    return advance
