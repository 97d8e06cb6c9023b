"""The losses of a student: labels, and its teacher's logged logits (ExFM, arXiv 2502.17494).

z_S serving logit, z_D distillation logit, z_D2 adapter-distillation logit, y label, p_F = σ(teacher logit), SA student
adapter, sg stop-gradient, h(z, y) binary cross-entropy of logit z against target y in [0, 1]:

    none             L = h(z_S, y)
    single head      L = h(z_S, y) + w·h(z_S, p_F)
    auxiliary head   L = h(z_S, y) + w·h(z_D, min(1, α·p_F))
    … with adapter   L = h(z_S, y) + w·h(z_D, min(1, α·p_F)) + h(z_D2, sg σ(SA)),      L_SA = h(SA, y)

z_D and z_D2 are made from the trunk's output through `scale_gradient(…, β)`. A temperature τ other than 1 replaces a
distillation term h(z, σ(z_F)) by h(z / τ, σ(z_F / τ)). With more of an arm's options (exfm/distillation/arm.py):

    Platt scaling       z_F is a·z_F + b throughout
    schedule            … + v·h(z_S, p_F) over the rows that are still cold, v the `single_head_weight`; on these rows
                        z_D and z_D2 are made from sg(trunk's output)
    follows advantage   w·f_t for w, w·v·f_t … , and f'_t for the 1 of the adapter's term, per task t

Every h is a mean over the rows that have its target, one task at a time, and the means are summed over tasks:
Σ_t Σ_b mask_bt · weight_b · h_bt / Σ_b mask_bt. It is divided by the number of rows, not by their weight: so a row of
weight 2 pulls as two rows do, whatever else its batch holds, and over a stream the steps add up to the
gradient of Σ weight · h. Divided by Σ weight, every batch would pull alike, one of light rows as hard as one of heavy
ones, and the result would depend on where batches are cut. A task without such rows contributes 0. A row whose target
is not known (no label, no teacher logit) is masked and counted; no other value stands in for it.

A student may learn from rows of other verticals, too: from their teacher logits, or from their labels as well. Whose
labels and whose logits count are two masks: h(z_S, y) is a mean over the label rows, a distillation term one over the
distillation rows that have a logit,

    L = Σ_{label rows} h(z_S, y) / n_label + w · Σ_{distillation rows} h(z_D, p_F) / n_distilled

Where only a share r of the rows with label 0 was kept, h(z_S, y) is h(z_S − log r, y), and in the other terms a row
with label 0 counts 1/r (exfm/data/sampling.py says why). So all logits hold for the full stream.

B examples, T tasks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor

from exfm.data import label_shift, label_weights, row_weights
from exfm.distillation.arm import Arm
from exfm.errors import ConfigError


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
    negative_rate  (T,), the share of the rows with label 0 that was kept (exfm/data/sampling.py)
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


class Objective(NamedTuple):
    """A loss and its terms, scalars with gradient, and the rows (T,) int64 behind them."""

    total: Tensor
    label: Tensor
    of_teacher: Tensor  # all terms but the label's, with their weights
    distillation: Tensor  # before the weight w
    adapted: Tensor
    single_head: Tensor  # that of a schedule, before its weight
    labelled_rows: Tensor
    distilled_rows: Tensor
    rows_without_teacher: Tensor  # those that would have been distilled, had they a teacher logit


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: float) -> Tensor:
        ctx.beta = beta
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.beta, None


def scale_gradient(x: Tensor, beta: float) -> Tensor:
    """Identity forward, gradient times β backward; any shape.

    >>> x = torch.ones(2, requires_grad=True)
    >>> scale_gradient(x, 20.0).sum().backward()
    >>> x.grad
    tensor([20., 20.])
    """
    return _ScaleGradient.apply(x, beta)


def cross_entropy(z: Tensor, target: Tensor) -> Tensor:
    """h(z, y), elementwise, in nats; y may be soft. Stable for logits of any size.

    >>> cross_entropy(torch.tensor([0.0, 500.0]), torch.tensor([0.5, 0.0]))
    tensor([  0.6931, 500.0000])
    """
    return nnf.binary_cross_entropy_with_logits(z, target, reduction="none")


def teacher_target(teacher_logits: Tensor, label_scale: float = 1.0, temperature: float = 1.0) -> Tensor:
    """min(1, α·σ(z_F / τ)), elementwise.

    >>> teacher_target(torch.tensor([0.0, 5.0]), label_scale=1.5)
    tensor([0.7500, 1.0000])
    """
    return (label_scale * torch.sigmoid(teacher_logits / temperature)).clamp(max=1.0)


def mean_over(h: Tensor, mask: Tensor, weights: Tensor | None = None, factors: Tensor | None = None) -> Tensor:
    """Σ_t factor · Σ_b mask · weight · h / Σ_b mask: h and mask (B, T), weights (B,) or (B, T), factors (T,); or 1.

    A scalar, 0 where mask is empty.

    Rows are counted, weights are not: a weight makes its row pull harder, and no other row less (see above).

    >>> mean_over(torch.tensor([[1.0], [3.0], [50.0]]), torch.tensor([[True], [True], [False]]))
    tensor(2.)
    """
    if weights is not None:
        h = h * _by_row(weights)
    means = torch.where(mask, h, 0.0).sum(0) / mask.sum(0).clamp(min=1)
    return (means if factors is None else means * factors).sum()


def entropy_slope(z: Tensor, target: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """The derivative (B, T) of `mean_over(cross_entropy(z, target), …)` by z: weight · (σ(z) − y) / Σ_b mask where mask
    is True, else 0."""
    slope = (torch.sigmoid(z) - target) * _by_row(weights)
    return torch.where(mask, slope * mask.sum(0).clamp(min=1).reciprocal(), 0.0)


def _by_row(weights: Tensor) -> Tensor:
    """(B,) or (B, T) -> (B, 1) or (B, T)."""
    return weights.unsqueeze(1) if weights.ndim == 1 else weights


def objective(
    arm: Arm,
    z_S: Tensor,
    labels: Tensor,
    teacher: Tensor | Lesson,
    *,
    z_D: Tensor | None = None,
    z_D2: Tensor | None = None,
    rows: RowMasks = RowMasks(),
) -> Objective:
    """The loss of one batch under an arm.

    Shapes: z_S, labels, z_D and z_D2 are (B, T). `teacher` is the teacher's logits (B, T), or a `Lesson` with what
    corrects them. `z_D` belongs to the kind `auxiliary_head`, `z_D2` to its adapter. Values under a False mask of
    `rows` have no influence.

    Raises ConfigError where the arm needs a logit that is not given.

    >>> z_S, labels = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [0.0]])
    >>> terms = objective(Arm(kind="single_head", weight=0.5), z_S, labels, torch.tensor([[0.0], [0.0]]))
    >>> bool(terms.total == terms.label + 0.5 * terms.distillation)
    True
    """
    lesson = teacher if isinstance(teacher, Lesson) else Lesson(teacher)
    settled = torch.ones_like(labels, dtype=torch.bool) if rows.label_mask is None else rows.label_mask
    taught = torch.ones_like(settled) if rows.teacher_mask is None else rows.teacher_mask
    known = _within(settled, rows.label_rows)
    wanted = _within(settled if arm.rows == "labelled" else torch.ones_like(settled), rows.distillation_rows)
    distilled = wanted & taught
    counts = _counts(arm, labels, settled, rows)

    z = z_S if rows.negative_rate is None else z_S + label_shift(rows.negative_rate)
    label = mean_over(cross_entropy(z, torch.where(known, labels, 0.0)), known, rows.weights)
    distillation = adaptation = single_head = z_S.new_zeros(())
    if arm.distils:
        z = z_S if arm.kind == "single_head" else _given(z_D, "z_D", arm)
        z_F, tau = torch.where(distilled, lesson.teacher_logits.detach(), 0.0), arm.temperature
        target = teacher_target(z_F, arm.label_scale, tau)
        distillation = mean_over(cross_entropy(z / tau, target), distilled, counts, lesson.factors)
        if rows.cold is not None:  # a factor, not a mask: rows count alike, even where only part of the batch is cold
            cold = _by_row(rows.cold.to(z_S.dtype))
            cold = cold if counts is None else cold * _by_row(counts)
            h = cross_entropy(z_S / tau, teacher_target(z_F, 1.0, tau))
            single_head = mean_over(h, distilled, cold, lesson.factors)
    if arm.adapter:
        z, sa = _given(z_D2, "z_D2", arm), _given(lesson.adapted, "adapted", arm)
        target = torch.where(distilled, torch.sigmoid(sa.detach()), 0.0)
        adaptation = mean_over(cross_entropy(z, target), distilled, counts, lesson.adapted_factors)

    of_teacher = arm.weight * distillation + adaptation
    if rows.cold is not None:
        of_teacher = of_teacher + arm.single_head_weight * single_head
    return Objective(
        total=label + of_teacher if arm.distils else label,
        label=label,
        of_teacher=of_teacher,
        distillation=distillation,
        adapted=adaptation,
        single_head=single_head,
        labelled_rows=known.sum(0),
        distilled_rows=distilled.sum(0),
        rows_without_teacher=(wanted & ~taught).sum(0),
    )


def _within(mask: Tensor, rows: Tensor | None) -> Tensor:
    return mask if rows is None else mask & rows.unsqueeze(1)


def _counts(arm: Arm, labels: Tensor, settled: Tensor, rows: RowMasks) -> Tensor | None:
    """What each row counts in the distillation terms; None: 1."""
    if rows.negative_rate is None:
        return rows.weights
    weights = labels.new_ones(len(labels)) if rows.weights is None else rows.weights
    counted = label_weights if arm.rows == "labelled" else row_weights
    return counted(weights, labels, settled, rows.negative_rate)


def _given(logits: Tensor | None, name: str, arm: Arm) -> Tensor:
    if logits is None:
        raise ConfigError(f"arm `{arm.kind}` (adapter={arm.adapter}) needs `{name}`; pass it to the objective")
    return logits
