"""How much a student should listen to its teacher: a factor on the distillation weight, from past rows alone.

What counts is not which of the two loses less, but whether the teacher knows something that the student does not. So,
for one task, the label is predicted from both logits, by a logistic regression that learns online and forgets:

    y ~ σ(a·z_S + b·z_F + c)

    share   = b·sd(z_F) / (a·sd(z_S) + b·sd(z_F))          negative a and b count as 0; b is first lowered by its
                                                           standard error
    factor  = clamp((share − LOW) / (FULL − LOW), 0, 1)

A teacher whose logits are off in scale and shift has the share of a calibrated one. One that is worse than its student,
or says the same, has a small one. b starts at 0, a at 1: a teacher is heard once it has shown something.

Each batch is one Newton step: with x = (z_S, z_F, 1), p the prediction before the step and Λ a prior,

    H ← Λ + ρ·(H − Λ) + Σ max(p(1 − p), .02)·x xᵀ          ρ halves the weight of a row in HALF_LIFE_ROWS rows
    θ ← θ − H⁻¹·(Σ (p − y)·x + (1 − ρ)·Λ(θ − θ₀))          θ = (a, b, c), θ₀ = (1, 0, 0)

B examples, T tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LOW, FULL = 0.25, 0.5
HALF_LIFE_ROWS = 10_000  # of those that have the task's label and a teacher logit
PRIOR = 5.0  # Λ = PRIOR · I: about what 50 rows say
LARGEST_LOGIT = 10.0  # what is beyond says no more
LARGEST = (3.0, 3.0, 10.0)  # |θ|: while a teacher says the same of every row, b and c are anyone's guess


class Advantage(NamedTuple):
    """Immutable: `measured` makes another one."""

    theta: Tensor  # (T, 3) float64: a, b, c
    information: Tensor  # (T, 3, 3) float64: H


def no_advantage_yet(tasks: int) -> Advantage:
    """Of T tasks, before the first row."""
    theta = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).repeat(tasks, 1)
    return Advantage(theta, _prior().repeat(tasks, 1, 1))


def measured(state: Advantage, z_S: Tensor, z_F: Tensor, labels: Tensor, mask: Tensor, weights: Tensor) -> Advantage:
    """With one more batch: logits of student and teacher (B, T) as they were before anything learned from its labels
    (B, T), over the rows of mask (B, T), weights (B,).

    Values under a False mask are not looked at. A task without rows stays as it is. The result is not checked: a caller
    that finds it not finite keeps the old one.
    """
    given = mask.T.double()  # (T, B), and all below: rows last
    z = torch.stack([z_S.T, z_F.T]).detach().double().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
    x = torch.stack([*torch.where(mask.T, z, 0.0), given], dim=1)  # (T, 3, B)
    w = torch.where(mask.T, weights, 0.0).double()
    y = torch.where(mask.T, labels.T, 0.0).double()
    rows = mask.sum(0)
    forgotten = (1 - 0.5 ** (rows.double() / HALF_LIFE_ROWS)).view(-1, 1, 1)
    prior, start = _prior(), no_advantage_yet(1).theta

    p = torch.sigmoid(torch.einsum("ti,tib->tb", state.theta, x))
    spread = (p * (1 - p)).clamp(min=0.02) * w
    H = state.information + forgotten * (prior - state.information) + (x * spread.unsqueeze(1)) @ x.mT
    g = torch.einsum("tib,tb->ti", x, (p - y) * w) + (forgotten * prior @ (state.theta - start).unsqueeze(2)).squeeze(2)
    step, _ = torch.linalg.solve_ex(H, g.unsqueeze(2))  # of what is not finite it makes what is not finite
    largest = torch.tensor(LARGEST, dtype=torch.float64)
    theta = (state.theta - step.squeeze(2)).clamp(-largest, largest)
    return Advantage(torch.where(rows.unsqueeze(1) > 0, theta, state.theta), H)


def factor(state: Advantage) -> Tensor:
    """(T,) float32 in [0, 1]; 0 for a task without rows.

    Of two teachers, one that knows the truth but says it askew, and one that says anything:

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


def share(state: Advantage) -> Tensor:
    """The teacher's part of the combined logit's spread, (T,) float64 in [0, 1]."""
    seen = state.information - _prior()
    weight = seen[:, 2, 2].clamp(min=1e-9)
    mean = seen[:, :2, 2] / weight.unsqueeze(1)
    sd = (seen.diagonal(dim1=1, dim2=2)[:, :2] / weight.unsqueeze(1) - mean.square()).clamp(min=0).sqrt()
    error = torch.linalg.inv_ex(state.information).inverse[:, 1, 1].clamp(min=0).sqrt()
    a, b = state.theta[:, 0].clamp(min=0), (state.theta[:, 1] - error).clamp(min=0)
    parts = torch.stack([a, b], dim=1) * sd
    return parts[:, 1] / parts.sum(1).clamp(min=1e-9)


def _prior() -> Tensor:
    return PRIOR * torch.eye(3, dtype=torch.float64)
