"""Platt scaling of the teacher's logit, online: it corrects shift and scale.

    platt(z_F) = a·z_F + b, a ≥ 0      for one task;    (a, b) by logistic regression on y (logistic.py)

It starts with the teacher's own logit, a = 1 and b = 0. Two weights per task are fitted within a few hundred rows of
the task, long before a student adapter is. A negative slope would fit noise, so a stays at 0 or above.

B examples, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.data import label_shift
from exfm.distillation.correction import SeenBatch
from exfm.distillation.logistic import Regression, Terms, initial, learned
from exfm.distillation.loss import Lesson


def _terms(half_life_rows: int) -> Terms:
    return Terms(start=(1.0, 0.0), least=(0.0, -10.0), largest=(3.0, 10.0), half_life_rows=half_life_rows)


def initial_platt(tasks: int) -> Regression:
    """The scaling of T tasks before the first row: theta (T, 2) holds a and b."""
    return initial(_terms(1), tasks)


def recalibrated(state: Regression, teacher_logits: Tensor) -> Tensor:
    """a·z_F + b: (B, T) float32, from teacher logits (B, T).

    >>> generator = torch.Generator().manual_seed(0)
    >>> truth = torch.randn(4096, 1, generator=generator)
    >>> z_F, y = 1.5 * truth - 1, torch.bernoulli(torch.sigmoid(truth), generator=generator)
    >>> state, mask = initial_platt(1), torch.ones_like(y, dtype=torch.bool)
    >>> for rows in torch.arange(4096).split(256):
    ...     state = updated(state, 10_000, z_F[rows], y[rows], mask[rows], torch.ones(len(rows)))
    >>> [round(z) for z in recalibrated(state, torch.tensor([[-1.0], [2.0]])).flatten().tolist()]
    [0, 2]
    """
    a, b = state.theta.float().unbind(1)
    return a * teacher_logits + b


def updated(
    state: Regression,
    half_life_rows: int,
    teacher_logits: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    negative_rate: Tensor | None = None,
) -> Regression:
    """With one more batch, over the rows of mask (B, T), those with a label and a teacher logit.

    Teacher logits and labels (B, T), weights (B,), negative_rate (T,) as `objective` takes it. Values under a False
    mask are not looked at. A task without rows stays as it is. The result is not checked: a caller that finds it not
    finite keeps the old one.
    """
    z_F = torch.where(mask, teacher_logits, 0.0).T
    x = torch.stack([z_F, mask.T], dim=1).double()  # (T, 2, B)
    shift = None if negative_rate is None else label_shift(negative_rate)
    return learned(state, _terms(half_life_rows), x, labels, mask, weights, shift)


class PlattScaling(NamedTuple):
    """The correction z_F' = a·z_F + b (exfm/distillation/correction.py)."""

    regression: Regression
    half_life_rows: int

    @classmethod
    def initial(cls, tasks: int, half_life_rows: int) -> PlattScaling:
        return cls(initial_platt(tasks), half_life_rows)

    def learn(self, seen: SeenBatch, lesson: Lesson, before: Callable[[], Lesson]) -> PlattScaling:
        taught = (seen.labels, seen.known, seen.batch.weights, seen.batch.negative_rate)
        return self._replace(regression=updated(self.regression, self.half_life_rows, lesson.teacher_logits, *taught))

    def apply(self, lesson: Lesson, seen: SeenBatch) -> Lesson:
        return lesson._replace(teacher_logits=recalibrated(self.regression, lesson.teacher_logits))

    def state(self) -> dict[str, Tensor]:
        return {f"platt/{key}": value for key, value in self.regression._asdict().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        a, b = self.regression.theta.unbind(1)
        return {"platt_scale": a, "platt_shift": b}
