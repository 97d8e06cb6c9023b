"""Live figures of one model, per task, by progressive validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from exfm.data import Batch
from exfm.metrics import Progressive
from exfm.step import StepResult

WINDOW_ROWS = 20_000


class TaskMetrics:
    """One `Progressive` per task; its state travels in checkpoints as tensors `<name>/<task>/<key>`."""

    def __init__(self, tasks: Sequence[str], name: str = "metrics") -> None:
        self._tasks, self._name = tuple(tasks), name
        self._progress = {task: Progressive(WINDOW_ROWS) for task in tasks}

    def judge(self, batch: Batch, result: StepResult) -> None:
        """Count the logits that a step made before it learned."""
        self.count(result.logits, batch.labels.numpy(), batch.label_mask.numpy(), batch.label_weights.numpy())

    def count(self, logits: np.ndarray, labels: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> None:
        """Count a step's rows, all (B, T)."""
        for index, task in enumerate(self._tasks):
            known = mask[:, index]
            if known.any():
                self._progress[task].update(logits[known, index], labels[known, index], weights[known, index])

    @property
    def ne(self) -> dict[str, float | None]:
        """NE of the last window, by task."""
        return {task: progress.window().ne for task, progress in self._progress.items()}

    def values(self) -> dict[str, float | None]:
        """Everything worth a line in MLflow."""
        found: dict[str, float | None] = {}
        for task, progress in self._progress.items():
            window = progress.window()
            found |= {f"ne_{task}": window.ne, f"auc_{task}": window.auc, f"calibration_{task}": window.calibration}
        return found

    def state(self) -> dict[str, Tensor]:
        return {
            f"{self._name}/{task}/{key}": torch.as_tensor(value)
            for task, progress in self._progress.items()
            for key, value in progress.state().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for task, progress in self._progress.items():
            prefix = f"{self._name}/{task}/"
            state = {k.removeprefix(prefix): v.numpy() for k, v in tensors.items() if k.startswith(prefix)}
            if state:  # a release before may have kept none of this name
                progress.load(state)
