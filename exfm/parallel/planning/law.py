"""Scaling law of normalised entropy in FLOPs: a power law and its logarithmic limit, with intervals.

    NE(C) = a + b · C^−α                a: what no size removes, on these rows
    NE(C) = c − s · log₄ C              α → 0; s: gained by four times the FLOPs

C are FLOPs per example over their geometric mean. For a given α the first is a straight line in C^−α: α is searched, a
and b follow by least squares. The second has a slope wherever there are three sizes; how much of its fall is left is
what α says, and a few sizes over a small range cannot tell: then it is "not determined", with the reason.

Intervals (95 %) by bootstrap: each replicate takes the law fitted, adds what drawing blocks of consecutive rows anew
does to all models' NE together (they are judged on the same rows), and a residual for each model, its variance drawn
from RSS / χ² with the degrees of freedom left over. So few sizes, sizes off the curve, and few rows all widen them.
What another seed would give is in them only as far as it makes models stray from the curve.

M models, G blocks, R replicates, A exponents tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exfm.metrics.classification import cross_entropy

EXPONENTS = np.geomspace(0.01, 5.0, 249)  # smaller ones look like log C, larger ones like a single step
REPLICATES = 2000


class Interval(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class PowerLaw(NamedTuple):
    """`b` is of C over its geometric mean `scale`: NE(C) = a + b · (C / scale)^−α."""

    a: float
    b: float
    alpha: Interval
    scale: float


class ScalingLaw(NamedTuple):
    """Result of a fit. `power` is None where α is not determined; `reason` then says why.

    gain_per_4x: NE that four times the FLOPs take away, in percent of the mean NE; None with fewer than 3 sizes.
    """

    gain_per_4x: Interval | None
    power: PowerLaw | None
    reason: str | None


class LossBlocks(NamedTuple):
    """Sums over blocks of consecutive rows: of losses by model (M, G), rows and positives (G,), all weighted."""

    losses: np.ndarray
    rows: np.ndarray
    positives: np.ndarray

    def ne(self, weights_RG: np.ndarray) -> np.ndarray:
        """NE of every model with block g counted `weights_RG[r, g]` times: (R, M)."""
        rows = weights_RG @ self.rows
        rate = weights_RG @ self.positives / rows
        entropy = -rate * np.log(rate) - (1 - rate) * np.log1p(-rate)
        return weights_RG @ self.losses.T / (rows * entropy)[:, None]


def loss_blocks(
    logits_MN: np.ndarray, labels_N: np.ndarray, block_rows: int, weights_N: np.ndarray | None = None
) -> LossBlocks:
    """Rows in their order, cut into blocks of `block_rows`; the last one may be short."""
    starts = np.arange(0, len(labels_N), block_rows)
    labels = np.asarray(labels_N, dtype=np.float64)
    w = np.ones_like(labels) if weights_N is None else np.asarray(weights_N, dtype=np.float64)
    losses = np.stack([np.add.reduceat(w * cross_entropy(z, labels), starts) for z in logits_MN])
    return LossBlocks(losses, np.add.reduceat(w, starts), np.add.reduceat(w * labels, starts))


def fit_scaling_law(
    flops_M: Sequence[float], blocks: LossBlocks, *, replicates: int = REPLICATES, seed: int = 0
) -> ScalingLaw:
    """The law of M models by FLOPs per example. Several models may have one size, with different seeds.

    >>> flops = np.array([1.0, 4.0, 16.0, 64.0])
    >>> rows, positives = np.full(50, 1000.0), np.full(50, 500.0)
    >>> ne = 0.7 + 0.1 * flops**-0.5
    >>> law = fit_scaling_law(flops, LossBlocks(np.outer(ne, rows * np.log(2)), rows, positives))
    >>> round(law.power.alpha.value, 2), round(law.power.a, 3)
    (0.5, 0.7)
    """
    C = np.asarray(flops_M, dtype=np.float64)
    sizes = len(np.unique(C))
    if sizes < 3:
        return ScalingLaw(
            None, None, f"{sizes} sizes leave nothing over to judge a law by; train 3 or more, 4 for an exponent"
        )
    rng = np.random.default_rng(seed)
    scale = float(np.exp(np.log(C).mean()))
    G = len(blocks.rows)
    ne_M = blocks.ne(np.ones((1, G)))[0]
    drawn_RM = blocks.ne(rng.multinomial(G, np.full(G, 1 / G), size=replicates).astype(np.float64)) - ne_M

    fitted, slope, rss = _line(-np.log(C / scale) / np.log(4), ne_M)
    y_RM = fitted + drawn_RM + _residuals(rng, rss, len(C) - 2, drawn_RM.shape)
    slopes = _line(-np.log(C / scale) / np.log(4), y_RM)[1]
    percent = 100 / ne_M.mean()
    gain = Interval(float(slope * percent), *(np.percentile(slopes, [2.5, 97.5]) * percent).tolist())
    if sizes < 4:
        return ScalingLaw(gain, None, f"{sizes} sizes fix the three numbers of a power law exactly; train 4 or more")

    best = _exponents(C / scale, ne_M[None])[0]
    if np.isnan(best):
        return ScalingLaw(gain, None, "larger is not better here: NE does not fall with FLOPs")
    fitted, b, rss = _line((C / scale) ** -best, ne_M)
    y_RM = fitted + drawn_RM + _residuals(rng, rss, len(C) - 3, drawn_RM.shape)
    found_R = np.nan_to_num(_exponents(C / scale, y_RM), nan=0.0)  # no gain at all: flatter than any exponent
    low, high = np.percentile(found_R, [2.5, 97.5])
    reason = _not_determined(float(best), float(low), float(high), C)
    if reason is not None:
        return ScalingLaw(gain, None, reason)
    a = float(ne_M.mean() - b * ((C / scale) ** -best).mean())
    return ScalingLaw(gain, PowerLaw(a, float(b), Interval(float(best), float(low), float(high)), scale), None)


def _line(x_M: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares of y (…, M) on x: what it gives (…, M), its slope and its RSS (…)."""
    x = x_M - x_M.mean()
    centred = y - y.mean(-1, keepdims=True)
    slope = centred @ x / (x @ x)
    fitted = y.mean(-1, keepdims=True) + slope[..., None] * x
    return fitted, slope, ((y - fitted) ** 2).sum(-1)


