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

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.loops import loop

PRIOR = 5.0  # Λ = PRIOR · I: worth about 50 rows
LEAST_SPREAD = 0.02
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


def inputs_of(mask: Tensor, *columns: Tensor) -> Tensor:
    """x (T, P, B) float64 for `learned`, of P − 1 columns (B, T) and a 1, from rows of the mask (B, T); else 0."""
    x = torch.stack([*(column.T.double() for column in columns), torch.ones(mask.T.shape, dtype=torch.float64)], dim=1)
    return torch.where(mask.T.unsqueeze(1), x, 0.0)


def learned(
    state: Regression,
    terms: Terms,
    x: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    shift: Tensor | None = None,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Regression:
    """With one more batch: x (T, P, B) float64, labels (B, T) over the rows of mask (B, T), weights (B,), shift (T,).
    `total` sums over the ranks that have the batch together.

    x must be 0 under a False mask; labels and weights there are not looked at. A task without rows stays as it is.
    The result is not checked: a caller that finds it not finite keeps the old one.
    """
    # In NumPy: on matrices of 3 × 3, calling an operator is what takes the time, and torch's take three times as long.
    theta, shifts = state.theta.numpy(), np.zeros(len(x)) if shift is None else shift.double().numpy()
    own = np.zeros((*theta.shape, theta.shape[1] + 1))
    _add_rows(*(t.contiguous().numpy() for t in (x, labels, mask, weights)), theta, shifts, own)
    with np.errstate(all="ignore"):
        rows = total(mask.sum(0)).numpy()[:, None]
        more = total(torch.from_numpy(own)).numpy()
        forgotten = 1 - 0.5 ** (rows / terms.half_life_rows)

        H = state.information.numpy()
        H = H + forgotten[:, :, None] * (PRIOR * np.eye(theta.shape[1]) - H) + more[:, :, :-1]
        g = more[:, :, -1] + forgotten * PRIOR * (theta - np.array(terms.start))
        least, largest = np.array(terms.least), np.array(terms.largest)
        moved = np.clip(theta - _step(H, g), least, largest)
        bound = (moved == least) | (moved == largest)
        if bound.any():  # the others take the step that is right while these stay at their bounds
            given = np.where(bound, theta - moved, 0.0)
            rest = np.where(bound, 0.0, g - (H @ given[:, :, None])[:, :, 0])
            free = ~bound[:, None] & ~bound[:, :, None]
            step = _step(np.where(free, H, np.eye(H.shape[1])), rest)
            moved = np.where(bound, moved, np.clip(theta - step, least, largest))
    return Regression(torch.from_numpy(np.where(rows > 0, moved, theta)), torch.from_numpy(H))


def _step(H: np.ndarray, g: np.ndarray) -> np.ndarray:
    """H⁻¹g (T, P), no longer than LARGEST_STEP; not finite where H or g is not."""
    try:
        step = np.linalg.solve(H, g[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:
        return np.full_like(g, np.nan)
    return step * (LARGEST_STEP / np.maximum(np.abs(step).max(1, keepdims=True), LARGEST_STEP))


@loop("void(f8[:, :, ::1], f4[:, ::1], b1[:, ::1], f4[::1], f8[:, ::1], f8[::1], f8[:, :, ::1])")
def _add_rows(x_TPB, labels_BT, known_BT, weights_B, theta_TP, shift_T, found):
    """Add what a batch has of H, (T, P, P), and of the gradient, the column behind it."""
    T, P, B = x_TPB.shape
    for t in range(T):
        for b in range(B):
            if not known_BT[b, t]:
                continue
            z = shift_T[t]
            for i in range(P):
                z += theta_TP[t, i] * x_TPB[t, i, b]
            p = 1 / (1 + np.exp(-z))
            spread, slope = max(p * (1 - p), LEAST_SPREAD) * weights_B[b], (p - labels_BT[b, t]) * weights_B[b]
            for i in range(P):
                for j in range(P):
                    found[t, i, j] += x_TPB[t, i, b] * spread * x_TPB[t, j, b]
                found[t, i, P] += x_TPB[t, i, b] * slope
