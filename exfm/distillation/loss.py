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

B examples, T tasks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from exfm.distillation.arm import Arm
from exfm.distillation.terms import Lesson, RowMasks, terms_of

N = TypeVar("N", float, Tensor)


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
    terms, rows_3T = _Terms.apply(arm, labels, lesson, rows, z_S, z_D, z_D2)
    label, distillation, adapted, single_head = terms.unbind()
    of_teacher = teacher_part(arm, distillation, adapted, single_head)
    total = label + of_teacher if arm.distils else label
    return Objective(total, label, of_teacher, distillation, adapted, single_head, *rows_3T.unbind())


def teacher_part(arm: Arm, distillation: N, adapted: N, single_head: N) -> N:
    """All terms of a loss but the label's, with their weights; a term that an arm does not have is 0."""
    return arm.weight * distillation + adapted + arm.single_head_weight * single_head


class _Terms(torch.autograd.Function):
    """`terms_of`, with gradient: terms (4,) and rows (3, T)."""

    @staticmethod
    def forward(
        ctx: Any, arm: Arm, labels: Tensor, lesson: Lesson, rows: RowMasks, z_S: Tensor, *others: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        found = terms_of(arm, labels, lesson, rows, z_S, *others)
        ctx.single_head, ctx.others = arm.kind == "single_head", [z is not None for z in others]
        ctx.save_for_backward(found.slopes.to(z_S))
        terms, of_rows = found.values.to(z_S), found.rows.to(z_S.device)
        ctx.mark_non_differentiable(of_rows)
        return terms, of_rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        label, distillation, adapted, single_head = (gradients[0].view(4, 1, 1) * ctx.saved_tensors[0]).unbind()
        if ctx.single_head:
            label, distillation = label + distillation, torch.zeros_like(distillation)
        others = zip((distillation, adapted), ctx.others, strict=True)
        return None, None, None, None, label + single_head, *(slope if given else None for slope, given in others)
