"""Negative downsampling: train on all rows with label 1 and a share of those with label 0, with calibrated predictions
for all traffic.

r the share kept, z_S serving logit, h(z, y) binary cross-entropy. Which rows are kept depends on their labels alone
(and on a hash of their id), so among rows that look alike, whatever it is that a model sees of them,

    P(y = 1 | kept) / P(y = 0 | kept) = P(y = 1) / (r · P(y = 0)):      the logit among kept rows is higher by −log r

**Labels.** L = h(z_S − log r, y) over the kept rows: its optimum is a z_S that holds for all traffic. There is nothing
to correct at serving, where z_S is taken as it is. So it is with all else that learns from labels (student adapter).

**Distillation** has nothing to shift: its target p_F is a function of the row and no draw, the same whether the row is
kept or not. But kept rows are not those of the traffic: P(kept) = p + r·(1 − p) grows with a row's own p. A student
that sees less than its teacher learns p_F's mean over rows that it cannot tell apart, and over kept rows that mean is
too high. So a kept row with label 0 counts 1/r, for itself and those left out: Σ over kept rows of h / P(kept | y) has
the mean of Σ h over all rows. The figures of a sampled stream are estimated alike.

**Several tasks.** Each samples by its own labels, with the same hash. A row whose label one task gives up stays for the
others, without that label; it is left out once no label is left. So no task learns from rows that another one chose,
and no label needs a weight for another's sampling. Distillation of rows without the task's label (an arm's `rows: all`)
counts a row 1 over the largest share by which one of its labels kept it: that of the row itself.

B examples, T tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pyarrow as pa


def label_shift(negative_rate: Tensor) -> Tensor:
    """Shift −log r from a logit on all traffic to a logit on the sampled rows. Any shape.

    >>> label_shift(torch.tensor([0.25, 1.0]))
    tensor([1.3863, -0.0000])
    """
    return -torch.log(negative_rate)


def label_weights(weights: Tensor, labels: Tensor, mask: Tensor, negative_rate: Tensor) -> Tensor:
    """Weight of each label among all traffic, (B, T): the row's weight (B,), over r for a sampled 0.

    >>> label_weights(torch.ones(3), torch.tensor([[0.0], [1.0], [0.0]]), torch.tensor([[True], [True], [False]]),
    ...               torch.tensor([0.25])).flatten()
    tensor([4., 1., 1.])
    """
    return weights.unsqueeze(1) / torch.where(mask & (labels == 0), negative_rate, 1.0)


def row_weights(weights: Tensor, labels: Tensor, mask: Tensor, negative_rate: Tensor) -> Tensor:
    """Weight of each row among all traffic, (B, 1), whichever of its labels put it in the sample.

    >>> row_weights(torch.ones(2), torch.zeros(2, 2), torch.tensor([[True, True], [True, False]]),
    ...             torch.tensor([0.25, 0.5])).flatten()
    tensor([2., 4.])
    """
    share = torch.where(mask, torch.where(labels == 0, negative_rate, 1.0), 0.0).amax(1)
    return (weights / torch.where(mask.any(1), share, 1.0)).unsqueeze(1)


class SampledRows(NamedTuple):
    """Result of sampling; `kept`: the sampled rows, in order. `lost`: those that lost a label, with the labels lost
    and no others; `gone` says which of them are left out altogether."""

    kept: pa.Table
    lost: pa.Table
    gone: np.ndarray


def sample_negatives(
    rows: pa.Table, tasks: Sequence[str], negative_rate: Mapping[str, float], seed: int
) -> SampledRows:
    """Sample the rows with label 0 of each task at its `negative_rate`; rows of other tasks stay.

    Reads `impression_id` and `label_<task>`. Which rows are kept is a function of their id, their labels and the seed.

    >>> import pyarrow as pa
    >>> rows = pa.table({"impression_id": range(1000), "label_ctr": pa.array([1] + 999 * [0], pa.int8())})
    >>> sampled = sample_negatives(rows, ["ctr"], {"ctr": 0.25}, seed=1)
    >>> sampled.kept.num_rows, sampled.kept["label_ctr"].to_pylist().count(1), int(sampled.gone.sum())
    (214, 1, 786)
    """
    import pyarrow as pa  # here: the losses above need torch alone
    import pyarrow.compute as pc

    from exfm.features.transforms import hash64

    lost = np.zeros(rows.num_rows, dtype=bool)
    left = np.zeros(rows.num_rows, dtype=bool)
    sampled, lost_labels = rows, rows
    u = uniform(hash64(rows["impression_id"].combine_chunks()), seed)
    for task in tasks:
        name = f"label_{task}"
        label = rows[name]
        drop = pc.equal(label, 0).fill_null(False).to_numpy() & (u >= negative_rate.get(task, 1.0))
        lost |= drop
        left |= label.is_valid().to_numpy() & ~drop
        place, nothing = rows.schema.get_field_index(name), pa.scalar(None, label.type)
        sampled = sampled.set_column(place, name, pc.if_else(pa.array(drop), nothing, label))
        lost_labels = lost_labels.set_column(place, name, pc.if_else(pa.array(drop), label, nothing))
    gone = lost & ~left
    return SampledRows(sampled.filter(pa.array(~gone)), lost_labels.filter(pa.array(lost)), gone[lost])


def uniform(hashes: np.ndarray, seed: int) -> np.ndarray:
    """Hash to a uniform number: (N,) uint64 -> (N,) in [0, 1), practically independent of other uses of the hashes and
    of other seeds.

    >>> uniform(np.array([1, 2, 3], np.uint64), seed=1).round(3).tolist()
    [0.941, 0.841, 0.57]
    """
    key = int.from_bytes(hashlib.blake2b(f"{seed}/negatives".encode(), digest_size=8).digest(), "little")
    h = hashes.astype(np.uint64) ^ np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finaliser
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    return ((h ^ (h >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
