"""Off-policy evaluation: the value of another choice among candidates, from a log of choices and their propensities.

A request r has candidates; the logging policy chose one of them at random, a_r with propensity p(a_r), and its reward
y_r was seen. The new policy chooses candidate a with probability π(a). With ρ_r = π(a_r) / p(a_r) and a prediction q(a)
of every candidate's reward that was made before y_r was known:

    IPS      V = mean ρ_r y_r
    SNIPS    V = Σ ρ_r y_r / Σ ρ_r
    DR       V = mean ( Σ_a π(a) q(a) + ρ_r (y_r − q(a_r)) )          (Dudík, Langford & Li, arXiv 1103.4601)

All three are of E[y] under π as long as whatever π chooses could have been chosen by the log (support): q may be wrong,
it only makes DR's interval wider. Intervals: ± t √V of influences summed by cluster (clusters.py), requests each for
itself where no clusters are given. n_eff = (Σ ρ)² / Σ ρ² says how many requests the estimate rests on.

No estimate is made where support is missing: E[ρ] = 1 under full support, and below 1 by just the share of π's choices
that the log never makes.

N candidates, R requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exfm.errors import ConfigError
from exfm.metrics.clusters import Clusters, variance_of

FEWEST_EFFECTIVE = 50.0
"""Effective requests below which there is no estimate: one weight could decide it."""

MOST_ERRORS = 4.0
"""How many standard errors the mean weight may differ from 1: an honest log is refused in 1 of 16,000 cases."""

MOST_MISSING = 0.001
"""The share of the new policy's choices that candidates of propensity 0 may take."""


class MeanReward(NamedTuple):
    """A reward per request with its 95 % interval."""

    value: float
    low: float
    high: float
    se: float

    @property
    def width(self) -> float:
        return self.high - self.low


class PolicyValue(NamedTuple):
    """Estimates of a policy's value; `refused` is the reason if there are none, else None. `dr` is None without
    predictions.

    requests, effective    R, and n_eff
    agreement              the share of requests where the new policy could choose what the log chose
    mean_weight            mean ρ: 1 under full support, up to chance
    largest_share          of Σ ρ, the largest of them
    logged                 the mean reward of the logged choices themselves
    """

    requests: int
    effective: float
    agreement: float
    mean_weight: float
    largest_share: float
    refused: str | None
    logged: MeanReward | None
    ips: MeanReward | None
    snips: MeanReward | None
    dr: MeanReward | None


def policy_value(
    requests: np.ndarray,
    propensities: np.ndarray,
    chosen: np.ndarray,
    rewards: np.ndarray,
    target: np.ndarray,
    predicted: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
) -> PolicyValue:
    """Evaluate a policy on N candidates in any order: ids of their `requests`, the `propensities` with which the log
    chose them, `chosen` (N,) bool, `rewards` of the chosen ones (others are not read), and the new policy's
    probabilities `target`, which sum to 1 in every request. `clusters`: an id per row, the same within a request.

    >>> R = 4000
    >>> rng = np.random.default_rng(0)
    >>> first = rng.random(R) < 0.5  # of two candidates, worth .2 and .6; the new policy chooses the second
    >>> chosen = np.stack([first, ~first], 1).ravel()
    >>> worth = np.tile([0.2, 0.6], R)
    >>> found = policy_value(np.arange(R).repeat(2), np.full(2 * R, 0.5), chosen,
    ...                      (rng.random(2 * R) < worth).astype(float), np.tile([0.0, 1.0], R), worth)
    >>> found.refused is None, found.dr.low < 0.6 < found.dr.high, found.dr.width < found.ips.width
    (True, True, True)
    >>> alone = policy_value(np.arange(60), np.ones(60), np.ones(60, bool), np.ones(60), np.ones(60))
    >>> alone.refused
    'every request has a single candidate: there is nothing to choose from; log those that were not shown, too'
    """
    log = _Log.of(requests, propensities, chosen, rewards, target, clusters)
    R, rho, total = log.requests, log.rho, float(log.rho.sum())
    found = PolicyValue(
        requests=R,
        effective=total**2 / float((rho**2).sum()) if total else 0.0,
        agreement=float((rho > 0).mean()) if R else 0.0,
        mean_weight=float(rho.mean()) if R else 0.0,
        largest_share=float(rho.max() / total) if total else 0.0,
        refused=None, logged=None, ips=None, snips=None, dr=None,
    )  # fmt: skip
    if (why := _missing_support(found, log)) is not None:
        return found._replace(refused=why)
    reward, by = log.of_chosen(log.y), log.clusters
    snips = float((rho * reward).sum()) / total
    dr = None
    if predicted is not None:
        q = np.asarray(predicted, dtype=np.float64)
        dr = _mean(np.bincount(log.codes, log.pi * q, R) + rho * (reward - log.of_chosen(q)), by)
    return found._replace(
        logged=_mean(reward, by),
        ips=_mean(rho * reward, by),
        snips=_around(snips, rho * (reward - snips) / rho.mean(), by),
        dr=dr,
    )


