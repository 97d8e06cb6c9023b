"""Jobs of a replay's processes: settle rows, train teachers and students; each writes parts and reports progress.

RowsJob -> rows     TeacherJob -> logits by age of snapshot     StudentJob -> tuning sums, or logits of every row
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from exfm.evaluate import Prediction, progressive
from exfm.features.batch import Batch
from exfm.machine import set_threads
from exfm.metrics.classification import cross_entropy
from exfm.models.bad_rows import spoiled_inputs
from exfm.models.engine import Judged, RegressionEngine, StudentEngine
from exfm.step import LEARNED
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.data import Data, data_of, places_of
from pipelines.lab.logits.starts import known_upto, learned_upto, start_of
from pipelines.lab.logits.stored import of_logit_set, rescored
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.lab.mapped import PIECE_ROWS, mapped_array, release_pages
from pipelines.lab.parts import save_part
from pipelines.lab.pool import AddDone
from pipelines.lab.replay.store import TrainRequest, teacher_part
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.arms import with_features
from pipelines.lab.spec.conditions import Condition, LogitSource
from pipelines.live.workers.student.warm import start_warm

TEACHER_COST = 8
"""How many times longer a teacher's row takes than a student's; progress is counted in students' rows."""

SIDE_BY_SIDE = 8
"""Students that learn a batch one after the other: what is read, built and worked out of it for all of them costs each
of eight little."""

TIMED = 16
"""Of so many batches one is timed: on it, each student works out by itself what it otherwise finds worked out."""

ANOTHER_DRAW = 1_000_003
"""Added to the seed of a student that is drawn anew."""


class Job(Protocol):
    def run(self, add_done: AddDone) -> Any: ...


def work(job: Job, add_done: AddDone) -> Any:
    set_threads(1)
    return job.run(add_done)


@dataclass(frozen=True)
class RowsJob:
    workspace: Workspace
    seed: int

    def run(self, add_done: AddDone) -> None:
        self.workspace.rows(self.seed, _increments(add_done))


@dataclass(frozen=True)
class TeacherJob:
    """The logits of one teacher. The `sources` differ in `behind` alone, the age of the snapshots."""

    workspace: Workspace
    seed: int
    sources: tuple[LogitSource, ...]

    def run(self, add_done: AddDone) -> None:
        workspace, more = self.workspace, _increments(add_done)
        name, born, *_ = self.sources[0]
        features, model = workspace.teacher(name)
        began = time.process_time()
        logits = lockstep_logits(
            workspace.of(self.seed),
            features,
            model,
            workspace.teacher_rows(self.seed, model),
            count=workspace.taught_rows(self.seed),
            behinds=[source.behind for source in self.sources],
            born=born,
            folder=workspace.folder,
            advance=lambda done: more(done * TEACHER_COST),
        )
        for source in self.sources:
            part = _present(logits[source.behind]._asdict()) | {"seconds": time.process_time() - began}
            save_part(teacher_part(workspace, self.seed, source), **part)


@dataclass(frozen=True)
class RescoreJob:
    """The logits of a run's stored snapshots."""

    workspace: Workspace
    seed: int
    source: LogitSource

    def run(self, add_done: AddDone) -> None:
        workspace, more = self.workspace, _increments(add_done)
        assert workspace.run_dir is not None
        assert self.source.stored is not None
        of, config, rows = self.source.stored, workspace.of(self.seed), workspace.rows(self.seed)
        cells: np.ndarray | None = None
        if of.logit_set is not None:
            logits = of_logit_set(config, workspace.run_dir, rows, of.logit_set, workspace.folder)
            more(rows.num_rows * TEACHER_COST)
        else:
            logits, cells = rescored(
                config,
                workspace.run_dir,
                rows,
                of,
                workspace.snapshots,
                workspace.folder,
                lambda done: more(done * TEACHER_COST),
            )
        part = _present({"logits": logits, "cells": cells, "left_out": 0})
        save_part(teacher_part(workspace, self.seed, self.source), **part)


