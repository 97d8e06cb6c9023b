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
with label 0 counts 1/r (exfm/features/sampling.py says why). So all logits hold for the full stream.

Losses are computed in double, whatever type logits have.

B examples, T tasks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor

from exfm.distillation.arm import Arm
from exfm.distillation.targets import RowMasks, Targets
from exfm.errors import ConfigError
from exfm.features.sampling import label_shift, label_weights, row_weights


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


def objective(
    arm: Arm,
    z_S: Tensor,
    labels: Tensor,
    teacher: Tensor | Targets,
    *,
    z_D: Tensor | None = None,
    z_D2: Tensor | None = None,
    rows: RowMasks = RowMasks(),
) -> Objective:
    """The loss of one batch under an arm.

    Shapes: z_S, labels, z_D and z_D2 are (B, T). `teacher` is the teacher's logits (B, T), or a `Targets` with what
    corrects them. `z_D` belongs to the kind `auxiliary_head`, `z_D2` to its adapter. Values under a False mask of
    `rows` have no influence.

    Raises ConfigError where the arm needs a logit that is not given.

    >>> z_S, labels = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [0.0]])
    >>> terms = objective(Arm(kind="single_head", weight=0.5), z_S, labels, torch.tensor([[0.0], [0.0]]))
    >>> bool(terms.total == terms.label + 0.5 * terms.distillation)
    True
    """
    targets = teacher if isinstance(teacher, Targets) else Targets(teacher)
    settled = torch.ones_like(labels, dtype=torch.bool) if rows.label_mask is None else rows.label_mask
    known = settled if rows.label_rows is None else settled & rows.label_rows.unsqueeze(1)
    wanted = settled if arm.rows == "labelled" else torch.ones_like(settled)
    if rows.distillation_rows is not None:
        wanted = wanted & rows.distillation_rows.unsqueeze(1)
    distilled = wanted if rows.teacher_mask is None else wanted & rows.teacher_mask

    weights = labels.new_ones(len(labels)) if rows.weights is None else rows.weights
    z = z_S if rows.negative_rate is None else z_S + label_shift(rows.negative_rate)
    label = _cross_entropy(z, torch.where(known, labels, 0), _shares(known, weights.unsqueeze(1)))
    distillation = adapted = single_head = torch.zeros_like(label)
    if arm.distils:
        shares = _shares(distilled, _counts(arm, labels, settled, weights, rows.negative_rate))
        own = shares if targets.factors is None else shares * targets.factors
        tau = arm.temperature
        p_F = torch.sigmoid(torch.where(distilled, targets.teacher_logits, 0).double() / tau)
        z = z_S if arm.kind == "single_head" else _given(z_D, "z_D", arm)
        distillation = _cross_entropy(z / tau, (arm.label_scale * p_F).clamp(max=1), own)
        if rows.cold is not None:
            single_head = _cross_entropy(z_S / tau, p_F, own * rows.cold.unsqueeze(1))
        if arm.adapter:
            z_D2, p_SA = _given(z_D2, "z_D2", arm), torch.sigmoid(_given(targets.adapted, "adapted", arm).double())
            own = shares if targets.adapted_factors is None else shares * targets.adapted_factors
            adapted = _cross_entropy(z_D2, torch.where(distilled, p_SA, 0), own)
    of_teacher = arm.weight * distillation + adapted + arm.single_head_weight * single_head
    terms = (label + of_teacher, label, of_teacher, distillation, adapted, single_head)
    counts = (mask.sum(0) for mask in (known, distilled, wanted & ~distilled))
    return Objective(*(term.to(z_S.dtype) for term in terms), *counts)


def _cross_entropy(z: Tensor, target: Tensor, shares: Tensor) -> Tensor:
    """Σ share · h(z, target), a scalar in double. `shares` (B, T) have no gradient, and no more has `target`."""
    target, shares = target.detach().double(), shares.detach().double()
    return nnf.binary_cross_entropy_with_logits(z.double(), target, shares, reduction="sum")


def _shares(mask: Tensor, counts: Tensor) -> Tensor:
    """Share of each row in a mean over the rows of a mask, (B, T): its count, (B, 1) or (B, T), over their number."""
    return torch.where(mask, counts.double(), 0) / mask.sum(0).clamp(min=1)


def _counts(arm: Arm, labels: Tensor, settled: Tensor, weights: Tensor, negative_rate: Tensor | None) -> Tensor:
    """Weight of each row in the distillation terms, (B, 1) or (B, T)."""
    if negative_rate is None:
        return weights.unsqueeze(1)
    return (label_weights if arm.rows == "labelled" else row_weights)(weights, labels, settled, negative_rate)


def _given(logits: Tensor | None, name: str, arm: Arm) -> Tensor:
    if logits is None:
        raise ConfigError(f"arm `{arm.kind}` (adapter={arm.adapter}) needs `{name}`; pass it to the objective")
    return logits
