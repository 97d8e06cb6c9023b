"""Students of a teacher that is wrong everywhere."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from exfm.distillation.arm import Arm
from exfm.features.batch import Batch, BatchBuilder
from exfm.metrics.classification import normalised_entropy, sigmoid
from exfm.models.student import Student
from exfm.models.teacher import Teacher
from pipelines.core.config.settings import Config
from pipelines.lab.rows import rows_of

ARMS = {
    **{f"single head, w = {w:g}": Arm(kind="single_head", weight=w) for w in (0.5, 1, 2)},
    **{f"auxiliary head, w = {w:g}": Arm(kind="auxiliary_head", weight=w) for w in (1, 2)},
    **{f"AH + SA, w = {w:g}": Arm(kind="auxiliary_head", adapter=True, weight=w) for w in (1, 2)},
    "Platt + single head, w = 1": Arm(kind="single_head", recalibration="platt"),
    "Platt + auxiliary head, w = 1": Arm(kind="auxiliary_head", recalibration="platt"),
}


RATES = {"dense_lr": 0.004, "sparse_lr": 0.24}
"""At these a student of so short a stream is calibrated in its second half; at the demo's it is not yet."""


WRONG = {"as logged": (1.0, 0.0), "+ 1": (1.0, 1.0), "1.5·logit − 1": (1.5, -1.0)}
"""What is done to the teacher's logits: times, plus."""


class Judged(NamedTuple):
    """One seed's clicks, on the rows of the second half: of the twin, of one from another seed, and of every arm under
    every kind of logits."""

    labels: np.ndarray  # (N,)
    twin: np.ndarray  # (N,) logits
    another: np.ndarray  # (N,) logits
    arms: dict[tuple[str, str], np.ndarray]  # by arm and kind of logits, (N,) logits

    @property
    def positives(self) -> int:
        return int(self.labels.sum())

    def ratio(self, arm: str, wrong: str) -> float:
        """Σ predictions over Σ predictions of the twin."""
        return float(sigmoid(self.arms[arm, wrong]).sum() / sigmoid(self.twin).sum())

    def gain(self, arm: str, wrong: str) -> float:
        """In percent of the twin's NE."""
        of_arm, of_twin = (normalised_entropy(z, self.labels) for z in (self.arms[arm, wrong], self.twin))
        assert of_arm is not None
        assert of_twin is not None
        return 100 * (1 - of_arm / of_twin)


def logged(config: Config, seed: int) -> list[Batch]:
    """The stream in a student's batches, with the logits that a teacher gave each row before it learned it."""
    teacher = Teacher(config.teacher.model, config.features, config.tasks, seed)
    build = BatchBuilder(config.features, config.tasks)
    with tempfile.TemporaryDirectory() as folder:
        table = rows_of(config, Path(folder), limit=None, run_dir=None, advance=lambda n: None).table
        steps = range(0, table.num_rows, config.teacher.batch_rows)
        given = [teacher.train_step(build(table.slice(start, config.teacher.batch_rows))).logits for start in steps]
        teacher.close()
        logits = np.concatenate(given)
        for t, task in enumerate(config.tasks):
            table = table.append_column(f"teacher_logit_{task}", pa.array(logits[:, t]))
        settings = config.students[0]
        of_student = BatchBuilder(config.student_features(settings), config.tasks)
        size = settings.batch_rows
        return [of_student(table.slice(start, size)) for start in range(0, table.num_rows, size)]


def judged(config: Config, batches: Sequence[Batch], seed: int, arms: Mapping[str, Arm] = ARMS) -> Judged:
    """A twin, and every arm under every kind of logits, over the same batches."""
    settings = config.students[0]
    features = config.student_features(settings)

    def clicks(arm: Arm, times: float = 1.0, plus: float = 0.0, seed: int = seed) -> np.ndarray:
        student = Student(settings.model.model_copy(update={"arm": arm, **RATES}), features, config.tasks, seed)
        z = [student.train_step(replace(b, teacher_logits=times * b.teacher_logits + plus)).logits for b in batches]
        return np.concatenate(z)[counted, 0]

    known = torch.cat([batch.label_mask[:, 0] for batch in batches]).numpy()
    counted = known & (np.arange(len(known)) >= len(known) // 2)
    return Judged(
        labels=torch.cat([batch.labels[:, 0] for batch in batches]).numpy()[counted],
        twin=clicks(Arm(kind="none")),
        another=clicks(Arm(kind="none"), seed=seed + 1000),
        arms={(name, wrong): clicks(arm, *WRONG[wrong]) for name, arm in arms.items() for wrong in WRONG},
    )