class _Log(NamedTuple):
    """N candidates of R requests, in the symbols above: `codes` (N,) say whose candidate each is, `rho` is (R,)."""

    requests: int
    codes: np.ndarray
    p: np.ndarray
    pi: np.ndarray
    y: np.ndarray
    chosen: np.ndarray
    rho: np.ndarray
    clusters: Clusters

    @classmethod
    def of(
        cls,
        requests: np.ndarray,
        propensities: np.ndarray,
        chosen: np.ndarray,
        rewards: np.ndarray,
        target: np.ndarray,
        clusters: np.ndarray | None,
    ) -> _Log:
        codes = np.unique(requests, return_inverse=True)[1].reshape(-1)
        p, y, pi = (np.asarray(column, dtype=np.float64) for column in (propensities, rewards, target))
        chosen = np.asarray(chosen, dtype=bool)
        R = int(codes.max(initial=-1)) + 1
        rho = np.zeros(R)
        usable = np.flatnonzero(chosen & (p > 0))
        rho[codes[usable]] = pi[usable] / p[usable]
        return cls(R, codes, p, pi, y, chosen, rho, _by_request(codes, clusters, R))

    def of_chosen(self, values: np.ndarray) -> np.ndarray:
        """The value of the chosen candidate of each request, (R,)."""
        found = np.zeros(self.requests)
        found[self.codes[self.chosen]] = values[self.chosen]
        return found


def best_of_request(requests: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The greedy policy, (N,): 1 for the candidate of the largest score in its request, 0 for others; ties share it.

    >>> best_of_request(np.array([7, 7, 8, 8]), np.array([0.1, 0.4, 0.3, 0.3])).tolist()
    [0.0, 1.0, 0.5, 0.5]
    """
    codes = np.unique(requests, return_inverse=True)[1].reshape(-1)
    most = np.full(int(codes.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(most, codes, scores)
    best = (scores == most[codes]).astype(np.float64)
    return np.asarray(best / np.bincount(codes, best)[codes])


def _by_request(codes: np.ndarray, clusters: np.ndarray | None, requests: int) -> Clusters:
    if clusters is None:
        return Clusters.of(np.arange(requests))
    first = np.full(requests, len(codes))
    np.minimum.at(first, codes, np.arange(len(codes)))
    return Clusters.of(np.asarray(clusters)[first])


def _missing_support(found: PolicyValue, log: _Log) -> str | None:
    """Reason why no estimate can be made; None if one can. Raises ConfigError for what is no probability."""
    p, R = log.p, log.requests
    if not np.isfinite(p).all() or (p < 0).any() or (p > 1).any():
        wrong = p[~((p >= 0) & (p <= 1))]
        raise ConfigError(
            f"{len(wrong):,} propensities are no probabilities, as {wrong[0]:g}; a propensity is the probability by "
            "which the log chose a candidate, 0 to 1"
        )
    if not R:
        return "there is no request"
    if len(log.codes) == R:
        return (
            "every request has a single candidate: there is nothing to choose from; log those that were not shown, too"
        )
    counts = np.bincount(log.codes[log.chosen], minlength=R)
    if (counts != 1).any():
        unclear = int((counts != 1).sum())
        return f"{unclear:,} of {R:,} requests have no choice or several; one candidate has to be chosen of each"
    impossible = float(log.pi[p <= 0].sum()) / R
    if impossible > MOST_MISSING:
        return (
            f"{impossible:.1%} of what the new policy chooses has propensity 0: the log cannot say what that is worth"
        )
    if found.effective < FEWEST_EFFECTIVE:
        return (
            f"{found.effective:.0f} effective requests of {R:,} (fewer than {FEWEST_EFFECTIVE:.0f}): the new policy "
            "hardly ever chooses what the log chose"
        )
    weight = _mean(log.rho, log.clusters)
    if abs(weight.value - 1) > max(MOST_ERRORS * weight.se, 0.01):
        return (
            f"the weights average {weight.value:.3f} ± {weight.se:.3f} where full support gives 1: "
            "the propensities are not those of this log, or candidates are missing from it"
        )
    return None


def _mean(per_request: np.ndarray, by: Clusters) -> MeanReward:
    value = float(per_request.mean())
    return _around(value, per_request - value, by)


def _around(value: float, influence: np.ndarray, by: Clusters) -> MeanReward:
    error = variance_of(by.sums(influence / len(influence)))
    return MeanReward(value, value - error.reach, value + error.reach, error.se)
