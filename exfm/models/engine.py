"""Training engines: models that learn batch by batch, independent of feeds and checkpoints.

    batch ──► step ──► Judged: what every model of the engine predicted before it learned the batch

A student's batch may hold rows of other verticals, to learn from (exfm/features/learned_rows.py); they are not judged.
Rows that spoil a model's step are left out of it (bad_rows.py), each model's own; the others are learned.

A live worker is an engine with a feed and a keeper (pipelines/live/workers); a sweep, a scaling family and a replay are
an engine and a feed. All of them learn through `step`, so the same batches give the same bits, whoever runs them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from exfm.baselines.baseline import Baseline
from exfm.baselines.constant import Constant
from exfm.baselines.logistic import Logistic
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.learned_rows import LearnedRows
from exfm.models.bad_rows import learn_good_rows, rows_of, spoiled_inputs, spread
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.parallel.parts import WHOLE, BatchParts
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.named import under
from exfm.snapshots.windows import TensorPieces, TensorSource
from exfm.step import StepResult

if TYPE_CHECKING:
    from exfm.models.teacher import SentBatch, Teacher  # which trains with all of TorchRec

Watch = Callable[[str], AbstractContextManager[None]]
State = Mapping[str, TensorSource]

STUDENT, TWIN, TEACHER = "student", "no_teacher", "teacher"
LOGISTIC, RATE = "ftrl", "constant"
"""The models of engines, by the names that their states, counts and figures carry."""


class Judged(NamedTuple):
    """One step: its result by model. The logits of each result were made before the model learned the batch."""

    results: Mapping[str, StepResult]

    @property
    def logits(self) -> np.ndarray:
        """(B, T) float32 of the engine's first model: the teacher's, or the student's on its own rows."""
        return self._first.logits

    @property
    def finite_rows(self) -> int:
        """Rows that the engine's first model was scored on and learned."""
        return self._first.finite_rows

    @property
    def _first(self) -> StepResult:
        return next(iter(self.results.values()))


class Engine(Protocol):
    """A model, or a student with its twin, that learns batch by batch."""

    identity: str
    """Names everything that decides what the engine computes. A state belongs to engines of the same identity."""

    def step(self, batch: Batch) -> Judged:
        """Score a batch with every model, then learn it."""

    def state(self) -> Mapping[str, Tensor | TensorPieces]:
        """Copies of everything that the next step depends on."""

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        """Resume from a state. Raises ModelError where it belongs to another engine."""


class StudentEngine:
    """A student and, with `twin`, a copy of it that learns the same batches without the teacher; with `baselines`, a
    logistic regression and the label rate so far (exfm/baselines), which learn the rows whose labels it learns. The
    regression is the student's own linear part, where it has one.

    The state holds the student's tensors as `student/…`, the twin's as `no_teacher/…`, the baselines' as `ftrl/…` and
    `constant/…`.
    """

    def __init__(
        self,
        cfg: StudentConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int,
        *,
        twin: bool = False,
        baselines: bool = False,
        learned_rows: LearnedRows = LearnedRows(),
        full_batch: int | None = None,
        parts: BatchParts = WHOLE,
        identity: str = "",
        watch: Watch = lambda phase: nullcontext(),
    ) -> None:
        """`watch` times the phases `train`, `train twin` and `baselines`; `parts` are those of `Student`. Raises
        ConfigError as it does."""
        self.identity, self._watch = identity, watch
        self.models = {STUDENT: Student(cfg, features, tasks, seed, learned_rows, full_batch=full_batch, parts=parts)}
        if twin:
            alone = cfg.without_teacher()
            self.models[TWIN] = Student(alone, features, tasks, seed, learned_rows, full_batch=full_batch, parts=parts)
        self.baselines: dict[str, Baseline] = {}
        if baselines and not cfg.wide:
            self.baselines[LOGISTIC] = Logistic(features, tasks)
        if baselines:
            self.baselines[RATE] = Constant(tasks)
        self._labels_alone = learned_rows.without_teacher

    @property
    def student(self) -> Student:
        return self.models[STUDENT]

    @property
    def twin(self) -> Student | None:
        return self.models.get(TWIN)

    @property
    def names(self) -> list[str]:
        """Names of the models that a step scores. A student's linear part is the logistic regression among its
        baselines."""
        linear = [LOGISTIC] if RATE in self.baselines and self.student.wide is not None else []
        return [*self.models, *linear, *self.baselines]

    def step(self, batch: Batch) -> Judged:
        spoiled = spoiled_inputs(batch)
        if spoiled is None:
            return self._step(batch)
        if spoiled.all():
            return self._nothing(batch, spoiled)
        judged = self._step(rows_of(batch, spoiled == 0))
        return Judged({name: spread(result, batch, spoiled) for name, result in judged.results.items()})

    def _step(self, batch: Batch) -> Judged:
        results = {}
        for name, model in self.models.items():
            with self._watch("train" if name == STUDENT else "train twin"):
                result = model.train_step(batch)
                results[name] = result if result.finite else learn_good_rows(model, batch, result)
        if LOGISTIC in self.names and (wide := results[STUDENT].wide) is not None:
            results[LOGISTIC] = results[STUDENT]._replace(logits=wide, loss=0.0)
        if self.baselines:
            with self._watch("baselines"):
                labelled = self._labels_alone.of(batch)
                results |= {name: baseline.train_step(labelled) for name, baseline in self.baselines.items()}
        return Judged(results)

    def _nothing(self, batch: Batch, spoiled: np.ndarray) -> Judged:
        """Result of a batch without learnable rows."""
        T = len(self.student.tasks)
        logits = np.full((len(batch.own_rows), T), np.nan, np.float32)
        result = StepResult(logits, float("nan"), np.zeros(T, np.int64), finite=False, left_out=spoiled)
        return Judged(dict.fromkeys(self.names, result))

    def score(self, batch: Batch) -> np.ndarray:
        """The student's logits (B, T) float32, without learning."""
        return self.student.score(batch)

    def state(self) -> dict[str, Tensor]:
        states = {name: model.state() for name, model in (self.models | self.baselines).items()}
        return {f"{name}/{key}": tensor for name, state in states.items() for key, tensor in state.items()}

    def load(
        self, tensors: Mapping[str, TensorSource], fitted: Callable[[State], State] = lambda tensors: tensors
    ) -> None:
        """Load a state; `fitted` converts one of other sizes."""
        for name, model in self.models.items():
            model.load_state(fitted(under(name, tensors)))
        for name, baseline in self.baselines.items():
            baseline.load_state(under(name, tensors))

    def start_from(self, tensors: Mapping[str, TensorSource], warm: Callable[[State, State], State]) -> None:
        """Begin with the weights of another engine's state: `warm` makes a model's state of its fresh one and the
        other's. A twin begins with the other's twin, or where there is none with its student, as the student does."""
        for name, model in self.models.items():
            model.load_state(warm(model.state(), under(name, tensors) or under(STUDENT, tensors)))

    def forget(self, table: str, ids: Tensor) -> None:
        for model in self.models.values():
            model.forget(table, ids)
        for baseline in self.baselines.values():
            baseline.forget(table, ids)

    def checksum(self) -> int:
        """Checksum of the states of student and twin: the same on all ranks that hold them alike."""
        tensors = (of for model in self.models.values() for of in model.tensors().values())
        return reduce(lambda crc, of: zlib.crc32(of.detach().reshape(-1).numpy().view(np.uint8).data, crc), tensors, 0)

    @property
    def trained_rows(self) -> dict[str, int]:
        """Rows of finite steps, by model."""
        models = self.models | {LOGISTIC: self.student} | self.baselines
        return {name: models[name].rows for name in self.names}


