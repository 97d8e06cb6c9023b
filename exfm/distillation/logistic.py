"""Logistic regression online, one per task: Newton steps that forget, with a prior.

    y ~ σ(θ·x + shift)

Each batch is one step: with p the prediction before it and Λ = PRIOR · I,

    H ← Λ + ρ·(H − Λ) + Σ max(p(1 − p), .02)·x xᵀ          ρ halves the weight of a row in `half_life_rows` rows
    θ ← θ − H⁻¹·(Σ (p − y)·x + (1 − ρ)·Λ(θ − θ₀))          a step no longer than LARGEST_STEP, θ within bounds

There is no learning rate to tune: the regression is fast while little is known and steady when much is, for rare and
frequent labels alike. A gradient method on the same few weights is one or the other.

B examples, T tasks, P weights of a task.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PRIOR = 5.0  # Λ = PRIOR · I: worth about 50 rows
LARGEST_STEP = (
    1.0  # of any weight in a batch; far from the optimum p(1 − p) misjudges the distance, so it takes several batches
)


class Regression(NamedTuple):
    """The whole state of the regressions. Immutable: `learned` returns a new one."""

    theta: Tensor  # (T, P) float64
    information: Tensor  # (T, P, P) float64: H


class Terms(NamedTuple):
    """What stays the same from batch to batch: start, bounds and forgetting."""

    start: tuple[float, ...]  # θ₀, P numbers: where it starts, and what the prior pulls towards
    least: tuple[float, ...]  # bounds of θ, P numbers each
    largest: tuple[float, ...]
    half_life_rows: int  # of the rows that it learns from


def initial(terms: Terms, tasks: int) -> Regression:
    """The regressions of T tasks before the first row."""
    theta = torch.tensor([terms.start], dtype=torch.float64).repeat(tasks, 1)
    return Regression(theta, prior(len(terms.start)).repeat(tasks, 1, 1))


def prior(weights: int) -> Tensor:
    """Λ, (P, P) float64."""
    return PRIOR * torch.eye(weights, dtype=torch.float64)


def learned(
    state: Regression,
    terms: Terms,
    x: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    shift: Tensor | None = None,
) -> Regression:
    """With one more batch: x (T, P, B) float64, labels (B, T) over the rows of mask (B, T), weights (B,), shift (T,).

    x must be 0 under a False mask; labels and weights there are not looked at. A task without rows stays as it is.
    The result is not checked: a caller that finds it not finite keeps the old one.
    """
    w = torch.where(mask.T, weights, 0.0).double()
    y = torch.where(mask.T, labels.T, 0.0).double()
    rows = mask.sum(0)
    forgotten = (1 - 0.5 ** (rows.double() / terms.half_life_rows)).view(-1, 1, 1)
    ridge, start = prior(x.shape[1]), torch.tensor([terms.start], dtype=torch.float64)

    z = torch.einsum("ti,tib->tb", state.theta, x)
    p = torch.sigmoid(z if shift is None else z + shift.double().unsqueeze(1))
    spread = (p * (1 - p)).clamp(min=0.02) * w
    H = state.information + forgotten * (ridge - state.information) + (x * spread.unsqueeze(1)) @ x.mT
    g = torch.einsum("tib,tb->ti", x, (p - y) * w) + (forgotten * ridge @ (state.theta - start).unsqueeze(2)).squeeze(2)
    least, largest = torch.tensor([terms.least, terms.largest], dtype=torch.float64)
    theta = (state.theta - _step(H, g)).clamp(least, largest)
    bound = (theta == least) | (theta == largest)
    if bound.any():  # the others take the step that is right while these stay at their bounds
        moved = torch.where(bound, state.theta - theta, 0.0)
        rest = torch.where(bound, 0.0, g - (H @ moved.unsqueeze(2)).squeeze(2))
        free = ~bound.unsqueeze(1) & ~bound.unsqueeze(2)
        step = _step(torch.where(free, H, torch.eye(H.shape[1], dtype=H.dtype)), rest)
        theta = torch.where(bound, theta, (state.theta - step).clamp(least, largest))
    return Regression(torch.where(rows.unsqueeze(1) > 0, theta, state.theta), H)


def _step(H: Tensor, g: Tensor) -> Tensor:
    """H⁻¹g (T, P), no longer than LARGEST_STEP; not finite where H or g is not."""
    step = torch.linalg.solve_ex(H, g.unsqueeze(2))[0].squeeze(2)
    return step * (LARGEST_STEP / step.abs().amax(1, keepdim=True).clamp(min=LARGEST_STEP))
