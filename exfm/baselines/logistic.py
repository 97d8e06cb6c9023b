"""Logistic regression over hashed ids and crosses, by FTRL-proximal (ftrl.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from exfm.baselines.baseline import Baseline
from exfm.baselines.ftrl import FTRL
from exfm.baselines.prior import label_sums
from exfm.features.as_served import AsServed
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.statistics import Statistics
from exfm.step import StepResult


class Logistic(Baseline):
    """A logistic regression in training, over the features that a student reads; it has no histories.

    State: ftrl/{s,n,modulus}  prior/{positive,negative}  statistics/<name>/{total,counts}  progress/rows
    """

    def __init__(self, features: FeatureSet, tasks: Sequence[str]) -> None:
        super().__init__(tasks)
        self.ftrl, self._statistics = FTRL(features, len(tasks)), Statistics(features)
        self._as_served = AsServed(features) if features.train_only else None

    def forget(self, table: str, ids: Tensor) -> None:
        self.ftrl.forget(table, ids)

    def train_step(self, given: Batch) -> StepResult:
        """Score the batch's own rows, then learn all of it. `loss` is not computed.

        Where an input or a weight is not finite nothing changes.
        """
        batch = self._statistics.complete(given)
        offset = self._prior.cached_offset
        scored = self.ftrl.see(batch)
        judged = scored
        if self._as_served is not None:
            judged = self.ftrl.see(self._statistics.complete(self._as_served(given)))
        logits = (judged.logits + offset).numpy()
        finite = bool(torch.isfinite(batch.weights).all() and torch.isfinite(batch.dense).all())
        if finite:
            self._prior.add(label_sums(batch))
            self.ftrl.learn(scored, batch, self._prior.cached_offset)
            self._statistics.add(self._statistics.sums(given))
            self._rows += len(batch)
        own = logits if batch.own is None else logits[batch.own.numpy()]
        return StepResult(own, 0.0, batch.label_mask.sum(0).numpy(), finite)

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) of the batch as served, without learning."""
        served = batch if self._as_served is None else self._as_served(batch)
        return (self.ftrl.see(self._statistics.complete(served)).logits + self._prior.cached_offset).numpy()

    def tensors(self) -> dict[str, Tensor]:
        own = {f"ftrl/{name}": tensor for name, tensor in self.ftrl.tensors().items()}
        return own | self._statistics.tensors() | super().tensors()
