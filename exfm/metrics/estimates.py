"""Estimates that carry what each independent piece adds to their error, and Student's t.

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


class Estimate(NamedTuple):
    """`clusters` (G,) and `seeds` (S,): influences; empty where there are no such pieces. A cluster that has no row has
    influence NaN, and does not count."""

    value: float
    clusters: np.ndarray
    seeds: np.ndarray

    def told(self) -> dict[str, Any]:
        """{value, se, low, high, p}; None for what is not known: with one piece there is no error."""
        terms = [_variance(pieces) for pieces in (self.clusters, self.seeds)]
        known = [(v, freedom) for v, freedom in terms if freedom > 0]
        variance = sum(v for v, _ in known)
        if not known or not np.isfinite(variance):
            return {"value": self.value, "se": None, "low": None, "high": None, "p": None}
        se = float(np.sqrt(variance))
        if variance == 0:  # the same to the last bit
            return {"value": self.value, "se": 0.0, "low": self.value, "high": self.value, "p": None}
        freedom = variance**2 / sum(v**2 / n for v, n in known)
        reach = t_975(freedom) * se
        p = two_sided_p(self.value / se, freedom)
        return {"value": self.value, "se": se, "low": self.value - reach, "high": self.value + reach, "p": p}


def _variance(pieces: np.ndarray) -> tuple[float, int]:
    pieces = pieces[~np.isnan(pieces)]
    n = len(pieces)
    return (float(n / (n - 1) * (pieces**2).sum()), n - 1) if n > 1 else (0.0, 0)


def mean_of_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one figure per seed, each of a stream of its own.

    >>> told = mean_of_seeds([1.0, 2.0, 3.0]).told()
    >>> told["value"], round(told["se"], 4), round(told["low"], 3), round(told["p"], 4)
    (2.0, 0.5774, -0.484, 0.0742)
    """
    x = np.asarray(values, dtype=np.float64)
    return Estimate(float(x.mean()), np.empty(0), (x - x.mean()) / len(x))


def quotient(numerator: Estimate, denominator: Estimate) -> Estimate | None:
    """One estimate over another of the same pieces; None where the denominator is not above 0.

    >>> half = quotient(mean_of_seeds([1.0, 2.0, 3.0]), mean_of_seeds([2.0, 4.0, 6.0]))
    >>> half.value, half.told()["se"]
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


def average(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of several estimates of the same pieces."""

    def mean(pieces: list[np.ndarray]) -> np.ndarray:
        stacked = np.stack(pieces)
        absent = np.isnan(stacked).all(0)
        return np.where(absent, np.nan, np.nansum(stacked, axis=0) / len(pieces))

    value = float(np.mean([estimate.value for estimate in estimates]))
    return Estimate(value, mean([e.clusters for e in estimates]), mean([e.seeds for e in estimates]))


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| ≥ |t|) of Student's t.

    >>> [round(two_sided_p(t, n), 4) for t, n in ((12.7062, 1), (2.5706, 5), (0.0, 3), (1.96, 1e6))]
    [0.05, 0.05, 1.0, 0.05]
    """
    return float(_incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)))


def t_975(freedom: float) -> float:
    """The 97.5 % point of Student's t.

    >>> [round(t_975(n), 3) for n in (1, 2, 4, 30, 1e6)]
    [12.706, 4.303, 2.776, 2.042, 1.96]
    """
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > 0.05:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 0.05 else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), regularised, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    from math import exp, lgamma, log, log1p

    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x >= (a + 1) / (a + b + 2):
        return 1 - front / b * _fraction(b, a, 1 - x)
    return front / a * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's evaluation: converges in some ten steps where x < (a + 1)/(a + b + 2)."""
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 1000):
        for step in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):  # fmt: skip
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value
