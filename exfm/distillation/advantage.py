"""The teacher's advantage: a factor on the distillation weight, measured on past rows alone.

What counts is not which of the two loses less, but whether the teacher knows something that the student does not. So,
for one task, the label is predicted from both logits, by a logistic regression that learns online and forgets:

    y ~ σ(a·z_S + b·z_F + c)

    share   = b·sd(z_F) / (a·sd(z_S) + b·sd(z_F))          negative a and b count as 0; b is first lowered by its
                                                           standard error
    factor  = clamp((share − LOW) / (FULL − LOW), 0, 1)

A teacher whose logits are off in scale and shift has the same share as a calibrated one. A teacher that is worse than
its student, or repeats it, has a small share. b starts at 0 and a at 1: a teacher gains weight once it has shown that
it knows something.

It is learned as exfm/logistic.py says, with θ = (a, b, c), x = (z_S, z_F, 1), θ₀ = (1, 0, 0).

B examples, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.distillation.correction import SeenBatch
from exfm.distillation.loss import Lesson
from exfm.logistic import PRIOR, Regression, Terms, initial, inputs_of, learned

LOW, FULL = 0.25, 0.5
HALF_LIFE_ROWS = 10_000  # of those that have the task's label and a teacher logit
LARGEST_LOGIT = 10.0  # larger ones carry no more information

# While a teacher's logit is the same for every row, b and c are not determined: hence the bounds.
_TERMS = Terms((1.0, 0.0, 0.0), least=(-3.0, -3.0, -10.0), largest=(3.0, 3.0, 10.0), half_life_rows=HALF_LIFE_ROWS)


def no_advantage_yet(tasks: int) -> Regression:
    """The regressions of T tasks before the first row: theta (T, 3) holds a, b and c."""
    return initial(_TERMS, tasks)


def measured(state: Regression, z_S: Tensor, z_F: Tensor, labels: Tensor, mask: Tensor, weights: Tensor) -> Regression:
    """With one more batch: logits of student and teacher (B, T) as they were before anything learned from its labels
    (B, T), over the rows of mask (B, T), weights (B,).

    Values under a False mask are not looked at. A task without rows stays as it is. The result is not checked: a caller
    that finds it not finite keeps the old one.
    """
    x = inputs_of(mask, z_S.detach(), z_F.detach())
    x.clamp_(-LARGEST_LOGIT, LARGEST_LOGIT)
    return learned(state, _TERMS, x, labels, mask, weights)


def factor(state: Regression) -> Tensor:
    """(T,) float32 in [0, 1]; 0 for a task without rows.

    One teacher knows the truth but is off in scale and shift; the other is noise:

    >>> generator = torch.Generator().manual_seed(0)
    >>> known, unknown, noise = torch.randn(3, 20_000, 1, generator=generator)
    >>> y = torch.bernoulli(torch.sigmoid(known + unknown), generator=generator)
    >>> everywhere, ones = torch.ones_like(y, dtype=torch.bool), torch.ones(len(y))
    >>> for z_F in (1.5 * (known + unknown) - 1, noise):
    ...     state = no_advantage_yet(1)
    ...     for rows in torch.arange(len(y)).split(500):
    ...         state = measured(state, known[rows], z_F[rows], y[rows], everywhere[rows], ones[rows])
    ...     print(f"{factor(state).item():.1f}")
    1.0
    0.0
    """
    return ((share(state) - LOW) / (FULL - LOW)).clamp(0, 1).float()


def share(state: Regression) -> Tensor:
    """The teacher's part of the combined logit's spread, (T,) float64 in [0, 1]."""
    H, theta = state.information.numpy(), state.theta.numpy()  # NumPy, as in exfm/logistic.py
    seen = H - PRIOR * np.eye(3)
    weight = np.maximum(seen[:, 2, 2], 1e-9)[:, None]
    mean = seen[:, :2, 2] / weight
    sd = np.sqrt(np.maximum(seen[:, (0, 1), (0, 1)] / weight - mean * mean, 0))
    error = np.sqrt(np.maximum(_inverse(H)[:, 1, 1], 0))
    parts = np.maximum(np.stack([theta[:, 0], theta[:, 1] - error], axis=1), 0) * sd
    return torch.from_numpy(parts[:, 1] / np.maximum(parts.sum(1), 1e-9))


def _inverse(H: np.ndarray) -> np.ndarray:
    """(T, 3, 3); not a number where H is not finite, or singular."""
    try:
        return np.linalg.inv(H)
    except np.linalg.LinAlgError:
        return np.full_like(H, np.nan)


class Advantage(NamedTuple):
    """The correction of the two distillation weights (exfm/distillation/correction.py), last in its chain.

    It measures the teacher's logits as they were logged and, where there is an adapter, the adapter's: `said` is 1 or
    2, and the regression has the tasks of the one first, then those of the other.
    """

    regression: Regression
    of_earlier_rows: Regression  # without the batch that was just learned: the factors come from it
    said: int

    @classmethod
    def initial(cls, tasks: int, said: int) -> Advantage:
        regression = no_advantage_yet(said * tasks)
        return cls(regression, regression, said)

    def learn(self, seen: SeenBatch, lesson: Lesson, before: Callable[[], Lesson]) -> Advantage:
        adapted = before().adapted
        z_F = [seen.teacher_logits] if adapted is None else [seen.teacher_logits, adapted]
        z_S, y, known = (tensor.repeat(1, self.said) for tensor in (seen.student_logits, seen.labels, seen.known))
        after = measured(self.regression, z_S, torch.cat(z_F, 1), y, known, seen.batch.weights)
        return self._replace(regression=after, of_earlier_rows=self.regression)

    def apply(self, lesson: Lesson, seen: SeenBatch) -> Lesson:
        factors, *adapted = factor(self.of_earlier_rows).chunk(self.said)
        return lesson._replace(factors=factors, adapted_factors=adapted[0] if adapted else None)

    def state(self) -> dict[str, Tensor]:
        return {f"advantage/{key}": value for key, value in self.regression._asdict().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        factors = factor(self.regression).chunk(self.said)
        return dict(zip(("teacher_weight", "adapter_weight"), factors, strict=False))
