"""Targets of a batch: the teacher's logits after correction, and the rows that count.

B examples, T tasks.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Targets(NamedTuple):
    """The teacher's targets for one batch, after correction. No gradient; undefined where the teacher mask is False.

    teacher_logits   (B, T), z_F
    adapted          (B, T), the logits SA of the student adapter
    factors          (T,) in [0, 1], on the weight of the distillation term
    adapted_factors  (T,) in [0, 1], on the adapter's term
    """

    teacher_logits: Tensor
    adapted: Tensor | None = None
    factors: Tensor | None = None
    adapted_factors: Tensor | None = None


class RowMasks(NamedTuple):
    """Masks and weights of a batch's rows. A part that is None means that all rows do, alike.

    label_mask     (B, T) bool, where the label is known
    teacher_mask   (B, T) bool, where there is a teacher logit
    weights        (B,), sample weights
    negative_rate  (T,), the share of the rows with label 0 that was kept (exfm/features/sampling.py)
    cold           (B,) bool, rows of a schedule on which the serving head learns from the teacher
    label_rows         (B,) bool, rows whose labels are learned
    distillation_rows  (B,) bool, rows whose teacher logits are
    """

    label_mask: Tensor | None = None
    teacher_mask: Tensor | None = None
    weights: Tensor | None = None
    negative_rate: Tensor | None = None
    cold: Tensor | None = None
    label_rows: Tensor | None = None
    distillation_rows: Tensor | None = None
