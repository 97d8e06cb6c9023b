"""Stacking of two logits, online: a network's, and that of a linear model of the same rows (a stacked generalisation).

    z = o + θ_d·(deep − o) + θ_w·(wide − o) + θ_0            per task; o is the prior's offset (prior.py)

θ is a logistic regression on labels (exfm/distillation/regression.py), judged before it is learned like the logits that
it weighs. A network that has seen few rows says much that is noise, and a linear model (FTRL) is soon as good as
it will ever be: θ follows whichever is right, so the stacked logit is about as good as the better of the two from the
first thousand rows on, and better than both where they differ; with fewer than some hundred positives it may be 1 to
2 % behind over a tenth of a stream. It starts near the linear model's logit, which is right with fewer positives.

It is what calibrates a served model, too: scale and intercept, learned after the network and outside its gradient. So
a row counts half after 20,000 rows (with 200,000, clicks lose .05 to .9 %: docs/results/calibration.md).

B examples, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from exfm.distillation.regression import RegressionSettings, initial, learned
from exfm.features.batch import Batch
from exfm.features.sampling import label_shift
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorSource

TERMS = RegressionSettings(
    start=(0.1, 0.9, 0.0),
    least=(0.0, 0.0, -3.0),
    largest=(2.0, 2.0, 3.0),
    half_life_rows=20_000,
    least_spread=0.0,
)


class Stack:
    """Weights θ of T tasks, and the statistics from which they are learned.

    >>> import torch
    >>> stack, offset = Stack(1), torch.zeros(1)
    >>> stack(offset, deep=torch.tensor([[1.0]]), wide=torch.tensor([[3.0]])).round(decimals=2)
    tensor([[2.8000]])
    """

    def __init__(self, tasks: int) -> None:
        self._regression = initial(TERMS, tasks)

    def __call__(self, offset: Tensor, deep: Tensor, wide: Tensor) -> Tensor:
        """The stacked logits (B, T), from the offset (T,) and the two logits (B, T), which have it in them."""
        return stacked(self._regression.theta, offset, deep, wide)

    def learn(
        self,
        offset: Tensor,
        deep: Tensor,
        wide: Tensor,
        batch: Batch,
        counted: Tensor,
        total: Callable[[Tensor], Tensor] = lambda sums: sums,
    ) -> None:
        """Learn a batch's own rows on the CPU, from the offset and logits of the whole batch on any device.
        `counted`: the offset of a prior that has counted the batch; with the one before it, θ_0 would learn in the
        first batches what the prior is about to say, and then be wrong by as much. `total` sums over ranks. Nothing
        changes where the result is not finite."""
        o, shift = offset.cpu(), counted.cpu()
        own = batch.label_mask if batch.own is None else batch.label_mask & batch.own.unsqueeze(1)
        known, labels, weights = (t.cpu() for t in (own, batch.labels, batch.weights))
        x = torch.stack([deep.cpu() - o, wide.cpu() - o], dim=1)
        if batch.negative_rate is not None:
            shift = shift + label_shift(batch.negative_rate)
        regression = learned(self._regression, TERMS, x, labels, known, weights, shift, total)
        if all(np.isfinite(tensor.numpy()).all() for tensor in regression):
            self._regression = regression

    @property
    def theta(self) -> Tensor:
        """(T, 3) float64: θ_d, θ_w, θ_0."""
        return self._regression.theta

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, as `stack/…`."""
        return {f"stack/{name}": tensor for name, tensor in self._regression._asdict().items()}

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        """Load a state. Raises ModelError where it is of other tasks."""
        copy_tensors(self.tensors(), {name: tensors[name] for name in self.tensors()})


def stacked(theta: Tensor, offset: Tensor, deep: Tensor, wide: Tensor) -> Tensor:
    """Stacked logits (B, T) on the device and in the type of `deep`; theta (T, 3), offset (T,)."""
    theta_d, theta_w, theta_0 = theta.to(deep).unbind(1)
    o = offset.to(deep)
    return o + theta_d * (deep - o) + theta_w * (wide.to(deep) - o) + theta_0
