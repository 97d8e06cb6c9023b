"""Platt scaling of the teacher's logit, online: it corrects shift and scale.

    platt(z_F) = a·z_F + b, a ≥ 0               for one task;    (a, b) by logistic regression on y (regression.py)
    platt(z_F, r) = a·z_F + Σ_f c_f·r_f + b     with residuals r of the row's user, item … (residuals.py), c_f ≥ 0

It starts with the teacher's own logit, a = 1 and b = 0. Two weights per task are fitted within a few hundred rows of
the task, long before a student adapter is. A negative slope would fit noise, so a stays at 0 or above.
Residuals let the correction differ between users or items: each c_f starts at 0 and says how far its own is followed.

B examples, T tasks, F features whose ids have residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.distillation.correction import SeenBatch
from exfm.distillation.regression import Regression, RegressionSettings, initial, learned
from exfm.distillation.targets import Targets
from exfm.features.sampling import label_shift


@lru_cache
def _terms(half_life_rows: int, weights: int = 2) -> RegressionSettings:
    zeros, threes = (0.0,) * (weights - 1), (3.0,) * (weights - 1)
    return RegressionSettings(
        (1.0, *zeros), least=(*zeros, -10.0), largest=(*threes, 10.0), half_life_rows=half_life_rows, iterations=3
    )


def initial_platt(tasks: int, features: int = 0) -> Regression:
    """The scaling of T tasks before the first row: theta (T, 2 + F) holds a, every c_f, and b."""
    return initial(_terms(1, 2 + features), tasks)


def recalibrated(state: Regression, teacher_logits: Tensor, residuals: Tensor | None = None) -> Tensor:
    """a·z_F + Σ c_f·r_f + b: (B, T) float32, from teacher logits (B, T) and residuals (B, T, F).

    >>> generator = torch.Generator().manual_seed(0)
    >>> truth = torch.randn(4096, 1, generator=generator)
    >>> z_F, y = 1.5 * truth - 1, torch.bernoulli(torch.sigmoid(truth), generator=generator)
    >>> state, mask = initial_platt(1), torch.ones_like(y, dtype=torch.bool)
    >>> for rows in torch.arange(4096).split(256):
    ...     state = updated(state, 10_000, z_F[rows], y[rows], mask[rows], torch.ones(len(rows)))
    >>> [round(z) for z in recalibrated(state, torch.tensor([[-1.0], [2.0]])).flatten().tolist()]
    [0, 2]
    """
    a, *c, b = state.theta.float().unbind(1)
    scaled = a * teacher_logits + b
    return scaled if residuals is None else scaled + (residuals * torch.stack(c, dim=1)).sum(2)


def updated(
    state: Regression,
    half_life_rows: int,
    teacher_logits: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    negative_rate: Tensor | None = None,
    residuals: Tensor | None = None,
) -> Regression:
    """Update by one batch, over the rows of mask (B, T), those with a label and a teacher logit.

    Teacher logits and labels (B, T), residuals (B, T, F), weights (B,), negative_rate (T,) as `objective` takes it.
    Values under a False mask are not looked at. A task without rows stays as it is. The result is not checked: a caller
    that finds it not finite keeps the old one.
    """
    x = teacher_logits.unsqueeze(1)
    if residuals is not None:
        x = torch.cat([x, residuals.transpose(1, 2)], dim=1)
    shift = None if negative_rate is None else label_shift(negative_rate)
    return learned(state, _terms(half_life_rows, 1 + x.shape[1]), x, labels, mask, weights, shift)


class PlattScaling(NamedTuple):
    """The correction z_F' = a·z_F + Σ c_f·r_f + b (exfm/distillation/correction.py)."""

    regression: Regression
    half_life_rows: int
    residuals_by: tuple[str, ...] = ()

    @classmethod
    def initial(cls, tasks: int, half_life_rows: int, residuals_by: Sequence[str] = ()) -> PlattScaling:
        """Initial scaling; `residuals_by` names the features that have residuals r_f."""
        return cls(initial_platt(tasks, len(residuals_by)), half_life_rows, tuple(residuals_by))

    def learn(self, seen: SeenBatch, targets: Targets, before: Callable[[], Targets]) -> PlattScaling:
        taught = (seen.batch.labels, seen.known, seen.batch.weights, seen.batch.negative_rate, seen.residuals)
        made = updated(self.regression, self.half_life_rows, targets.teacher_logits, *taught)
        return self._replace(regression=made)

    def apply(self, targets: Targets, seen: SeenBatch) -> Targets:
        return targets._replace(teacher_logits=recalibrated(self.regression, targets.teacher_logits, seen.residuals))

    def state(self) -> dict[str, Tensor]:
        return {f"platt/{key}": value for key, value in self.regression._asdict().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        a, *c, b = self.regression.theta.unbind(1)
        followed = {f"residual_weight_{name}": weight for name, weight in zip(self.residuals_by, c, strict=True)}
        return {"platt_scale": a, "platt_shift": b} | followed
