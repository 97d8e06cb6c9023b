"""What a student learns from labels and from its teacher's logged logits (ExFM, arXiv 2502.17494).

z_S serving logit, z_D distillation logit, z_D2 adapter-distillation logit, y label, p_F = σ(teacher logit), SA student
adapter, sg stop-gradient, h(z, y) binary cross-entropy of logit z against target y in [0, 1]:

    none             L = h(z_S, y)
    single head      L = h(z_S, y) + w·h(z_S, p_F)
    auxiliary head   L = h(z_S, y) + w·h(z_D, min(1, α·p_F))
    … with adapter   L = h(z_S, y) + w·h(z_D, min(1, α·p_F)) + h(z_D2, sg σ(SA)),      L_SA = h(SA, y)

z_D and z_D2 are made from the trunk's output through `scale_gradient(…, β)`. A temperature τ other than 1 replaces a
distillation term h(z, σ(z_F)) by h(z / τ, σ(z_F / τ)).

Every h is a mean over the rows that have its target, one task at a time, and the means are summed over tasks:
Σ_t Σ_b mask_bt · weight_b · h_bt / Σ_b mask_bt. It is divided by the number of rows, not by their weight: so a row of
weight 2 pulls as two rows do, whatever its batch happens to hold beside it, and over a stream the steps add up to the
gradient of Σ weight · h. Divided by Σ weight, every batch would pull alike, one of light rows as hard as one of heavy
ones, and the result would depend on where batches are cut. A task without such rows contributes 0. A row whose target
is not known (no label, no teacher logit) is masked and counted; nothing is put in its place.

In a training loop of your own:

>>> from torch import nn
>>> from exfm.distillation import Arm, objective, scale_gradient
>>> arm = Arm(kind="auxiliary_head", weight=1.5)
>>> trunk, serving, auxiliary = nn.Linear(16, 32), nn.Linear(32, 1), nn.Linear(32, 1)
>>> optimizer = torch.optim.Adam(nn.ModuleList([trunk, serving, auxiliary]).parameters(), lr=0.01)
>>> for _ in range(3):
...     x, label, teacher_logit = torch.randn(64, 16), torch.randint(2, (64, 1)).float(), torch.randn(64, 1)
...     h = trunk(x).relu()
...     z_D = auxiliary(scale_gradient(h, arm.gradient_scale))
...     loss = objective(arm, serving(h), label, teacher_logit, z_D=z_D).total
...     optimizer.zero_grad()
...     loss.backward()
...     optimizer.step()

B examples, T tasks.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as nnf
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from exfm.errors import ConfigError


class Arm(BaseModel):
    """How a student uses its teacher.

    kind
        `none`: labels only, the twin that others are compared with;
        `single_head`: the serving head learns labels and teacher alike, and inherits the teacher's bias;
        `auxiliary_head`: a head of its own learns from the teacher, and only the trunk is shared.
    rows
        `labelled`: a row is distilled for the tasks whose label it settles;
        `all`: for every task with a teacher logit (a conversion head then learns from impressions without a click too).
    head_start
        `random`: the heads that learn from teacher and adapter begin with weights of their own;
        `serving`: with the serving head's, so that at first they pull the trunk the way the labels do. That helps a
        cold student of a good teacher, and hurts one of a teacher that is still cold itself.

    Raises ConfigError (as pydantic's ValidationError) for a setting that its kind has no use for.

    >>> Arm(kind="auxiliary_head", adapter=True, weight=1.5).distils
    True
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none", "single_head", "auxiliary_head"] = "auxiliary_head"
    adapter: bool = False
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # w
    label_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # α
    gradient_scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # β
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # τ
    rows: Literal["labelled", "all"] = "labelled"
    head_start: Literal["random", "serving"] = "random"
    adapter_width: int = Field(default=8, gt=0)
    adapter_lr: float = Field(default=4e-3, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Arm:
        if self.adapter and self.kind != "auxiliary_head":
            raise ConfigError(
                f"arm `{self.kind}` has no place for a student adapter; drop `adapter`, or use kind `auxiliary_head`"
            )
        if self.kind == "single_head" and self.label_scale != 1:
            raise ConfigError(
                f"label_scale {self.label_scale} in arm `single_head` would miscalibrate the served head "
                "(its predictions move towards that multiple of the truth); use 1, or kind `auxiliary_head`"
            )
        if self.kind == "single_head" and self.gradient_scale != 1:
            raise ConfigError(
                f"gradient_scale {self.gradient_scale} in arm `single_head` has no path of its own to scale; "
                "use 1 and change `weight`, or kind `auxiliary_head`"
            )
        return self

    @property
    def distils(self) -> bool:
        """Whether the teacher is used at all."""
        return self.kind != "none"


class Objective(NamedTuple):
    """A loss and its terms, scalars with gradient, and the rows (T,) int64 behind them."""

    total: Tensor
    label: Tensor
    distillation: Tensor  # before the weight w
    adapted: Tensor
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


def mean_over(h: Tensor, mask: Tensor, weights: Tensor | None = None) -> Tensor:
    """Σ_t Σ_b mask · weight · h / Σ_b mask: h and mask (B, T), weights (B,) or 1 each. A scalar, 0 where mask is empty.

    Rows are counted, weights are not: a weight makes its row pull harder, and no other row less (see above).

    >>> mean_over(torch.tensor([[1.0], [3.0], [50.0]]), torch.tensor([[True], [True], [False]]))
    tensor(2.)
    """
    if weights is not None:
        h = h * weights.unsqueeze(1)
    return (torch.where(mask, h, 0.0).sum(0) / mask.sum(0).clamp(min=1)).sum()


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
) -> Objective:
    """The loss of one batch under an arm.

    All (B, T) but weights, (B,). `z_D` belongs to kind `auxiliary_head`; `z_D2` and `adapted` (the adapter's logits SA,
    taken without gradient) to its adapter. Without a mask every row has that target. Values under a False mask are not
    looked at, whatever they are.

    Raises ConfigError where the arm needs a logit that is not given.
    """
    label_mask = torch.ones_like(labels, dtype=torch.bool) if label_mask is None else label_mask
    teacher_mask = torch.ones_like(label_mask) if teacher_mask is None else teacher_mask
    wanted = label_mask if arm.rows == "labelled" else torch.ones_like(label_mask)
    distilled = wanted & teacher_mask

    zero = z_S.new_zeros(())
    label = mean_over(cross_entropy(z_S, torch.where(label_mask, labels, 0.0)), label_mask, weights)
    distillation = adaptation = zero
    if arm.distils:
        z = z_S if arm.kind == "single_head" else _given(z_D, "z_D", arm)
        target = teacher_target(torch.where(distilled, teacher_logits.detach(), 0.0), arm.label_scale, arm.temperature)
        distillation = mean_over(cross_entropy(z / arm.temperature, target), distilled, weights)
    if arm.adapter:
        z, sa = _given(z_D2, "z_D2", arm), _given(adapted, "adapted", arm)
        target = torch.where(distilled, torch.sigmoid(sa.detach()), 0.0)
        adaptation = mean_over(cross_entropy(z, target), distilled, weights)

    return Objective(
        total=label + arm.weight * distillation + adaptation if arm.distils else label,
        label=label,
        distillation=distillation,
        adapted=adaptation,
        labelled_rows=label_mask.sum(0),
        distilled_rows=distilled.sum(0),
        rows_without_teacher=(wanted & ~teacher_mask).sum(0),
    )


def _given(logits: Tensor | None, name: str, arm: Arm) -> Tensor:
    if logits is None:
        raise ConfigError(f"arm `{arm.kind}` (adapter={arm.adapter}) needs `{name}`; pass it to the objective")
    return logits