def _present(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


@dataclass(frozen=True)
class StudentJob:
    """Students of one name. Those that learn the same batches are trained together, `SIDE_BY_SIDE` at a time."""

    workspace: Workspace
    tuning: bool
    requests: tuple[TrainRequest, ...]

    def run(self, add_done: AddDone) -> None:
        workspace = self.workspace
        groups: dict[BatchKey, list[TrainRequest]] = {}
        for request in self.requests:
            groups.setdefault(BatchKey.of(workspace, request), []).append(request)
        for key, group in groups.items():
            data, stream_rows = shared_data(workspace, self.tuning, key)
            for at in range(0, len(group), SIDE_BY_SIDE):
                some = group[at : at + SIDE_BY_SIDE]
                for request, result in zip(some, train_together(workspace, some, data, add_done), strict=True):
                    if self.tuning:
                        low, high = (share * stream_rows for share in workspace.spec.chosen_on)
                        result = _sums(result, data, low, high)
                    else:
                        result = _on_rows_of_config(workspace, request, result, data)
                    save_part(request.path, **result)


def _sums(result: dict[str, Any], data: Data, low: float, high: float) -> dict[str, Any]:
    """`result` with its logits reduced to Σ w·h, Σ w and Σ w·y by task, by which settings are chosen: over the rows
    from `low` to `high` of the stream that it predicted when they were shown, with the labels by which arms are
    judged."""
    logits, absent, tasks = result.pop("logits"), result.pop("absent"), data.targets(0, 0).labels.shape[1]
    del result["as_learned"]
    sums = {name: np.zeros(tasks) for name in ("loss", "weight", "positive")}
    for start in range(data.first, len(data.places), PIECE_ROWS):
        stop = min(start + PIECE_ROWS, len(data.places))
        labels, weights = data.targets(start, stop)
        places, life = data.places[start:stop], slice(start - data.first, stop - data.first)
        weights = np.where(((places >= low) & (places < high) & ~absent[life])[:, None], weights, 0.0)
        losses = cross_entropy(logits[life], labels)
        losses = np.where(weights > 0, losses, 0.0)
        for name, summands in (("loss", losses * weights), ("weight", weights), ("positive", labels * weights)):
            sums[name] += summands.sum(0)
        release_pages(logits)
        release_pages(absent)
    return result | sums


def _on_rows_of_config(
    workspace: Workspace, request: TrainRequest, result: dict[str, Any], data: Data
) -> dict[str, Any]:
    """The result of an arm with a filter or a first row of its own, laid out on the rows of the config's student: a row
    that is not the arm's is absent."""
    own, base = request.student, workspace.config.student(request.student.name)
    filters = ("row_filter", "where", "first_seq", "starts_from")
    if all(getattr(own, name) == getattr(base, name) for name in filters):
        return result
    rows = places_of(workspace.rows(request.seed), workspace.config, base, data.folder)
    absent = mapped_array((len(rows),), bool, data.folder, fill=True)
    by_row = {
        name: mapped_array((len(rows), result[name].shape[1]), np.float32, data.folder, fill=np.nan)
        for name in ("logits", "as_learned")
    }
    for start in range(data.first, len(data.places), PIECE_ROWS):
        mine = data.places[start : start + PIECE_ROWS]
        at = np.searchsorted(rows, mine)
        there = at < len(rows)
        there[there] = rows[at[there]] == mine[there]
        for name, array in (by_row | {"absent": absent}).items():
            array[at[there]] = result[name][start - data.first :][: len(mine)][there]
            release_pages(array)
            release_pages(result[name])
    return result | by_row | {"first": 0, "absent": absent}


class StudentTraining:
    """A student in training, and its predictions: of each row when it was shown, and again as it was learned."""

    def __init__(self, workspace: Workspace, request: TrainRequest, data: Data) -> None:
        student, config = request.student, workspace.of(request.seed, request.arm)
        tasks, features = config.student_tasks(student), config.student_features(student)
        draw = request.seed + ANOTHER_DRAW * request.drawn_anew
        rows, full = student.learned_rows, student.batch_rows
        self.engine: StudentEngine | RegressionEngine
        if request.regression:
            self.engine = RegressionEngine(features, tasks, rows)
        else:
            self.engine = StudentEngine(student.model, features, tasks, draw, learned_rows=rows, full_batch=full)
            if (checkpoint := start_of(student, workspace.run_dir, workspace.folder)) is not None:
                start_warm(self.engine, checkpoint, config, student)
        shape = len(data.places) - data.first, len(tasks)
        self._logits, self._as_learned = (
            mapped_array(shape, np.float32, data.folder, fill=np.nan) for _ in ("when shown", "as learned")
        )
        self._absent = mapped_array(shape[:1], bool, data.folder, fill=True)
        self._first, self._steps, self._left_out = data.first, 0, 0
        self._seconds, self._timed_rows = 0.0, 0

    def score(self, batch: Batch) -> np.ndarray:
        """The engine's; NaN where an input is too large, as in a step."""
        logits, spoiled = self.engine.score(batch), spoiled_inputs(batch)
        return logits if spoiled is None else np.where(spoiled[:, None] == LEARNED, logits, np.nan)

    def step(self, batch: Batch) -> Judged:
        """The engine's. Of some batches it is timed, as what a row costs."""
        timed = self._steps % TIMED == 0
        if timed:
            batch.forget()  # what others worked out of it
        began = time.process_time()
        judged = self.engine.step(batch)
        rows = len(judged.logits)
        if timed:
            self._seconds += time.process_time() - began
            self._timed_rows += rows
        self._steps += 1
        self._left_out += rows - judged.finite_rows
        return judged

    def keep(self, prediction: Prediction[Judged]) -> None:
        at = prediction.scored.rows - self._first
        array = self._logits if prediction.shown else self._as_learned
        array[at] = prediction.logits
        release_pages(array)
        if prediction.shown:
            self._absent[at] = False
            release_pages(self._absent)

    def result(self) -> dict[str, Any]:
        """`logits` (n, T), each made when its row was shown, NaN and `absent` (n,) where the first weights already knew
        more than that; `as_learned` (n, T), made when its label had settled, as a live student makes them. `seconds` of
        CPU time to learn `rows` rows by itself, as the timed batches say."""
        rows = len(self._logits)
        return {
            "logits": self._logits,
            "absent": self._absent,
            "as_learned": self._as_learned,
            "first": self._first,
            "left_out": self._left_out,
            "seconds": self._seconds * rows / max(1, self._timed_rows),
            "rows": rows,
        }


def train_together(
    workspace: Workspace, requests: Sequence[TrainRequest], data: Data, add_done: AddDone
) -> Iterator[dict[str, Any]]:
    """Train students on all of `data`, each batch by all in turn; `StudentTraining.result` of each, in order."""
    students = [StudentTraining(workspace, request, data) for request in requests]
    streams = tee(data.stream, len(students))
    protocols = [progressive(one, stream, data.delay) for one, stream in zip(students, streams, strict=True)]
    for predictions in zip(*protocols, strict=True):
        for student, prediction in zip(students, predictions, strict=True):
            student.keep(prediction)
            if prediction.judged is not None:
                add_done(len(prediction.logits))
        predictions[0].scored.batch.forget()
    while students:
        yield students.pop(0).result()  # its arrays are released once they are stored


class BatchKey(NamedTuple):
    """Key of a student's batches: all of its settings except the model (but for the rows that it distils on), and
    the seed where rows or logits depend on it. Requests of equal keys learn the same batches."""

    settings: str
    condition: Condition
    twin: Path | None
    features: str
    seed: int

    @classmethod
    def of(cls, workspace: Workspace, request: TrainRequest) -> BatchKey:
        student, spec = request.student, workspace.spec
        without_model = {"model": type(student.model)(), "distillation_rows": student.learned_rows.distillation}
        features = {} if request.arm is None else spec.arms[request.arm].features
        by_seed = request.twin is not None or student.negative_rate or workspace.has_seeds(request.condition)
        return cls(
            student.model_copy(update=without_model).model_dump_json(),
            request.condition,
            request.twin,
            json.dumps(features, sort_keys=True),
            request.seed if by_seed else spec.all_seeds[0],
        )


@lru_cache(maxsize=1)
def shared_data(workspace: Workspace, tuning: bool, key: BatchKey) -> tuple[Data, int]:
    """The batches of a key, and the number of rows of the whole stream."""
    student, condition = StudentSettings.model_validate_json(key.settings), key.condition
    run_dir, folder = workspace.run_dir, workspace.folder
    stream = stream_of(workspace, key.seed, condition, student, key.twin)
    some = stream.first(round(workspace.spec.chosen_on[1] * stream.num_rows)) if tuning else stream
    data = data_of(
        some,
        with_features(workspace.of(key.seed), json.loads(key.features), student.name),
        student,
        condition.start,
        after=learned_upto(student, run_dir, folder),
        knows=known_upto(student, run_dir),
        late_s=condition.late_s,
        logged=workspace.rows(key.seed),
        folder=folder,
    )
    return data, stream.num_rows


def _increments(add_done: AddDone) -> AddDone:
    """From how many are done, how many more."""
    done = 0

    def advance(now: int) -> None:
        nonlocal done
        add_done(now - done)
        done = now

    return advance
