"""The teacher's advantage: a factor on the distillation weight, measured on past rows only.

What counts is not which of the two loses less, but whether the teacher knows something that the student does not. So,
for one task, the label is predicted from both logits, by a logistic regression that learns online and forgets:

    y ~ σ(a·z_S + b·z_F + c)

    share   = b·sd(z_F) / (a·sd(z_S) + b·sd(z_F))          negative a and b count as 0; b is first lowered by its
                                                           standard error
    factor  = clamp((share − LOW) / (FULL − LOW), 0, 1)

A teacher whose logits are off in scale and shift has the same share as a calibrated one. A teacher that is worse than
its student, or repeats it, has a small share. b starts at 0 and a at 1: a teacher gains weight once it has shown that
it knows something.

It is learned as exfm/distillation/regression.py says, with θ = (a, b, c), x = (z_S, z_F, 1), θ₀ = (1, 0, 0).

B examples, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.distillation.correction import SeenBatch
from exfm.distillation.regression import PRIOR, Regression, RegressionSettings, initial, learned
from exfm.distillation.targets import Targets

LOW, FULL = 0.25, 0.5
HALF_LIFE_ROWS = 10_000  # of those that have the task's label and a teacher logit
LARGEST_LOGIT = 10.0  # larger ones carry no more information

# While a teacher's logit is the same for every row, b and c are not determined: hence the bounds.
_TERMS = RegressionSettings(
    (1.0, 0.0, 0.0), (-3.0, -3.0, -10.0), (3.0, 3.0, 10.0), HALF_LIFE_ROWS, largest_input=LARGEST_LOGIT
)


def no_advantage_yet(tasks: int) -> Regression:
    """The regressions of T tasks before the first row: theta (T, 3) holds a, b and c."""
    return initial(_TERMS, tasks)


def measured(state: Regression, z_S: Tensor, z_F: Tensor, labels: Tensor, mask: Tensor, weights: Tensor) -> Regression:
    """Update the regressions by one batch: logits of the student (B, T) and of one teacher or more, (B, T) each side by
    side, as predicted before anything learned from the batch's labels (B, T); over the rows of mask (B, T), weights
    (B,).

    Values under a False mask are not looked at. A task without rows stays as it is. The result is not checked: a caller
    that finds it not finite keeps the old one.
    """
    R = z_F.shape[1]
    x = torch.cat([z_S] * (R // z_S.shape[1]) + [z_F], dim=1).view(-1, 2, R)
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
    return _shares(state)[1]


def share(state: Regression) -> Tensor:
    """The teacher's share of the combined logit's spread, (T,) float64 in [0, 1]."""
    return _shares(state)[0]


def _shares(state: Regression) -> tuple[Tensor, Tensor]:
    """Shares and factors."""
    theta, H = state
    weight = (H[:, 2, 2] - PRIOR).clamp(min=1e-9)
    z_S, z_F = H[:, 0, 2] / weight, H[:, 1, 2] / weight  # the means
    sd_S = ((H[:, 0, 0] - PRIOR) / weight - z_S * z_S).clamp(min=0).sqrt()
    sd_F = ((H[:, 1, 1] - PRIOR) / weight - z_F * z_F).clamp(min=0).sqrt()
    # The standard error of b is the root of (H⁻¹)₁₁: one over what H₁₁ has beyond the other two (Schur complement),
    # which is written out by determinants, so that a task's result does not depend on how many there are.
    H_00, H_01, H_02, H_11, H_12, H_22 = H[:, 0, 0], H[:, 0, 1], H[:, 0, 2], H[:, 1, 1], H[:, 1, 2], H[:, 2, 2]
    others = H_01 * H_01 * H_22 - 2 * H_01 * H_12 * H_02 + H_12 * H_12 * H_00
    error = 1 / (H_11 - others / (H_00 * H_22 - H_02 * H_02)).sqrt()
    spread_S, spread_F = theta[:, 0].clamp(min=0) * sd_S, (theta[:, 1] - error).clamp(min=0) * sd_F
    shares = spread_F / (spread_S + spread_F).clamp(min=1e-9)
    return shares, ((shares - LOW) / (FULL - LOW)).clamp(0, 1).float()


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

    def learn(self, seen: SeenBatch, targets: Targets, before: Callable[[], Targets]) -> Advantage:
        logged, adapted = seen.batch.teacher_logits, before().adapted
        z_F = logged if adapted is None else torch.cat([logged, adapted], dim=1)
        taught = (seen.batch.labels, seen.known, seen.batch.weights)
        after = measured(self.regression, seen.student_logits, z_F, *taught)
        return self._replace(regression=after, of_earlier_rows=self.regression)

    def apply(self, targets: Targets, seen: SeenBatch) -> Targets:
        factors, *adapted = factor(self.of_earlier_rows).chunk(self.said)
        return targets._replace(factors=factors, adapted_factors=adapted[0] if adapted else None)

    def state(self) -> dict[str, Tensor]:
        return {f"advantage/{key}": value for key, value in self.regression._asdict().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        factors = factor(self.regression).chunk(self.said)
        return dict(zip(("teacher_weight", "adapter_weight"), factors, strict=False))
