"""What a student learns from labels and from its teacher's logged logits (ExFM, arXiv 2502.17494).

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
weight 2 pulls as two rows do, whatever its batch happens to hold beside it, and over a stream the steps add up to the
gradient of Σ weight · h. Divided by Σ weight, every batch would pull alike, one of light rows as hard as one of heavy
ones, and the result would depend on where batches are cut. A task without such rows contributes 0. A row whose target
is not known (no label, no teacher logit) is masked and counted; nothing is put in its place.

Where of the rows with label 0 only a share r is there, h(z_S, y) is h(z_S − log r, y), and in the other terms a row
with label 0 counts 1/r (exfm/data/sampling.py says why): all logits are then those of all rows.

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


class Objective(NamedTuple):
    """A loss and its terms, scalars with gradient, and the rows (T,) int64 behind them."""

    total: Tensor
    label: Tensor
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
        h = h * (weights.unsqueeze(1) if weights.ndim == 1 else weights)
    means = torch.where(mask, h, 0.0).sum(0) / mask.sum(0).clamp(min=1)
    return (means if factors is None else means * factors).sum()


def objective(
    arm: Arm,
    z_S: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    *,
    z_D: Tensor | None = None,
    z_D2: Tensor | None = None,
    adapted: Tensor | None = None,
    label_mask: Tensor | None = None,
    teacher_mask: Tensor | None = None,
    weights: Tensor | None = None,
    cold: Tensor | None = None,
    factors: Tensor | None = None,
    adapted_factors: Tensor | None = None,
    negative_rate: Tensor | None = None,
) -> Objective:
    """The loss of one batch under an arm.

    All (B, T) but weights and cold, (B,), both factors, (T,), and negative_rate, (T,): the share of the rows with label
    0 that is there. `z_D` belongs to kind `auxiliary_head`; `z_D2` and
    `adapted` (the adapter's logits SA, taken without gradient) to its adapter. `cold` are the rows of a schedule on
    which the serving head learns from the teacher; without it none does but in kind `single_head`. Without a mask every
    row has that target. Values under a False mask are not looked at, whatever they are.

    Raises ConfigError where the arm needs a logit that is not given.
    """
    label_mask = torch.ones_like(labels, dtype=torch.bool) if label_mask is None else label_mask
    teacher_mask = torch.ones_like(label_mask) if teacher_mask is None else teacher_mask
    wanted = label_mask if arm.rows == "labelled" else torch.ones_like(label_mask)
    distilled = wanted & teacher_mask

    zero = z_S.new_zeros(())
    z, counts = z_S, weights
    if negative_rate is not None:
        z = z_S + label_shift(negative_rate)
        ones = z_S.new_ones(len(z_S)) if weights is None else weights
        counted = label_weights if arm.rows == "labelled" else row_weights
        counts = counted(ones, labels, label_mask, negative_rate)
    label = mean_over(cross_entropy(z, torch.where(label_mask, labels, 0.0)), label_mask, weights)
    distillation = adaptation = single_head = zero
    if arm.distils:
        z = z_S if arm.kind == "single_head" else _given(z_D, "z_D", arm)
        z_F = torch.where(distilled, teacher_logits.detach(), 0.0)
        target = teacher_target(z_F, arm.label_scale, arm.temperature)
        distillation = mean_over(cross_entropy(z / arm.temperature, target), distilled, counts, factors)
        if cold is not None:  # a factor and no mask: rows count alike, also where the batch is cold in part
            h = cross_entropy(z_S / arm.temperature, teacher_target(z_F, 1.0, arm.temperature)) * cold.unsqueeze(1)
            single_head = mean_over(h, distilled, counts, factors)
    if arm.adapter:
        z, sa = _given(z_D2, "z_D2", arm), _given(adapted, "adapted", arm)
        target = torch.where(distilled, torch.sigmoid(sa.detach()), 0.0)
        adaptation = mean_over(cross_entropy(z, target), distilled, counts, adapted_factors)

    total = label + arm.weight * distillation + adaptation if arm.distils else label
    return Objective(
        total=total if cold is None else total + arm.single_head_weight * single_head,
        label=label,
        distillation=distillation,
        adapted=adaptation,
        single_head=single_head,
        labelled_rows=label_mask.sum(0),
        distilled_rows=distilled.sum(0),
        rows_without_teacher=(wanted & ~teacher_mask).sum(0),
    )


def _given(logits: Tensor | None, name: str, arm: Arm) -> Tensor:
    if logits is None:
        raise ConfigError(f"arm `{arm.kind}` (adapter={arm.adapter}) needs `{name}`; pass it to the objective")
    return logits
