"""The regressions' loops against NumPy: Newton steps with a prior, forgetting and bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.distillation.regression import (
    LARGEST_STEP,
    PRIOR,
    Regression,
    RegressionSettings,
    initial,
    learned,
)

ROWS, N = 200, 2
TERMS = RegressionSettings(start=(1.0, 0.0, 0.0), least=(0.0, -0.2, -3.0), largest=(1.2, 0.5, 3.0), half_life_rows=300)


def by_numpy(theta, H, x, y, weights, shift):
    """θ (P,) and H (P, P) of one regression after rows x (B, P), y (B,)."""
    start, least, largest = (np.array(of) for of in TERMS[:3])
    p = 1 / (1 + np.exp(-(x @ theta + shift)))
    forgotten = 1 - 0.5 ** (len(y) / TERMS.half_life_rows)
    H = H + forgotten * (PRIOR * np.eye(len(H)) - H) + (x.T * np.maximum(p * (1 - p), TERMS.least_spread) * weights) @ x
    g = x.T @ ((p - y) * weights) + forgotten * PRIOR * (theta - start)

    def step(of, H, g):
        s = np.zeros(len(theta))
        s[of] = np.linalg.solve(H[np.ix_(of, of)], g[of])
        return s / max(LARGEST_STEP, np.abs(s).max(initial=0)) * LARGEST_STEP

    moved = np.clip(theta - step(np.arange(len(theta)), H, g), least, largest)
    at = (moved == least) | (moved == largest)
    if at.any():
        given = np.where(at, theta - moved, 0.0)
        moved = np.where(at, moved, np.clip(theta - step(np.flatnonzero(~at), H, g - H @ given), least, largest))
    return moved, H


@pytest.mark.parametrize("seed", range(6))
def test_a_step_is_newtons_within_bounds(seed):
    """Two tasks, two regressions of each; some batches push a weight against its bound."""
    rng = np.random.default_rng(seed)
    state, bound = initial(TERMS, 4), 0
    for _ in range(8):
        x, y = 3 * rng.normal(size=(ROWS, N, 4)), (rng.random((ROWS, 2)) < 0.3).astype(np.float32)
        known, w, shift = rng.random((ROWS, 2)) < 0.8, rng.random(ROWS).astype(np.float32), rng.normal(size=4)
        given = (torch.from_numpy(a) for a in (x, y, known, w, shift))
        after = learned(state, TERMS, *given)
        for r in range(4):
            rows = known[:, r % 2]
            inputs = np.concatenate([x[rows, :, r], np.ones((rows.sum(), 1))], axis=1)
            before = (state.theta[r].numpy(), state.information[r].numpy())
            theta, H = by_numpy(*before, inputs, y[rows, r % 2], w[rows], shift[r])
            np.testing.assert_allclose(after.theta[r], theta, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(after.information[r], H, rtol=1e-12)
            bound += int(np.isin(theta, (TERMS.least, TERMS.largest)).any())
        state = after
    assert bound > 8


def test_sums_of_two_ranks_make_the_step_of_one():
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(ROWS, N, 1))), torch.from_numpy(rng.random((ROWS, 1)) < 0.3).float()
    known, w = torch.ones(ROWS, 1, dtype=torch.bool), torch.ones(ROWS)
    state, parts = initial(TERMS, 1), []
    for rows in (slice(0, 80), slice(80, ROWS)):
        learned(state, TERMS, x[rows], y[rows], known[rows], w[rows], total=lambda sums: parts.append(sums) or sums)
    none = slice(0, 0)
    given = (x[none], y[none], known[none], w[none])
    together = learned(state, TERMS, *given, total=lambda _: parts[0] + parts[1])
    alone = learned(state, TERMS, x, y, known, w)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(together, alone, strict=True))


def test_what_is_no_number_or_not_positive_shows_in_the_result():
    known, w, y = torch.ones(4, 1, dtype=torch.bool), torch.ones(4), torch.zeros(4, 1)
    state, x = initial(TERMS, 1), torch.ones(4, N, 1)
    for broken in (torch.nan, torch.inf):
        assert not all(t.isfinite().all() for t in learned(state, TERMS, x, y, known, w * broken))
        assert not all(t.isfinite().all() for t in learned(state, TERMS, x, y + broken, known, w))
    negative = Regression(state.theta, -state.information)
    assert not learned(negative, TERMS, x, y, known, w).theta.isfinite().all()


def test_with_iterations_a_few_batches_lead_from_far_away_to_the_optimum():
    """A teacher that says 1.5·z − 1 of rare labels: p(1 − p) where θ begins is a fifth of what it is where it ends."""
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(40_000, 1, generator=generator) - 3.5
    y, x = torch.bernoulli(torch.sigmoid(truth), generator=generator), 1.5 * truth - 1
    known, weights = torch.ones_like(y, dtype=torch.bool), torch.ones(len(y))
    terms = RegressionSettings((1.0, 0.0), (0.0, -10.0), (3.0, 10.0), half_life_rows=10_000)
    loss, excess = torch.nn.functional.binary_cross_entropy_with_logits, {}
    for n in (1, 3):
        state = initial(terms, 1)
        for rows in torch.arange(1000).split(250):
            given = (x[rows].unsqueeze(1), y[rows], known[rows], weights[rows])
            state = learned(state, terms._replace(iterations=n), *given)
        a, b = state.theta[0].float()
        excess[n] = float(loss(a * x + b, y) / loss(truth, y)) - 1
    assert excess[3] < 0.005 < 0.01 < excess[1]
