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
from exfm.models import StudentEngine
from exfm.threads import set_threads
from pipelines.config import StudentSettings
from pipelines.offline import Tell, save_part
from pipelines.offline.sweep.data import Data, data_of
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.settings import Condition, Reference
from pipelines.offline.sweep.teachers import lockstep_logits

TEACHER_COST = 8
"""How many times longer a teacher's row takes than a student's; progress is counted in students' rows."""


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
    """The ages of one teacher's logits that are not there yet."""

    place: Place
    seed: int
    behinds: tuple[int, ...]
    reference: Reference | None = None

    def run(self, tell: Tell) -> tuple[int, str]:
        place, more = self.place, _increments(tell)
        features, model = place.teacher(self.reference)
        table = place.rows(self.seed).table
        found = lockstep_logits(
            place.of(self.seed),
            features,
            model,
            table,
            behinds=self.behinds,
            advance=lambda done: more(done * TEACHER_COST),
        )
        for behind, made in found.items():
            save_part(place.teacher_part(self.seed, behind, self.reference), **made._asdict())
        return self.seed, "teacher"


class Asked(NamedTuple):
    """A student with its model as set, and where its part goes."""

    student: StudentSettings
    condition: Condition
    path: Path


@dataclass(frozen=True)
class StudentJob:
    """Students of one name and seed, one after the other, on batches built once."""

    place: Place
    seed: int
    tuning: bool
    asked: tuple[Asked, ...]

    def run(self, tell: Tell) -> int:
        for asked in self.asked:
            data, blocks, half = _data(self.place, self.seed, self.tuning, _columns_of(asked))
            born = data.born(asked.condition.start, blocks)
            passed = one_life(self.place, self.seed, asked.student, data, born, tell)
            if self.tuning:
                passed = self._sums(passed, data, len(blocks) if half is None else half)
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
    place: Place, seed: int, student: StudentSettings, data: Data, born: tuple[int, int], tell: Tell
) -> dict[str, Any]:
    """A student's way over its rows from its birth on, a row and a batch: its logits (n, T) of each, before it learned
    it. `seconds` of the core that it took to learn `rows`."""
    config = place.of(seed)
    tasks = config.student_tasks(student)
    engine = StudentEngine(student.model, config.student_features(student), tasks, seed)
    row, first = born
    logits = np.full((len(data.places), len(tasks)), np.nan, np.float32)
    seconds, left_out = 0.0, 0
    for i, batch in enumerate(data.batches[first:], first):
        if (scored_only := data.scored_only[i]) is not None:
            logits[scored_only[0]] = engine.score(scored_only[1])
        began = time.process_time()
        judged = engine.step(batch)
        seconds += time.process_time() - began
        logits[data.learned[data.bounds[i] : data.bounds[i + 1]]] = judged.logits
        left_out += len(batch) - judged.finite_rows
        tell(len(batch))
    rows = len(logits) - row
    return {"logits": logits[row:], "first": row, "seconds": seconds, "left_out": left_out, "rows": rows}


def _columns_of(asked: Asked) -> tuple[str, int, float, float]:
    """What decides a student's batches: all but its model and when it is born."""
    settings = asked.student.model_copy(update={"model": type(asked.student.model)()})
    condition = asked.condition
    return settings.model_dump_json(), condition.behind, condition.scale, condition.shift


@lru_cache(maxsize=1)
def _data_of(cached: _Key) -> tuple[Data, np.ndarray, int | None]:
    place, seed, tuning, (settings, behind, scale, shift) = cached.parts
    table = place.lake(seed, Condition(behind=behind, scale=scale, shift=shift))
    count = table.num_rows
    if tuning:
        table = table.slice(0, round(place.sweep.chosen_on[1] * count))
    student = StudentSettings.model_validate_json(settings)
    return data_of(table, place.of(seed), student), table["block"].to_numpy(), count if tuning else None


def _data(place: Place, seed: int, tuning: bool, columns: Any) -> tuple[Data, np.ndarray, int | None]:
    """Batches, the blocks of the rows they are from, and in tuning how many rows the whole stream has."""
    return _data_of(_Key((place, seed, tuning, columns)))


class _Key(NamedTuple):
    """Equal for equal sweeps of equal configs: a place itself cannot be hashed."""

    parts: tuple[Place, int, bool, Any]

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