class RegressionEngine:
    """A logistic regression by itself, over the rows whose labels a student learns: a student's baseline."""

    def __init__(self, features: FeatureSet, tasks: Sequence[str], learned_rows: LearnedRows = LearnedRows()) -> None:
        self.model, self._labels_alone = Logistic(features, tasks), learned_rows.without_teacher

    def step(self, batch: Batch) -> Judged:
        """Score a batch, then learn it without the rows whose inputs are too large."""
        spoiled = spoiled_inputs(batch)
        good = batch if spoiled is None else rows_of(batch, spoiled == 0)
        result = self.model.train_step(self._labels_alone.of(good))
        return Judged({LOGISTIC: result if spoiled is None else spread(result, batch, spoiled)})

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T), without learning."""
        return self.model.score(batch)


class PreparedBatch(NamedTuple):
    """A teacher's batch in flight: the part sent of the `whole`, and the rows `spoiled` beforehand."""

    sent: SentBatch
    whole: Batch
    spoiled: np.ndarray | None


class TeacherEngine:
    """A teacher; on one of several ranks, this rank's part of it, and every method is a collective."""

    def __init__(self, teacher: Teacher, *, identity: str = "") -> None:
        self.identity, self.teacher = identity, teacher

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Send the batch's ids ahead of its step, so that they travel while another step computes."""
        spoiled = spoiled_inputs(batch)
        part = batch if spoiled is None else rows_of(batch, spoiled == 0)
        return PreparedBatch(self.teacher.prepare(part, len(batch) - len(part)), batch, spoiled)

    def step(self, batch: Batch | PreparedBatch) -> Judged:
        sent, whole, spoiled = batch if isinstance(batch, PreparedBatch) else self.prepare(batch)
        result = self.teacher.train_step(sent)
        if not result.finite:
            result = learn_good_rows(self.teacher, sent.batch, result, self.teacher.group)
        return Judged({TEACHER: spread(result, whole, spoiled)})

    def state(self) -> dict[str, Tensor | TensorPieces]:
        return self.teacher.state()

    def changes(self, since: int) -> dict[str, Tensor | TensorPieces | ChangedRows]:
        """`state`, but of tables only the rows that changed since this time, where that is tracked."""
        return self.teacher.changes(since)

    def tick(self) -> int:
        """Begin another time, and return it: rows learned from now on changed since."""
        return self.teacher.tick()

    def forget(self, table: str, ids: Tensor) -> None:
        self.teacher.forget(table, ids)

    def snapshot(self) -> dict[str, Tensor | TensorPieces]:
        """Copies of the tensors that scoring needs."""
        return self.teacher.snapshot()

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        self.teacher.load_state(tensors)

    def close(self) -> None:
        self.teacher.close()
