"""Logistic regression online, one per task: Newton steps that forget, with a prior.

    y ~ σ(θ·x + shift)

Each batch is one step: with p the prediction before it and Λ = PRIOR · I,

    H ← Λ + ρ·(H − Λ) + Σ max(p(1 − p), s)·x xᵀ            ρ halves the weight of a row in `half_life_rows` rows
    θ ← θ − H⁻¹·(Σ (p − y)·x + (1 − ρ)·Λ(θ − θ₀))          a step no longer than LARGEST_STEP, θ within bounds

s is `least_spread`. One step judges its rows by a θ that may be far off; with `iterations` it is taken again from where
it led, and θ moves to the optimum of the batch's rows and of what H remembers (the iterated update of an extended
Kalman filter):

    θ_k+1 = θ_k − H_k⁻¹·(Σ (p_k − y)·x + (1 − ρ)·Λ(θ − θ₀) + (H_k − Σ …)(θ_k − θ))

There is no learning rate to tune: the regression is fast while little is known and steady when much is, for rare and
frequent labels alike. A gradient method on the same few weights is one or the other.

B examples, T tasks, R regressions, P weights of a regression.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exfm.kernels.loops import inlined, loop

PRIOR = 5.0  # Λ = PRIOR · I: worth about 50 rows
LARGEST_STEP = 1.0
"""Of any weight in a batch: far from the optimum p(1 − p) misjudges the distance, so it takes several batches."""


class Regression(NamedTuple):
    """The whole state of the regressions. Immutable: `learned` returns a new one."""

    theta: Tensor  # (R, P) float64
    information: Tensor  # (R, P, P) float64: H


class RegressionSettings(NamedTuple):
    """Settings of the regressions: start, bounds, forgetting, and the least spread of a label.

    Inputs that may be far off in scale need a least spread, or a step goes too far where p is near 0 or 1. Without one
    a regression is as fast for rare labels as for others.
    """

    start: tuple[float, ...]  # θ₀, P numbers: where it starts, and what the prior pulls towards
    least: tuple[float, ...]  # bounds of θ, P numbers each
    largest: tuple[float, ...]
    half_life_rows: int  # of the rows that it learns from
    largest_input: float = np.inf  # inputs are cut off at ± this
    least_spread: float = 0.02
    iterations: int = 1  # of a batch's step


def initial(terms: RegressionSettings, regressions: int) -> Regression:
    """The regressions before the first row."""
    theta = torch.tensor([terms.start], dtype=torch.float64).repeat(regressions, 1)
    return Regression(theta, prior(len(terms.start)).repeat(regressions, 1, 1))


def prior(weights: int) -> Tensor:
    """Λ, (P, P) float64."""
    return PRIOR * torch.eye(weights, dtype=torch.float64)


def learned(
    state: Regression,
    terms: RegressionSettings,
    inputs: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    shift: Tensor | None = None,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Regression:
    """Update the regressions by one batch: inputs (B, P − 1, R), to which a 1 is appended, labels (B, T) over the rows
    of mask (B, T), weights (B,), shift (R,). R is a multiple of T: regression r learns the labels of task r mod T.
    `total` sums over the ranks that have the batch together.

    Inputs, labels and weights under a False mask are not looked at. A regression without rows stays as it is. The
    result is not checked: a caller that finds it not finite keeps the old one.
    """
    theta = state.theta.numpy()
    R, P = theta.shape
    shifts = np.zeros(R) if shift is None else shift.double().numpy()
    rows = (inputs.double().numpy(), labels.numpy(), mask.numpy(), weights.numpy())
    H, now = state.information.numpy(), theta
    for _ in range(terms.iterations):
        added = np.zeros((R, P, P + 2))
        _add_rows(*rows, now, shifts, terms.largest_input, terms.least_spread, added)
        sums, after = total(torch.from_numpy(added)).numpy(), (np.empty_like(theta), np.empty_like(H))
        _step(theta, now, H, sums, *_arrays(terms), terms.half_life_rows, *after)
        now = after[0]
    return Regression(*map(torch.from_numpy, after))


@lru_cache
def _arrays(terms: RegressionSettings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """θ₀ and its bounds, (P,) each."""
    return np.array(terms.start), np.array(terms.least), np.array(terms.largest)


@inlined
def _within(value, least, largest):
    """Clip to a range; NaN stays NaN."""
    return least if value < least else largest if value > largest else value


@loop("void(f8[:, :, :], f4[:, :], b1[:, :], f4[:], f8[:, ::1], f8[::1], f8, f8, f8[:, :, ::1])")
def _add_rows(x_BNR, labels_BT, known_BT, weights_B, theta_RP, shift_R, largest, least_spread, sums):
    """Add what a batch has of H, (R, P, P), of the gradient, the column behind it, and the number of rows, first in the
    last column."""
    (B, N, R), T = x_BNR.shape, labels_BT.shape[1]
    x = np.ones(N + 1)
    for r in range(R):
        t, rows = r % T, 0
        for b in range(B):
            if not known_BT[b, t]:
                continue
            rows += 1
            z = shift_R[r]
            for i in range(N):
                x[i] = _within(x_BNR[b, i, r], -largest, largest)
            for i in range(N + 1):
                z += theta_RP[r, i] * x[i]
            p = 1 / (1 + np.exp(-z))
            spread, slope = max(p * (1 - p), least_spread) * weights_B[b], (p - labels_BT[b, t]) * weights_B[b]
            for i in range(N + 1):
                for j in range(N + 1):
                    sums[r, i, j] += x[i] * spread * x[j]
                sums[r, i, N + 1] += x[i] * slope
        sums[r, 0, N + 2] = rows


@inlined
def _solve(H, g, free, L, step):
    """H⁻¹g (P,), no longer than LARGEST_STEP, of the free weights; 0 of the others. By Cholesky: H = L Lᵀ."""
    P, longest = len(g), LARGEST_STEP
    for i in range(P):
        step[i] = 0.0
        if not free[i]:
            continue
        y = g[i]
        for j in range(i + 1):
            if free[j]:
                h = H[i, j]
                for k in range(j):
                    if free[k]:
                        h -= L[i, k] * L[j, k]
                if i == j:
                    L[i, i] = np.sqrt(h)
                else:
                    L[i, j] = h / L[j, j]
                    y -= L[i, j] * step[j]
        step[i] = y / L[i, i]
    for i in range(P - 1, -1, -1):
        if free[i]:
            for k in range(i + 1, P):
                if free[k]:
                    step[i] -= L[k, i] * step[k]
            step[i] /= L[i, i]
            longest = max(longest, abs(step[i]))
    for i in range(P):
        step[i] = step[i] / longest * LARGEST_STEP


@loop(
    "void(f8[:, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, :, ::1], f8[::1], f8[::1], f8[::1], f8,"
    " f8[:, ::1], f8[:, :, ::1])"
)
def _step(before_RP, now_RP, H_RPP, sums, start, least, largest, half_life, moved_RP, H_after):
    R, P = now_RP.shape
    g, rest, step, free, L = np.empty(P), np.empty(P), np.empty(P), np.empty(P, np.bool_), np.empty((P, P))
    for r in range(R):
        before, theta, moved, H, rows = before_RP[r], now_RP[r], moved_RP[r], H_after[r], sums[r, 0, P + 1]
        forgotten = 1 - 0.5 ** (rows / half_life)
        for i in range(P):
            g[i] = sums[r, i, P] + forgotten * PRIOR * (before[i] - start[i])
            for j in range(P):
                pulled = (PRIOR if i == j else 0.0) - H_RPP[r, i, j]
                remembered = H_RPP[r, i, j] + forgotten * pulled
                H[i, j] = remembered + sums[r, i, j]
                g[i] += remembered * (theta[j] - before[j])
            free[i] = True
            moved[i] = theta[i]
        if not rows > 0:
            continue
        _solve(H, g, free, L, step)
        bound = False
        for i in range(P):
            moved[i] = _within(theta[i] - step[i], least[i], largest[i])
            free[i] = moved[i] != least[i] and moved[i] != largest[i]
            bound |= not free[i]
        if not bound:
            continue
        for i in range(P):  # the others take the step that is right while these stay at their bounds
            rest[i] = g[i]
            for j in range(P):
                if not free[j]:
                    rest[i] -= H[i, j] * (theta[j] - moved[j])
        _solve(H, rest, free, L, step)
        for i in range(P):
            if free[i]:
                moved[i] = _within(theta[i] - step[i], least[i], largest[i])
