"""The terms of a student's loss and their derivatives by its logits, in one loop over a batch.

    h(z, y) = max(z, 0) − z·y + log(1 + e^−|z|)        ∂h/∂z = σ(z) − y

    label          h(z_S − log r, y)                    over label rows whose label is known
    distillation   f · h(z / τ, min(1, α·σ(z_F / τ)))   over distillation rows with a teacher logit; z is z_D, or z_S
    adapted        f' · h(z_D2, σ(SA))                  over the same rows
    single head    f · h(z_S / τ, σ(z_F / τ))           of these the cold ones

Each is a mean over rows for a task, and the means are summed over tasks: exfm/distillation/loss.py says of what, and
what a row counts. It is computed in double, whatever type logits have.

B examples, T tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.distillation.arm import Arm
from exfm.errors import ConfigError
from exfm.features.sampling import label_shift, label_weights, row_weights
from exfm.loops import inlined, loop


class Lesson(NamedTuple):
    """What the teacher says of one batch, after correction. No gradient; undefined where the teacher mask is False.

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
    """Which rows of a batch count, and how much. A part that is None means that all rows do, alike.

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


class Terms(NamedTuple):
    """The terms label, distillation, adapted and single head, before the weights that a loss gives them.

    values  (4,) float64
    slopes  (4, B, T), of each by its logit: z_S, z_D (z_S for an arm of a single head), z_D2, z_S
    rows    (3, T) int64: labelled, distilled, without a teacher though one was wanted
    """

    values: Tensor
    slopes: Tensor
    rows: Tensor


def terms_of(
    arm: Arm,
    labels: Tensor,
    lesson: Lesson,
    rows: RowMasks,
    z_S: Tensor,
    z_D: Tensor | None = None,
    z_D2: Tensor | None = None,
) -> Terms:
    """The terms of one batch's loss, in the memory of the CPU; what is given, as `objective` takes it, in that memory
    or another. Logits that an arm has no use for are left alone, and their slopes are 0.

    Raises ConfigError where the arm needs a logit that is not given.
    """
    z, adapted = (_needed(z_D, "z_D", arm) if arm.kind == "auxiliary_head" else z_S), None
    if arm.adapter:
        z_D2, adapted = _needed(z_D2, "z_D2", arm), _needed(lesson.adapted, "adapted", arm)
    shift = None if rows.negative_rate is None else label_shift(rows.negative_rate)
    logits = (z_S, z if arm.distils else None, z_D2 if arm.adapter else None, labels, lesson.teacher_logits, adapted)
    numbers = (rows.weights, shift, lesson.factors, lesson.adapted_factors)
    masks = (rows.label_rows, rows.distillation_rows, rows.cold)
    (B, T), dtype = z_S.shape, z_S.dtype if z_S.dtype == torch.float64 else torch.float32
    values, counted = np.zeros(4), np.zeros((3, T), np.int64)
    slopes = torch.zeros(4, B, T, dtype=dtype)
    _add_terms(
        *(_array(t, dtype, 2) for t in (*logits, _counts(arm, labels, rows))),
        *(_array(t, dtype, 1) for t in numbers),
        *(_array(t, torch.bool, 2) for t in (rows.label_mask, rows.teacher_mask)),
        *(_array(t, torch.bool, 1) for t in masks),
        arm.rows == "labelled",
        arm.label_scale,
        arm.temperature,
        values,
        slopes.numpy(),
        counted,
    )
    return Terms(torch.from_numpy(values), slopes, torch.from_numpy(counted))


def _counts(arm: Arm, labels: Tensor, rows: RowMasks) -> Tensor | None:
    """What each row counts in the distillation terms, (B, 1) or (B, T); None: 1."""
    if rows.negative_rate is None:
        return None if rows.weights is None else rows.weights.unsqueeze(1)
    weights = labels.new_ones(len(labels)) if rows.weights is None else rows.weights
    settled = torch.ones_like(labels, dtype=torch.bool) if rows.label_mask is None else rows.label_mask
    counted = label_weights if arm.rows == "labelled" else row_weights
    return counted(weights, labels, settled, rows.negative_rate)


def _needed(logits: Tensor | None, name: str, arm: Arm) -> Tensor:
    if logits is None:
        raise ConfigError(f"arm `{arm.kind}` (adapter={arm.adapter}) needs `{name}`; pass it to the objective")
    return logits


_NONE = {
    (dtype, axes): torch.empty((0,) * axes, dtype=dtype).numpy()
    for dtype in (torch.float32, torch.float64, torch.bool)
    for axes in (1, 2)
}


def _array(tensor: Tensor | None, dtype: torch.dtype, axes: int) -> np.ndarray:
    """Empty for None."""
    return _NONE[dtype, axes] if tensor is None else tensor.detach().to("cpu", dtype).numpy()


@inlined
def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


@inlined
def _entropy(z, y):
    """h and its slope, of numbers in double."""
    small = np.exp(-abs(z))
    return max(z, 0.0) - z * y + np.log1p(small), (1.0 if z >= 0 else small) / (1 + small) - y


_SIGNATURE = (
    "void(F[:, :], F[:, :], F[:, :], F[:, :], F[:, :], F[:, :], F[:, :], F[:], F[:], F[:], F[:], "
    "b1[:, :], b1[:, :], b1[:], b1[:], b1[:], b1, f8, f8, f8[::1], F[:, :, ::1], i8[:, ::1])"
)


@loop(_SIGNATURE.replace("F", "f4"), _SIGNATURE.replace("F", "f8"))
def _add_terms(
    z_S, z_D, z_D2, labels, z_F, adapted, counts, weights_B, shift_T, f_T, adapted_f_T,
    label_mask, teacher_mask, label_rows, distillation_rows, cold, labelled, alpha, tau, values, slopes, rows_3T,
):  # fmt: skip
    """What is empty is not there: masks are True then, numbers 1, shifts 0."""
    B, T = z_S.shape
    distils, adapts = len(z_D) > 0, len(z_D2) > 0
    known_B, distilled_B = np.empty(B, np.bool_), np.empty(B, np.bool_)
    for t in range(T):
        for b in range(B):
            settled = len(label_mask) == 0 or label_mask[b, t]
            wanted = (settled or not labelled) and (len(distillation_rows) == 0 or distillation_rows[b])
            known_B[b] = settled and (len(label_rows) == 0 or label_rows[b])
            distilled_B[b] = wanted and (len(teacher_mask) == 0 or teacher_mask[b, t])
            rows_3T[0, t] += known_B[b]
            rows_3T[1, t] += distilled_B[b]
            rows_3T[2, t] += wanted and not distilled_B[b]
        shift = np.float64(shift_T[t]) if len(shift_T) else 0.0
        f = np.float64(f_T[t]) if len(f_T) else 1.0
        adapted_f = np.float64(adapted_f_T[t]) if len(adapted_f_T) else 1.0
        label, distillation, adaptation, single_head = 0.0, 0.0, 0.0, 0.0
        n_known, n = max(rows_3T[0, t], 1), max(rows_3T[1, t], 1)
        for b in range(B):
            if known_B[b]:
                w = np.float64(weights_B[b]) if len(weights_B) else 1.0
                h, slope = _entropy(z_S[b, t] + shift, np.float64(labels[b, t]))
                label += w * h
                slopes[0, b, t] = w * slope / n_known
            if not distils or not distilled_B[b]:
                continue
            w = 1.0
            if len(counts):
                w = np.float64(counts[b, t] if counts.shape[1] > 1 else counts[b, 0])
            p_F = _sigmoid(z_F[b, t] / tau)
            h, slope = _entropy(z_D[b, t] / tau, min(alpha * p_F, 1.0))
            distillation += w * h
            slopes[1, b, t] = f * w * slope / tau / n
            if adapts:
                h, slope = _entropy(np.float64(z_D2[b, t]), _sigmoid(np.float64(adapted[b, t])))
                adaptation += w * h
                slopes[2, b, t] = adapted_f * w * slope / n
            if len(cold) and cold[b]:
                h, slope = _entropy(z_S[b, t] / tau, p_F)
                single_head += w * h
                slopes[3, b, t] = f * w * slope / tau / n
        values[0] += label / n_known
        values[1] += f * distillation / n
        values[2] += adapted_f * adaptation / n
        values[3] += f * single_head / n
