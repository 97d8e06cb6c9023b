"""Decisions by predictions: rows shown at a threshold, rows among the top, and the value of bids.

Logged traffic: rows that were shown under another model. A model that is given the choice keeps some of them; what it
would have shown instead is not in the log (policy.py, where propensities are).

    at a threshold t     rows with p ≥ t
    top k                the share k of the weight with the largest p
    expected utility     with the value v of a click, and the price c that the highest competing bid made (Chapelle,
                         "Offline evaluation of response prediction in online advertising auctions", WWW 2015):

        EU = Σ w ∫₀^{p v} (y v − x) f(x | c) dx / Σ w          f: a Gamma of shape β c + 1 and rate β, its mode at c

                         The bid p v wins against the competing bid x. β → ∞ is the log itself; a small β asks what
                         other competition would have made of it.

Columns are numpy, of one length N.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc

from exfm.errors import ConfigError


class Kept(NamedTuple):
    """Figures of the rows that a decision rule selects. `threshold`: the smallest probability among them.

    shown, clicks, value     sums of weights, of weighted labels and values; `value` None without values
    share                    of the weight shown
    recall, rate             of all clicks those that are kept; of what is shown those that are clicked; None of nothing
    """

    threshold: float
    shown: float
    share: float
    clicks: float
    recall: float | None
    rate: float | None
    value: float | None


def at_thresholds(
    probabilities: np.ndarray,
    labels: np.ndarray,
    thresholds: Sequence[float],
    weights: np.ndarray | None = None,
    values: np.ndarray | None = None,
) -> list[Kept]:
    """Figures of the rows that each threshold selects. `values` (N,): what a row's click is worth.

    >>> p, y = np.array([0.1, 0.3, 0.3, 0.8]), np.array([0, 1, 0, 1])
    >>> for kept in at_thresholds(p, y, [0.3, 0.9], values=np.array([1.0, 2.0, 3.0, 4.0])):
    ...     print(kept.shown, kept.share, kept.clicks, kept.recall, kept.value)
    3.0 0.75 2.0 1.0 6.0
    0.0 0.0 0.0 0.0 0.0
    """
    p, y, w = _columns(probabilities, labels, weights)
    return [_kept(p >= t, float(t), y, w, values) for t in thresholds]


def top_shares(
    probabilities: np.ndarray,
    labels: np.ndarray,
    shares: Sequence[float],
    weights: np.ndarray | None = None,
    values: np.ndarray | None = None,
) -> list[Kept]:
    """Figures of the rows with the largest probabilities, up to a share of the weight; ties go to earlier rows. Raises
    ConfigError for a share outside (0, 1].

    >>> (kept,) = top_shares(np.array([0.1, 0.3, 0.4, 0.8]), np.array([0, 1, 0, 1]), [0.5])
    >>> kept.threshold, kept.shown, kept.clicks, kept.rate
    (0.4, 2.0, 1.0, 0.5)
    """
    for share in shares:
        if not 0 < share <= 1:
            raise ConfigError(f"the top {share:g} of the rows; give a share above 0 and at most 1, as 0.1")
    p, y, w = _columns(probabilities, labels, weights)
    order = np.argsort(-p, kind="stable")
    passed = np.cumsum(w[order])
    total = float(passed[-1]) if len(passed) else 0.0
    figures = []
    for share in shares:
        first = order[passed <= share * total * (1 + 1e-12)]
        selected = np.zeros(len(p), dtype=bool)
        selected[first] = True
        figures.append(_kept(selected, float(p[first].min()) if len(first) else 1.0, y, w, values))
    return figures


def expected_utility(
    probabilities: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    prices: np.ndarray,
    *,
    beta: float = 10.0,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """EU of every row, (N,), in the unit of values and prices; its weighted mean is the figure. `beta` in 1 / price.

    >>> p, y, v, c = np.array([0.5, 0.5]), np.array([1, 0]), np.array([2.0, 2.0]), np.array([0.5, 0.5])
    >>> expected_utility(p, y, v, c, beta=1e6).round(2).tolist()  # both are won at .5; one click is worth 2
    [1.5, -0.5]
    >>> expected_utility(p, y, v, np.array([1.5, 1.5]), beta=1e6).round(2).tolist()  # a bid of 1 wins neither
    [0.0, 0.0]
    """
    if not beta > 0:
        raise ConfigError(f"a beta of {beta:g} is no rate of a Gamma distribution; give one above 0, as 10")
    p, y, w = _columns(probabilities, labels, weights)
    v, c = (np.asarray(column, dtype=np.float64) for column in (values, prices))
    if (c < 0).any() or (v < 0).any():
        raise ConfigError("prices or values below 0: a competing bid and a click's worth are 0 or more")
    shape, bid = beta * c + 1, np.maximum(p * v, 0.0)
    won, paid = gammainc(shape, beta * bid), shape / beta * gammainc(shape + 1, beta * bid)
    return np.asarray(np.where(w > 0, y * v * won - paid, 0.0))


def _columns(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    p, y = (np.asarray(column, dtype=np.float64) for column in (probabilities, labels))
    return p, y, np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)


def _kept(kept: np.ndarray, threshold: float, y: np.ndarray, w: np.ndarray, values: np.ndarray | None) -> Kept:
    own = np.where(kept, w, 0.0)
    shown, total = float(own.sum()), float(w.sum())
    clicks, all_clicks = float((own * y).sum()), float((w * y).sum())
    return Kept(
        threshold=threshold,
        shown=shown,
        share=shown / total if total else 0.0,
        clicks=clicks,
        recall=clicks / all_clicks if all_clicks else None,
        rate=clicks / shown if shown else None,
        value=None if values is None else float((own * y * values).sum()),
    )
