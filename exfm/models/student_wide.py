"""A student's linear part: FTRL over hashed ids and crosses (exfm/baselines/ftrl.py), and the stack on it (stack.py).

    wide = o + FTRL            z = stack(o, z_S, wide)            o: the prior's offset

The network learns as if there were no linear part: its losses are of z_S. (Taken into z_S as an offset, it would leave
the network the residuals alone, and a teacher's logits are no good target for those.) FTRL learns the rows whose labels
the student learns; the stack its own rows, for which it is served, and so it also sets right a network that other
verticals' rows have moved.

B examples, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from exfm.baselines.ftrl import FTRL, ScoredBatch, served_linear
from exfm.baselines.hashed_linear import HashedLinear, Hashing
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.models.stack import Stack, stacked

LINEAR = "wide.linear.weight"


class Stacked(NamedTuple):
    """A batch before its linear part is learned. `deep`, `wide`, `logits`: (B, T)."""

    batch: Batch
    offset: Tensor  # (T,)
    seen: ScoredBatch
    deep: Tensor
    wide: Tensor
    logits: Tensor


class StudentWide:
    """The linear part of a student in training, and the stack."""

    def __init__(self, features: FeatureSet, tasks: int) -> None:
        self._ftrl, self._stack = FTRL(features, tasks), Stack(tasks)

    def on(self, deep: Tensor, offset: Tensor, batch: Batch) -> Stacked:
        """Stack z_S (B, T) of a batch on the linear model of it; its rows are those whose labels are learned."""
        seen = self._ftrl.see(batch)
        wide = seen.logits + offset
        return Stacked(batch, offset, seen, deep, wide, self._stack(offset, deep, wide))

    def learn(self, of: Stacked, counted: Tensor) -> None:
        """Learn a stacked batch. `counted`: the offset (T,) of a prior that has counted the batch."""
        self._stack.learn(of.offset, of.deep, of.wide, of.batch, counted)
        self._ftrl.learn(of.seen, of.batch, counted)

    def forget(self, table: str, ids: Tensor) -> None:
        self._ftrl.forget(table, ids)

    @property
    def theta(self) -> Tensor:
        """(T, 3) float64, of the stack."""
        return self._stack.theta

    @property
    def hashing(self) -> Hashing:
        return self._ftrl.hashing

    def marked(self) -> np.ndarray:
        """Marks of learned slots, like `FTRL.marked`."""
        return self._ftrl.marked()

    def weights(self, slots: np.ndarray | None = None) -> Tensor:
        """Weights (T, U) that `ServedWide` serves, of these slots or of all."""
        return self._ftrl.weights(slots)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, as `wide/…` and `stack/…`."""
        return {f"wide/{name}": tensor for name, tensor in self._ftrl.tensors().items()} | self._stack.tensors()


class ServedWide(nn.Module):
    """Served linear part and stack: (T,) offset, (B, T) z_S, (B, T) of `linear`, of the same rows -> (B, T)."""

    theta: Tensor  # (T, 3) float64

    def __init__(self, features: FeatureSet, tasks: int) -> None:
        super().__init__()
        self.linear = HashedLinear(features, tasks)
        self.register_buffer("theta", Stack(tasks).theta.clone())

    @property
    def hashing(self) -> Hashing:
        return self.linear.hashing

    def forward(self, offset: Tensor, z_S: Tensor, linear: Tensor) -> Tensor:
        return stacked(self.theta, offset, z_S, linear + offset)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a student's linear part and stack from its state."""
        found = {name.removeprefix("wide/"): tensor for name, tensor in state.items() if name.startswith("wide/")}
        served_linear(self.linear, found)
        self.theta.copy_(state["stack/theta"])
