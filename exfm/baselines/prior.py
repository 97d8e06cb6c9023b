"""The prior of a model: the log-odds of the label rate so far, per task, added to all of its logits.

    n₁ = Σ w·y      n₀ = Σ w·(1 − y)        over past rows whose label is known
    z = z_net + log((n₁ + ½) / (n₀ + ½))

So heads learn what differs from the rate, and a model is calibrated after some hundred rows, whatever the rate. A bias
that starts at 0 takes −6, the log-odds of .2 %, in hundreds of steps, and is wrong all the way.

The offset in a step is that of the rows before it, so a row is judged before it is learned. No gradient goes through
it. The ½ is Jeffreys' prior of a rate: the offset is 0 before the first row, finite where all labels are equal, and
among smoothed log-odds the one of least bias, to the order of 1 / rows. Rows are counted for the whole life of a model:
what moves later is the heads' to learn, and a prior that forgot would move under them. A student counts its own rows,
which it is judged on, also where it learns from those of other verticals.

A weight w is what the row's label counts among all rows of the stream (exfm/features/sampling.py), in steps of 2⁻²⁰. So
sums are exact, up to 2³³, in any order: the prior does not depend on where batches are cut, nor on the number of ranks.

B examples, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from exfm.features.batch import Batch
from exfm.kernels.loops import loop
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorSource

STEPS = 2.0**20


def label_sums(batch: Batch) -> Tensor:
    """(2, T) float64: n₁ and n₀ of a batch's own rows.

    >>> import pyarrow as pa
    >>> from exfm.features.batch import BatchBuilder
    >>> from exfm.features.features import FeatureSet
    >>> from exfm.features.sparse import SparseFeature
    >>> build = BatchBuilder(FeatureSet(sparse=[SparseFeature(name="ad", rows=2)]), ["ctr"], {"ctr": 0.25})
    >>> label_sums(build(pa.table({"ad": [0, 1, 1], "label_ctr": pa.array([1, 0, None], pa.int8())}))).tolist()
    [[1.0], [4.0]]
    """
    if not batch.labels.is_cpu:
        return label_sums_anywhere(batch)
    own = _ALL if batch.own is None else batch.own.numpy()
    labelled, labels, weights = (t.numpy() for t in (batch.label_mask, batch.labels, batch.label_weights))
    sums = np.zeros((2, labels.shape[1]))
    _add_labels(labels, labelled, own, weights, sums)
    return torch.from_numpy(sums)


def label_sums_anywhere(batch: Batch) -> Tensor:
    """`label_sums` by torch's operators, for a batch on any device."""
    w = (batch.label_weights.double() * STEPS).round() / STEPS
    labelled = batch.label_mask if batch.own is None else batch.label_mask & batch.own.unsqueeze(1)
    w = torch.where(labelled, w, 0.0)
    positive = torch.where(batch.labels > 0, w, 0.0)
    return torch.stack([positive, w - positive]).sum(1)


_ALL = np.empty(0, bool)


@loop("void(f4[:, :], b1[:, :], b1[:], f4[:, :], f8[:, ::1])")
def _add_labels(labels_BT, known_BT, own_B, weights_BT, sums_2T):
    for b in range(len(labels_BT)):
        if len(own_B) and not own_B[b]:
            continue
        for t in range(labels_BT.shape[1]):
            if known_BT[b, t]:
                sums_2T[0 if labels_BT[b, t] > 0 else 1, t] += np.rint(np.float64(weights_BT[b, t]) * STEPS) / STEPS


class Prior(nn.Module):
    """(B, T) logits of a network -> (B, T) of the model.

    One that is off (`on` False) adds 0 and stays off, also as a part of a state: its sums are −∞, whatever is added.

    >>> prior = Prior(1)
    >>> prior.add(torch.tensor([[2.0], [998.0]], dtype=torch.float64))
    >>> prior(torch.zeros(1, 1)).sigmoid()
    tensor([[0.0025]])
    """

    positive: Tensor  # (T,) float64: n₁
    negative: Tensor  # (T,) float64: n₀

    def __init__(self, tasks: int, *, on: bool = True) -> None:
        super().__init__()
        for name, start in (sums_at_start if on else sums_switched_off)(tasks).items():
            self.register_buffer(name, start)

    def forward(self, z_BT: Tensor) -> Tensor:
        return z_BT + self.offset().to(z_BT.dtype)

    def offset(self) -> Tensor:
        """(T,) float64."""
        return _offset(self.positive, self.negative)

    @property
    def begun(self) -> Tensor:
        """(T,) bool: False for a task of which no label was counted; one that is off does not know."""
        return self.positive + self.negative != 0

    @property
    def cached_offset(self) -> Tensor:
        """The offset (T,) float32 of a prior on the CPU, computed once for all priors with the same counts. Shared:
        it is not written into."""
        return _cached_offset(self.positive.numpy().tobytes(), self.negative.numpy().tobytes())

    def add(self, sums: Sequence[Tensor] | Tensor) -> None:
        """Count the rows of one step more, by their `label_sums` (2, T), of all ranks."""
        self.positive.add_(sums[0])
        self.negative.add_(sums[1])

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, as `prior/…`."""
        return {f"prior/{name}": tensor for name, tensor in self.named_buffers()}

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        """Load the prior of a state or snapshot. Raises ModelError where it is of other tasks."""
        own = self.tensors()
        copy_tensors(own, {name: tensor for name, tensor in tensors.items() if name in own})


def _offset(positive: Tensor, negative: Tensor) -> Tensor:
    return torch.where(positive.isfinite(), torch.log((positive + 0.5) / (negative + 0.5)), 0.0)


@lru_cache(maxsize=64)
def _cached_offset(positive: bytes, negative: bytes) -> Tensor:
    with torch.inference_mode(False):  # or it could be used there alone
        return _offset(*(torch.from_numpy(np.frombuffer(sums).copy()) for sums in (positive, negative))).float()


def sums_at_start(tasks: int) -> dict[str, Tensor]:
    return {name: torch.zeros(tasks, dtype=torch.float64) for name in ("positive", "negative")}


def sums_switched_off(tasks: int) -> dict[str, Tensor]:
    return {name: start - torch.inf for name, start in sums_at_start(tasks).items()}
