"""Reliability: compares predicted probabilities with observed rates.

    Brier   B = Σ w (p − y)² / Σ w                    bounded, unlike log-loss: one bold mistake costs 1 at most
    ECE     Σ_b W_b |ȳ_b − p̄_b| / Σ W_b               over bins b of rows with similar p
    clipped log-loss   of logits within ±z; what lies beyond is counted, and so is the loss that was cut off

Bins hold equally many rows, or are equally wide in p. The band of a bin is a 95 % interval of its observed rate:
Wilson's, with (Σ w)² / Σ w² rows, or, where clusters are given and enough of them have a positive, from the residuals
y − p summed by cluster (clusters.py), as rows of one user are not independent.

Columns are numpy, of one length N: logits z, labels y in {0, 1}, weights ≥ 0 (1 each where left out).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from exfm.errors import ConfigError
from exfm.metrics.classification import cross_entropy, sigmoid
from exfm.metrics.clusters import Clusters, variance_of
from exfm.metrics.limits import MIN_CLUSTERS

NORMAL = 1.959963984540054
"""The .975 quantile of a normal distribution."""

LONGEST_LOGIT = float(np.log((1 - 1e-6) / 1e-6))
"""Logits are clipped here by default: probabilities of 1e-6 and 1 − 1e-6."""


class Bin(NamedTuple):
    """Rows whose probabilities lie within `above` and `upto`. `low` and `high`: the band of `observed`."""

    above: float
    upto: float
    rows: int
    weight: float
    predicted: float
    observed: float
    low: float
    high: float


class ClippedLoss(NamedTuple):
    """`value` in nats per row, `share` of the weight whose logits were clipped, `cut` nats per row that this took."""

    value: float | None
    share: float
    cut: float


def brier(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Weighted mean of (p − y)²; None without weight.

    >>> brier(np.zeros(2), np.array([0, 1])), brier(np.array([100.0, 100.0]), np.array([1, 0]), np.array([3, 1]))
    (0.25, 0.25)
    """
    w = _weights(weights, len(labels))
    total = float(w.sum())
    return float((w * (sigmoid(logits) - labels) ** 2).sum()) / total if total > 0 else None


def clipped_log_loss(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, limit: float = LONGEST_LOGIT
) -> ClippedLoss:
    """Log-loss of logits within ±`limit`.

    >>> found = clipped_log_loss(np.array([0.0, 20.0, 20.0, 0.0]), np.array([1, 0, 1, 0]), limit=10.0)
    >>> round(found.value, 4), found.share, round(found.cut, 4)
    (2.8466, 0.5, 2.5)
    """
    w = _weights(weights, len(labels))
    total = float(w.sum())
    if not total > 0:
        return ClippedLoss(None, 0.0, 0.0)
    z = np.asarray(logits, dtype=np.float64)
    own = float((w * cross_entropy(z, labels)).sum()) / total
    clipped = float((w * cross_entropy(np.clip(z, -limit, limit), labels)).sum()) / total
    return ClippedLoss(clipped, float(w[np.abs(z) > limit].sum()) / total, own - clipped)


def reliability_bins(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    bins: int = 10,
    by: Literal["quantile", "width"] = "quantile",
    clusters: Clusters | None = None,
) -> list[Bin]:
    """The bins that have rows, from low to high probabilities. Raises ConfigError for less than one bin.

    >>> z = np.log(np.array([0.2, 0.2, 0.2, 0.2, 0.6, 0.6]) / np.array([0.8, 0.8, 0.8, 0.8, 0.4, 0.4]))
    >>> low, high = reliability_bins(z, np.array([0, 0, 0, 1, 1, 1]), bins=2, by="width")
    >>> low.rows, round(low.predicted, 6), low.observed, high.rows, round(high.predicted, 6), high.observed
    (4, 0.2, 0.25, 2, 0.6, 1.0)
    >>> round(high.low, 3), high.high  # Wilson: 2 of 2
    (0.342, 1.0)
    """
    if bins < 1:
        raise ConfigError(f"{bins} bins hold no row; give 1 or more")
    p, y = sigmoid(logits), np.asarray(labels, dtype=np.float64)
    w = _weights(weights, len(y))
    used = w > 0
    if not used.any():
        return []
    edges = _edges(p[used], None if weights is None else w[used], bins, by)
    place = np.searchsorted(edges[1:-1], p)
    filled_bins = []
    for number in np.unique(place[used]):
        at = (place == number) & used
        filled_bins.append(_bin(p[at], y[at], w[at], edges[number : number + 2], clusters and clusters.take(at)))
    return filled_bins


def expected_calibration_error(bins: list[Bin]) -> float | None:
    """Σ W |ȳ − p̄| / Σ W; None without bins.

    >>> expected_calibration_error([Bin(0, 0.5, 3, 3.0, 0.25, 0.5, 0, 1), Bin(0.5, 1, 1, 1.0, 0.75, 0.5, 0, 1)])
    0.25
    """
    total = sum(each.weight for each in bins)
    return sum(each.weight * abs(each.observed - each.predicted) for each in bins) / total if total else None


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate seen in `count` rows.

    >>> [round(x, 3) for x in wilson(0.5, 10)], [round(x, 3) for x in wilson(0.0, 10)]
    ([0.237, 0.763], [0.0, 0.278])
    """
    square = NORMAL**2 / count
    centre = (rate + square / 2) / (1 + square)
    reach = NORMAL * float(np.sqrt(rate * (1 - rate) / count + square / (4 * count))) / (1 + square)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def _edges(p: np.ndarray, weights: np.ndarray | None, bins: int, by: str) -> np.ndarray:
    shares = np.linspace(0, 1, bins + 1)
    if by == "width":
        return shares
    if weights is None:
        return np.asarray(np.quantile(p, shares))
    return np.asarray(np.quantile(p, shares, weights=weights, method="inverted_cdf"))


def _bin(p: np.ndarray, y: np.ndarray, w: np.ndarray, edges: np.ndarray, clusters: Clusters | None) -> Bin:
    total = float(w.sum())
    predicted, observed = float((w * p).sum()) / total, float((w * y).sum()) / total
    low, high = wilson(observed, total**2 / float((w**2).sum()))
    if clusters is not None and clusters.fewest(y > 0) >= MIN_CLUSTERS:
        residual = y - p
        reach = variance_of(clusters.sums(w * (residual - (observed - predicted)) / total)).reach
        low, high = max(0.0, observed - reach), min(1.0, observed + reach)
    return Bin(float(edges[0]), float(edges[1]), len(y), total, predicted, observed, low, high)


def _weights(weights: np.ndarray | None, rows: int) -> np.ndarray:
    return np.ones(rows) if weights is None else np.asarray(weights, dtype=np.float64)
