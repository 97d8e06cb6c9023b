"""Decisions of models on the rows that are judged: shown and bid, next to the baseline.

Seeds are models of their own: every figure is the mean over them. Clicks among the top share of two models are compared
in pairs, with the error of the rows that only one of them shows: near its threshold τ a model changes a row that is
clicked with probability τ for another, so that the influence of a row on its clicks is 1[shown] (y − τ).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from exfm.metrics.classification import sigmoid
from exfm.metrics.decisions import Kept, at_thresholds, expected_utility, top_shares
from exfm.metrics.estimates import Estimate
from pipelines.lab.judging.comparison import BySeed, Sample
from pipelines.lab.judging.settings import Judging
from pipelines.report.cells import Estimated, Measure, over_seeds


class Stakes(NamedTuple):
    """Value of a row's click, and the highest competing bid, by seed, (n,) each; None without a column."""

    values: BySeed | None
    prices: BySeed | None


def decided(base: BySeed | None, own: BySeed, sample: Sample, stakes: Stakes, settings: Judging) -> Iterator[Measure]:
    """Decisions by logits `own`, next to those of `base` (None: of the baseline itself).

    top/SHARE/…, threshold/P/…   shown, clicks, recall, rate, value
    top/SHARE/more_clicks        % more than the baseline's
    utility, utility/gain        expected utility per row, and what it is above the baseline's
    """
    shown = _shown(own, sample, stakes)
    base_shown = None if base is None else _shown(base, sample, stakes)
    for share in settings.top:
        yield from _mean(f"top/{share:g}", [one.top(share) for one in shown], sample.n)
        if base_shown is not None:
            more = _more_clicks(shown, base_shown, share, sample)
            yield from Estimated(f"top/{share:g}/more_clicks", more, sample.n).measures()
    for threshold in settings.thresholds:
        yield from _mean(f"threshold/{threshold:g}", [one.at(threshold) for one in shown], sample.n)
    if stakes.prices is not None:
        yield from _utility(shown, base_shown, sample, settings.price_beta)


class _Shown(NamedTuple):
    """One seed's rows in the window."""

    p: np.ndarray
    y: np.ndarray
    w: np.ndarray
    values: np.ndarray | None
    prices: np.ndarray | None

    def top(self, share: float) -> Kept:
        return top_shares(self.p, self.y, [share], self.w, self.values)[0]

    def at(self, threshold: float) -> Kept:
        return at_thresholds(self.p, self.y, [threshold], self.w, self.values)[0]

    def utility(self, beta: float) -> np.ndarray:
        assert self.values is not None
        assert self.prices is not None
        return expected_utility(self.p, self.y, self.values, self.prices, beta=beta, weights=self.w)

    def average(self, x: np.ndarray) -> float:
        return float((x * self.w).sum() / self.w.sum())


def _shown(logits: BySeed, sample: Sample, stakes: Stakes) -> list[_Shown]:
    by_seed = []
    for seed, (z, (rows, window)) in enumerate(zip(logits, sample, strict=True)):
        values, prices = (None if column is None else column[seed][window] for column in stakes)
        p = np.nan_to_num(sigmoid(z[window]))
        by_seed.append(_Shown(p, rows.labels[window], rows.weights[window], values, prices))
    return by_seed


def _mean(rule: str, kept: Sequence[Kept], n: int) -> Iterator[Measure]:
    """Means over seeds; unknown where a figure is undefined under one of them."""
    for name in Kept._fields:
        yield over_seeds(f"{rule}/{name}", [getattr(one, name) for one in kept], n)


def _more_clicks(own: Sequence[_Shown], base: Sequence[_Shown], share: float, sample: Sample) -> Estimate | None:
    """Clicks among the top share, in % more than the baseline's."""
    tops = [(a.top(share), b.top(share)) for a, b in zip(own, base, strict=True)]
    if not all(b.clicks > 0 for _, b in tops):
        return None

    def influence(seed: int) -> np.ndarray:
        a, b = tops[seed]
        pull = _pull(own[seed], a) - a.clicks / b.clicks * _pull(base[seed], b)
        return np.asarray(100 * pull / b.clicks)

    return sample.estimate([100 * (a.clicks / b.clicks - 1) for a, b in tops], influence)


def _pull(shown: _Shown, kept: Kept) -> np.ndarray:
    return np.where(shown.p >= kept.threshold, shown.w * (shown.y - kept.threshold), 0.0)


def _utility(own: Sequence[_Shown], base: Sequence[_Shown] | None, sample: Sample, beta: float) -> Iterator[Measure]:
    """Expected utility per row, and what it is above the baseline's."""
    utilities = [one.utility(beta) for one in own]
    yield over_seeds("utility", [one.average(u) for u, one in zip(utilities, own, strict=True)], sample.n)
    if base is None:
        return
    apart = [u - one.utility(beta) for u, one in zip(utilities, base, strict=True)]
    means = [one.average(d) for d, one in zip(apart, own, strict=True)]

    def influence(seed: int) -> np.ndarray:
        w = own[seed].w
        return np.asarray(w * (apart[seed] - means[seed]) / w.sum())

    yield from Estimated("utility/gain", sample.estimate(means, influence), sample.n).measures()
