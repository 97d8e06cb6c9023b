"""Estimates that carry what each independent piece adds to their error.

An estimate E is a function of means, so that its error follows from the influence ψ of each piece on it (delta method).
Pieces are of two kinds: clusters of rows (users, stretches of the stream), and the seeds of the models:

    V = V_c  +  S/(S − 1) · Σ_seeds ψ_s²            E ± t_{.975, ν} · √V            V_c, ν_c: clusters.py
    ν = V² / (V_c²/ν_c + V_s²/(S − 1))                                       (Welch, Satterthwaite)

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

from exfm.metrics.clusters import Sums, variance_of


class Estimate(NamedTuple):
    """Influences of clusters, as `Clusters.sums` gives them, and of `seeds` (S,); empty where there are no such
    pieces."""

    value: float
    clusters: Sums
    seeds: np.ndarray

    @property
    def seed_sd(self) -> float | None:
        """The standard deviation of one seed's value, which the seeds' influences tell; None with fewer than two.

        >>> mean_of_seeds([1.0, 2.0, 3.0]).seed_sd
        1.0
        """
        count = len(self.seeds)
        return float(count * np.sqrt((self.seeds**2).sum() / (count - 1))) if count > 1 else None

    def summary(self) -> dict[str, Any]:
        """{value, se, low, high, p}; None where it is unknown: a single piece gives no error."""
        terms = [variance_of(self.clusters), variance_of([self.seeds])]
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


def mean_of_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one figure per seed, each of a stream of its own.

    >>> mean = mean_of_seeds([1.0, 2.0, 3.0]).summary()
    >>> mean["value"], round(mean["se"], 4), round(mean["low"], 3), round(mean["p"], 4)
    (2.0, 0.5774, -0.484, 0.0742)
    """
    x = np.asarray(values, dtype=np.float64)
    return Estimate(float(x.mean()), (), (x - x.mean()) / len(x))


def estimate_ratio(numerator: Estimate, denominator: Estimate) -> Estimate | None:
    """One estimate over another of the same pieces; None where the denominator is not above 0.

    >>> half = estimate_ratio(mean_of_seeds([1.0, 2.0, 3.0]), mean_of_seeds([2.0, 4.0, 6.0]))
    >>> half.value, half.summary()["se"]
    (0.5, 0.0)
    """
    if not denominator.value > 0:
        return None
    value = numerator.value / denominator.value

    def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
        return (above - value * below) / denominator.value

    clusters = tuple(map(ratio, numerator.clusters, denominator.clusters))
    return Estimate(value, clusters, ratio(numerator.seeds, denominator.seeds))


def average_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of several estimates of the same pieces."""

    def mean(*pieces: np.ndarray) -> np.ndarray:
        stacked = np.stack(pieces)
        absent = np.isnan(stacked).all(0)
        return np.where(absent, np.nan, np.nansum(stacked, axis=0) / len(pieces))

    value = float(np.mean([estimate.value for estimate in estimates]))
    clusters = tuple(map(mean, *(estimate.clusters for estimate in estimates)))
    return Estimate(value, clusters, mean(*(estimate.seeds for estimate in estimates)))
