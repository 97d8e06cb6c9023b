"""Estimates with the contribution of each independent cluster and seed to their error.

An estimate E is a function of means, so that its error follows from the influence ψ of each piece on it (delta method).
Pieces are of two kinds: clusters c of rows (users, stretches of the stream), and the S seeds s of the models.

Where every seed has a stream of its own, seeds alone are the pieces, and with ψ_s = (x_s − x̄)/S

    V = V_s = S/(S − 1) · Σ_s ψ_s²        S − 1 degrees of freedom: the usual standard error of a mean, sd/√S

Where all seeds share one recorded stream, what one seed gains is x_s = μ + R + A_s + I_s: the rows' draw R is common to
all seeds, A_s is the seed's own, on whatever rows, and I_s is of this seed on these rows, as which users it happens to
err on. Of the mean over seeds:

    V_c = V(Σ_s ψ_sc / S)                          clusters of rows (clusters.py)      var R         + var I / S
    V_s                                            spread over seeds                           var A / S + var I / S
    V_× = V(χ) / S,  χ_c = Σ_s e^{2πis/S} ψ_sc / √S    what both count                               var I / S
    V   = max(V_c + V_s − V_×, V_c, V_s)                                               var R + var A / S + var I / S

χ is a contrast: its factors sum to 0, so that R cancels, and all are of one size, so that every seed counts alike. It
is the estimator of several ways of clustering (Cameron, Gelbach & Miller 2011) in the form of the analysis of variance
of a crossed layout with random effects (Searle, Casella & McCulloch, Variance Components, 1992, ch. 4), which does not
lose 1/S of var R, as crossing clusters with seeds would. Added without V_×, intervals of 95 % hold the truth in 99 of
100 where var I is most of all, as it is for models that differ by their seed alone.

    E ± t_{.975, ν} · √V        ν = V² / (V_c²/ν_c + (V_s − V_×/4)²/(S − 1)) where V > V_c, else ν_c

Seeds' few degrees of freedom count only where their spread is more than rows explain: there as Satterthwaite has them,
but with V_s less a quarter of V_×, a share found by simulation. With all of V_s, intervals hold the truth in 94.2 to
97.1 of 100, with V_s − V_× in 91.4 to 96.4, so in 93.6 to 96.9: with five seeds, whatever the three variances are.
Figures, also of what else was tried: docs/results/replay.md.

Estimates of the same pieces can be averaged and divided: their influences are, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from exfm.metrics.clusters import Clusters, Sums, Variance, variance_of

KNOWN_OF_ROWS = 0.25
"""The share of V_× that is taken off V_s where degrees of freedom are counted."""


class Estimate(NamedTuple):
    """An estimate with its influences: `clusters` (see `Clusters.sums`), `seeds` (S,), and `crossed` for both: χ, a
    complex number for each cluster; empty if there are no such clusters."""

    value: float
    clusters: Sums
    seeds: np.ndarray
    crossed: Sums = ()

    @property
    def seed_sd(self) -> float | None:
        """Standard deviation of one seed's value, estimated from the seeds' influences; None with fewer than two.

        >>> mean_of_seeds([1.0, 2.0, 3.0]).seed_sd
        1.0
        """
        count = len(self.seeds)
        return float(count * np.sqrt((self.seeds**2).sum() / (count - 1))) if count > 1 else None

    def summary(self) -> dict[str, Any]:
        """{value, se, low, high, p}; None if unknown: a single cluster gives no error."""
        rows, seeds = variance_of(self.clusters), variance_of([self.seeds])
        if not rows.freedom or not seeds.freedom:
            return _summary(self.value, rows if rows.freedom else seeds)
        both = variance_of(self.crossed)
        both = both._replace(value=both.value / len(self.seeds))
        V = max(rows.value + seeds.value - both.value, rows.value, seeds.value)
        if rows.value >= V:  # seeds differ no more than rows explain
            return _summary(self.value, rows)
        of_seeds = seeds.value - KNOWN_OF_ROWS * both.value
        freedom = V**2 / (rows.value**2 / rows.freedom + of_seeds**2 / seeds.freedom)
        return _summary(self.value, Variance(V, freedom))

    def of_rows(self) -> dict[str, Any]:
        """Summary over clusters of rows only: uncertainty from other rows, with the same seeds."""
        return _summary(self.value, variance_of(self.clusters))

    def of_seeds(self) -> dict[str, Any]:
        """Summary over seeds only: uncertainty from other seeds, with the same rows.

        >>> influences = [np.array([2.0, 0.0]), np.array([1.5, -1.5]), np.array([1.0, -3.0])]
        >>> both = mean_of_shared([1.0, 2.0, 3.0], influences, Clusters.of(np.array([7, 8])))
        >>> [round(each["se"] ** 2, 3) for each in (both.of_rows(), both.of_seeds(), both.summary())]
        [9.0, 0.333, 9.0]
        """
        return _summary(self.value, variance_of([self.seeds]))


def _summary(value: float, variance: Variance) -> dict[str, Any]:
    if not variance.freedom or not np.isfinite(variance.value):
        return {"value": value, "se": None, "low": None, "high": None, "p": None}
    se, reach = variance.se, variance.reach
    if not se:  # the same to the last bit
        return {"value": value, "se": 0.0, "low": value, "high": value, "p": None}
    from scipy.special import stdtr  # .1 s to import, and of use at the end of a run alone

    p = float(2 * stdtr(variance.freedom, -abs(value / se)))  # P(|T| ≥ |t|)
    return {"value": value, "se": se, "low": value - reach, "high": value + reach, "p": p}


def mean_of_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one figure per seed, each of a stream of its own.

    >>> mean = mean_of_seeds([1.0, 2.0, 3.0]).summary()
    >>> mean["value"], round(mean["se"], 4), round(mean["low"], 3), round(mean["p"], 4)
    (2.0, 0.5774, -0.484, 0.0742)
    """
    x = np.asarray(values, dtype=np.float64)
    return Estimate(float(x.mean()), (), (x - x.mean()) / len(x))


