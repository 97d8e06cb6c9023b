"""Live figures of one model, per task, by progressive validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from exfm.features.batch import Batch
from exfm.metrics.progressive import Progressive
from exfm.snapshots.windows import TensorSource, whole_tensor
from exfm.step import StepResult

FIGURES = "metrics"
"""The beginning of the names of these figures' tensors in a checkpoint."""

WINDOW_ROWS = 20_000
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
    """One `Progressive` per task; its state travels in checkpoints as tensors `metrics/<task>/<key>`."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tuple(tasks)
        self._progress = {task: Progressive(WINDOW_ROWS) for task in tasks}
        self._weights: dict[str, tuple[float, float, int]] = {}

    def judge(self, batch: Batch, result: StepResult) -> None:
        """Count the logits that a step predicted before learning."""
        self.count(result.logits, batch.labels.numpy(), batch.label_mask.numpy(), batch.label_weights.numpy())

    def count(self, logits: np.ndarray, labels: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> None:
        """Count a step's rows, all (B, T)."""
        for index, task in enumerate(self._tasks):
            labelled = mask[:, index]
            if labelled.any():
                self._progress[task].update(logits[labelled, index], labels[labelled, index], weights[labelled, index])
                self._weigh(task, weights[labelled, index])

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
