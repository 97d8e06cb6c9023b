"""Engines: what learns, apart from what feeds it and what keeps it.

    batch ──► step ──► Judged: what every model of the engine predicted before it learned the batch

A live worker is an engine with a feed and a keeper (pipelines/workers); a sweep, a scaling family and a replay are an
engine and a feed. All of them learn through `step`, so the same batches give the same bits, whoever runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from exfm.data import Batch, FeatureSet
from exfm.models.student import Student, StudentConfig
from exfm.models.teacher import SentBatch, Teacher
from exfm.step import StepResult
from exfm.tensors import TensorPieces, TensorSource

S = TypeVar("S")
Watch = Callable[[str], AbstractContextManager[None]]

STUDENT, TWIN, TEACHER = "student", "no_teacher", "teacher"
"""The models of engines, by the names that their states, counts and figures carry."""


class Judged(NamedTuple):
    """One step: its result by model. The logits of each result were made before the model learned the batch."""

    results: Mapping[str, StepResult]

    @property
    def logits(self) -> np.ndarray:
        """(B, T) float32 of the engine's first model: the teacher's, or the student's."""
        return self._first.logits

    @property
    def finite_rows(self) -> int:
        """Rows that the engine's first model learned: all of the batch, or none where the step was not finite."""
        return len(self._first.logits) if self._first.finite else 0

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
    """A student and, with `twin`, a copy of it that learns the same batches without the teacher.

    The state holds the student's tensors as `student/…` and the twin's as `no_teacher/…`.
    """

    def __init__(
        self,
        cfg: StudentConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int,
        *,
        twin: bool = False,
        identity: str = "",
        watch: Watch = lambda phase: nullcontext(),
    ) -> None:
        """`watch` times the phases `train` and `train twin`. Raises ConfigError as `Student` does."""
        self.identity, self._watch = identity, watch
        self.models = {STUDENT: Student(cfg, features, tasks, seed)}
        if twin:
            self.models[TWIN] = Student(cfg.without_teacher(), features, tasks, seed)

    @property
    def student(self) -> Student:
        return self.models[STUDENT]

    @property
    def twin(self) -> Student | None:
        return self.models.get(TWIN)

    @property
    def random_states(self) -> dict[str, Tensor]:
        """The generators' states, by their names in `state`. A new engine's are those of its seed."""
        return {f"{name}/rng": model.random.state for name, model in self.models.items()}

    def step(self, batch: Batch) -> Judged:
        results = {}
        for name, model in self.models.items():
            with self._watch("train" if name == STUDENT else "train twin"):
                results[name] = model.train_step(batch)
        return Judged(results)

    def score(self, batch: Batch) -> np.ndarray:
        """The student's logits (B, T) float32, without learning."""
        return self.student.score(batch)

    def state(self) -> dict[str, Tensor]:
        return {f"{name}/{key}": tensor for name, model in self.models.items() for key, tensor in model.state().items()}

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        for name, model in self.models.items():
            model.load_state(under(name, tensors))

    @property
    def trained_rows(self) -> dict[str, int]:
        """Rows of finite steps, by model."""
        return {name: model.rows for name, model in self.models.items()}


class TeacherEngine:
    """A teacher; on one of several ranks, this rank's part of it, and every method is a collective."""

    def __init__(self, teacher: Teacher, *, identity: str = "") -> None:
        self.identity, self.teacher = identity, teacher

    @property
    def random_states(self) -> dict[str, Tensor]:
        return {"rng": self.teacher.random.state}

    def prepare(self, batch: Batch) -> SentBatch:
        """Send the batch's ids ahead of its step, so that they travel while another step computes."""
        return self.teacher.prepare(batch)

    def step(self, batch: Batch | SentBatch) -> Judged:
        return Judged({TEACHER: self.teacher.train_step(batch)})

    def state(self) -> dict[str, Tensor | TensorPieces]:
        return self.teacher.state()

    def snapshot(self) -> dict[str, Tensor | TensorPieces]:
        """Copies of what scoring needs."""
        return self.teacher.snapshot()

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        self.teacher.load_state(tensors)

    def close(self) -> None:
        self.teacher.close()


def under(name: str, tensors: Mapping[str, S]) -> dict[str, S]:
    """The tensors called `<name>/…`, without that prefix."""
    return {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}
