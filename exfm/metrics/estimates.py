"""Estimates that carry what each independent piece adds to their error.

An estimate E is a function of means, so that its error follows from the influence ψ of each piece on it (delta method).
Pieces are of two kinds: clusters of rows (users, stretches of the stream), and the seeds of the models:

    V = G/(G − 1) · Σ_clusters ψ_c²  +  S/(S − 1) · Σ_seeds ψ_s²            E ± t_{.975, ν} · √V
    ν = V² / (V_c²/(G − 1) + V_s²/(S − 1))                                   (Welch, Satterthwaite)

Where every seed has a stream of its own, seeds alone are the pieces, and with ψ_s = (x_s − x̄)/S this is the usual
standard error of a mean, sd/√S, with S − 1 degrees of freedom. Where all seeds share one recorded stream, the rows are
of one draw and the seeds of S: both terms are there.

Estimates of the same pieces can be averaged: their influences are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit


class Estimate(NamedTuple):
    """`clusters` (G,) and `seeds` (S,): influences; empty where there are no such pieces. A cluster that has no row has
    influence NaN, and does not count."""

    value: float
    clusters: np.ndarray
    seeds: np.ndarray

    def summary(self) -> dict[str, Any]:
        """{value, se, low, high, p}; None where it is unknown: a single piece gives no error."""
        terms = [_variance(pieces) for pieces in (self.clusters, self.seeds)]
        known = [(v, freedom) for v, freedom in terms if freedom > 0]
        variance = sum(v for v, _ in known)
        if not known or not np.isfinite(variance):
            return {"value": self.value, "se": None, "low": None, "high": None, "p": None}
        se = float(np.sqrt(variance))
        if variance == 0:  # the same to the last bit
            return {"value": self.value, "se": 0.0, "low": self.value, "high": self.value, "p": None}
        freedom = variance**2 / sum(v**2 / n for v, n in known)
        reach = float(stdtrit(freedom, 0.975)) * se
        p = float(2 * stdtr(freedom, -abs(self.value / se)))  # P(|T| ≥ |t|)
        return {"value": self.value, "se": se, "low": self.value - reach, "high": self.value + reach, "p": p}


def _variance(pieces: np.ndarray) -> tuple[float, int]:
    pieces = pieces[~np.isnan(pieces)]
    n = len(pieces)
    return (float(n / (n - 1) * (pieces**2).sum()), n - 1) if n > 1 else (0.0, 0)


def mean_of_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one figure per seed, each of a stream of its own.

    >>> mean = mean_of_seeds([1.0, 2.0, 3.0]).summary()
    >>> mean["value"], round(mean["se"], 4), round(mean["low"], 3), round(mean["p"], 4)
    (2.0, 0.5774, -0.484, 0.0742)
    """
    x = np.asarray(values, dtype=np.float64)
    return Estimate(float(x.mean()), np.empty(0), (x - x.mean()) / len(x))


def estimate_ratio(numerator: Estimate, denominator: Estimate) -> Estimate | None:
    """One estimate over another of the same pieces; None where the denominator is not above 0.

    >>> half = estimate_ratio(mean_of_seeds([1.0, 2.0, 3.0]), mean_of_seeds([2.0, 4.0, 6.0]))
    >>> half.value, half.summary()["se"]
    (0.5, 0.0)
    """
    if not denominator.value > 0:
        return None
    value = numerator.value / denominator.value
    clusters, seeds = (
        (n - value * d) / denominator.value
        for n, d in ((numerator.clusters, denominator.clusters), (numerator.seeds, denominator.seeds))
    )
    return Estimate(value, clusters, seeds)


def average_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of several estimates of the same pieces."""

    def mean(pieces: list[np.ndarray]) -> np.ndarray:
        stacked = np.stack(pieces)
        absent = np.isnan(stacked).all(0)
        return np.where(absent, np.nan, np.nansum(stacked, axis=0) / len(pieces))

    value = float(np.mean([estimate.value for estimate in estimates]))
    return Estimate(value, mean([e.clusters for e in estimates]), mean([e.seeds for e in estimates]))
