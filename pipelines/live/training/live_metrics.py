"""Live figures of one model, per task, by progressive validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from exfm.features.batch import Batch
from exfm.metrics.progressive import Progressive
from exfm.models.engine import STUDENT, TWIN
from exfm.snapshots.windows import TensorSource, whole_tensor
from exfm.step import StepResult
from pipelines.live.training.judged_windows import WINDOW_ROWS, JudgedWindow, JudgedWindows
from pipelines.live.training.predictions import CHAMPION

FIGURES = "metrics"
"""The beginning of the names of these figures' tensors in a checkpoint."""

HEAVY = 0.1
"""The share of their weight above which one row among many is named."""
HEAVY_ROWS = 200
"""Of fewer rows it says nothing that one has much of their weight."""

S = TypeVar("S")


def without_figures(tensors: Mapping[str, S]) -> dict[str, S]:
    """The state of an engine in a checkpoint that holds live figures, too."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{FIGURES}/")}


def figures_in(tensors: Mapping[str, TensorSource]) -> dict[str, Tensor]:
    """The live figures in a checkpoint, which `TaskMetrics.load` takes."""
    return {name: whole_tensor(tensor) for name, tensor in tensors.items() if name.startswith(f"{FIGURES}/")}


class TaskMetrics:
    """One `Progressive` per task; its state travels in checkpoints as tensors `metrics/<task>/<key>`. `windows` judge
    other models on the same rows; they begin with the process."""

    def __init__(self, tasks: Sequence[str], model: str = STUDENT) -> None:
        self._tasks, self._model = tuple(tasks), model
        self._windows = {task: JudgedWindows() for task in tasks}
        self._progress = {task: Progressive(WINDOW_ROWS) for task in tasks}
        self._weights: dict[str, tuple[float, float, int]] = {}

    def judge(self, batch: Batch, results: Mapping[str, StepResult], champion: np.ndarray | None = None) -> None:
        """Count the logits that a step predicted before learning, by model; `champion`: (B, T), if it was asked."""
        others = {TWIN: results[TWIN].logits} if TWIN in results else {}
        others |= {} if champion is None else {CHAMPION: champion}
        labels, mask, weights = batch.labels.numpy(), batch.label_mask.numpy(), batch.label_weights.numpy()
        self.count(results[self._model].logits, labels, mask, weights, others)

    def count(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        mask: np.ndarray,
        weights: np.ndarray,
        others: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Count a step's rows, all (B, T). `others`: logits (B, T) of further models."""
        for index, task in enumerate(self._tasks):
            labelled = mask[:, index]
            if labelled.any():
                self._progress[task].update(logits[labelled, index], labels[labelled, index], weights[labelled, index])
                self._weigh(task, weights[labelled, index])
                logged = {self._model: logits, **(others or {})}
                trained = [z[:, index] for model, z in logged.items() if model != CHAMPION]
                scored = labelled & np.logical_and.reduce(np.isfinite(trained))
                predicted = {model: z[scored, index] for model, z in logged.items()}
                self._windows[task].add(predicted, labels[scored, index], weights[scored, index])

    def _weigh(self, task: str, weights: np.ndarray) -> None:
        """Keep the sum, the largest and the number of weights, of about a window since the process began."""
        total, largest, rows = self._weights.get(task, (0.0, 0.0, 0))
        if rows >= WINDOW_ROWS:
            total, largest, rows = 0.0, 0.0, 0
        total += float(weights.sum(dtype=np.float64))
        self._weights[task] = total, max(largest, float(weights.max())), rows + len(weights)

    @property
    def heavy(self) -> str | None:
        """Warning for people that a single row has more than a tenth of the recent weight; None otherwise.

        >>> metrics = TaskMetrics(["ctr"])
        >>> metrics.count(np.zeros((400, 1)), np.zeros((400, 1)), np.ones((400, 1), bool), np.ones((400, 1)))
        >>> metrics.heavy
        >>> metrics.count(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1), bool), np.full((1, 1), 600.0))
        >>> metrics.heavy
        'one row has 60 % of the sample_weight of the last 401 of ctr'
        """
        for task, (total, largest, rows) in self._weights.items():
            if rows >= HEAVY_ROWS and largest > HEAVY * total:
                return f"one row has {100 * largest / total:.0f} % of the sample_weight of the last {rows:,} of {task}"
        return None

    @property
    def ne(self) -> dict[str, float | None]:
        """NE of the last window, by task."""
        return {task: progress.window().ne for task, progress in self._progress.items()}

    @property
    def windows(self) -> dict[str, JudgedWindow]:
        """The last window of the models, by task."""
        return {task: windows.last() for task, windows in self._windows.items()}

    def values(self) -> dict[str, float | None]:
        """Metrics for MLflow."""
        figures: dict[str, float | None] = {}
        for task, progress in self._progress.items():
            window = progress.window()
            figures |= {f"ne_{task}": window.ne, f"auc_{task}": window.auc, f"calibration_{task}": window.calibration}
        return figures

    def state(self) -> dict[str, Tensor]:
        return {
            f"{FIGURES}/{task}/{key}": torch.as_tensor(value)
            for task, progress in self._progress.items()
            for key, value in progress.state().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for task, progress in self._progress.items():
            prefix = f"{FIGURES}/{task}/"
            state = {k.removeprefix(prefix): v.numpy() for k, v in tensors.items() if k.startswith(prefix)}
            progress.load(state)