def mean_of_shared(values: Sequence[float], influences: Sequence[np.ndarray], clusters: Clusters) -> Estimate:
    """The mean of one figure per seed, all of the same N rows: `influences` (N,) of every row on a seed's figure.

    >>> alike = [np.array([2.0, -2.0])] * 2  # nothing is of one seed on one row
    >>> estimate = mean_of_shared([1.0, 3.0], alike, Clusters.of(np.array([7, 8])))
    >>> estimate.value, estimate.clusters[0].tolist(), bool(abs(estimate.crossed[0]).max() < 1e-12)
    (2.0, [2.0, -2.0], True)
    """
    S = len(influences)
    mean = mean_of_seeds(values)._replace(clusters=clusters.sums(np.mean(influences, axis=0)))
    if S < 2:
        return mean
    angles = 2 * np.pi * np.arange(S) / S
    real, imaginary = (
        clusters.sums(sum(x * psi for x, psi in zip(turn, influences, strict=True)) / np.sqrt(S))
        for turn in (np.cos(angles), np.sin(angles))
    )
    return mean._replace(crossed=tuple(re + 1j * im for re, im in zip(real, imaginary, strict=True)))


def estimate_ratio(numerator: Estimate, denominator: Estimate) -> Estimate | None:
    """Ratio of two estimates of the same clusters; None if the denominator is not certainly above 0.

    Where the denominator's interval reaches 0, the ratio's has no bounds (Fieller 1954), and a number would say more
    than is known. Where its error is unknown, as of one seed alone, its value decides.

    >>> half = estimate_ratio(mean_of_seeds([1.0, 2.0, 3.0]), mean_of_seeds([5.0, 6.0, 7.0]))
    >>> round(half.value, 4), round(half.summary()["se"], 4)
    (0.3333, 0.0642)
    >>> estimate_ratio(mean_of_seeds([1.0, 2.0, 3.0]), mean_of_seeds([-0.5, 0.6, 1.7])) is None
    True
    """
    low = denominator.summary()["low"]
    if not (denominator.value if low is None else low) > 0:
        return None
    value = numerator.value / denominator.value

    def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
        return (above - value * below) / denominator.value

    return _by_piece(value, ratio, numerator, denominator)


def average_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of several estimates of the same clusters."""

    def mean(*pieces: np.ndarray) -> np.ndarray:
        stacked = np.stack(pieces)
        absent = np.isnan(stacked).all(0)
        return np.where(absent, np.nan, np.nansum(stacked, axis=0) / len(pieces))

    return _by_piece(float(np.mean([estimate.value for estimate in estimates])), mean, *estimates)


def remainder(share: Estimate) -> Estimate:
    """1 − an estimate.

    >>> left = remainder(mean_of_seeds([0.5, 1.0]))
    >>> left.value, left.seeds.tolist()
    (0.25, [0.125, -0.125])
    """
    return _by_piece(1 - share.value, np.negative, share)


def _by_piece(value: float, combined: Callable[..., np.ndarray], *estimates: Estimate) -> Estimate:
    """An estimate whose every influence is `combined` from those of others of the same pieces."""
    clusters, crossed = (
        tuple(map(combined, *(getattr(estimate, name) for estimate in estimates))) for name in ("clusters", "crossed")
    )
    return Estimate(value, clusters, combined(*(estimate.seeds for estimate in estimates)), crossed)
