"""Interface of the baselines: the label rate so far, the rows learned, and a state of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from exfm.baselines.prior import Prior
from exfm.features.batch import Batch
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorSource
from exfm.step import StepResult


class Baseline(ABC):
    """A simple model that learns batch by batch. State: prior/{positive,negative}  progress/rows, and its own."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._prior = Prior(len(tasks))
        self._rows = torch.zeros((), dtype=torch.int64)

    @abstractmethod
    def train_step(self, batch: Batch) -> StepResult:
        """Score the batch's own rows, then learn it."""

    def forget(self, table: str, ids: Tensor) -> None:  # noqa: B027 - most hold nothing of single ids
        """Reset what is known of ids (I,) of a table."""

    @property
    def rows(self) -> int:
        """Rows seen in steps that were finite."""
        return int(self._rows)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy: writing into it loads it."""
        return self._prior.tensors() | {"progress/rows": self._rows}

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that the next step depends on."""
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    def load_state(self, tensors: Mapping[str, TensorSource]) -> None:
        """Continue from a state. Raises ModelError, and changes nothing, where it is of other tasks or features."""
        copy_tensors(self.tensors(), tensors)