def _exponents(C_M: np.ndarray, y_RM: np.ndarray) -> np.ndarray:
    """The exponent that fits each replicate best among those under which NE falls: (R,), NaN where there is none."""
    rss_AR = np.empty((len(EXPONENTS), len(y_RM)))
    for i, alpha in enumerate(EXPONENTS):
        _, slope, rss = _line(C_M**-alpha, y_RM)
        rss_AR[i] = np.where(slope > 0, rss, np.inf)
    best = EXPONENTS[rss_AR.argmin(0)]
    return np.where(np.isinf(rss_AR.min(0)), np.nan, best)


def _residuals(rng: np.random.Generator, rss: np.ndarray, freedom: int, shape: tuple[int, int]) -> np.ndarray:
    spread_R = np.sqrt(rss / rng.chisquare(freedom, shape[0]))
    return spread_R[:, None] * rng.standard_normal(shape)


def _not_determined(best: float, low: float, high: float, C: np.ndarray) -> str | None:
    lowest, highest = EXPONENTS[0], EXPONENTS[-1]
    range_ = f"{len(np.unique(C))} sizes over a factor of {C.max() / C.min():.3g} in FLOPs"
    if low <= lowest < highest <= high:
        return f"any exponent fits: {range_} say nothing of the curve's form"
    if low <= lowest or best <= lowest:
        return f"the interval of α reaches 0, where NE falls with log C without end: {range_} cannot tell"
    if high >= highest or best >= highest:
        return f"the interval of α has no upper end: {range_} fall as if by one step"
    return None
