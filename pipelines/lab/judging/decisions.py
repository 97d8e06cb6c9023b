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
from pipelines.lab.judging.figures import BySeed, JudgedRows, estimate_over_seeds
from pipelines.lab.judging.settings import Judging
from pipelines.report.cells import Estimated, Measure, over_seeds


class Stakes(NamedTuple):
    """Value of a row's click, and the highest competing bid, by seed, (n,) each; None without a column."""

    values: BySeed | None
    prices: BySeed | None


def decided(
    base: BySeed | None,
    own: BySeed,
    rows: Sequence[JudgedRows],
    windows: BySeed,
    stakes: Stakes,
    asked: Judging,
    *,
    clustered: bool,
) -> Iterator[Measure]:
    """Decisions by logits `own` on the rows in `windows`, next to those of `base` (None: of the baseline itself).

    top/SHARE/…, threshold/P/…   shown, clicks, recall, rate, value
    top/SHARE/more_clicks        % more than the baseline's
    utility, utility/gain        expected utility per row, and what it is above the baseline's
    """
    shown = [_Shown.of(z, r, w, s, stakes) for s, (z, r, w) in enumerate(zip(own, rows, windows, strict=True))]
    other = None
    if base is not None:
        other = [_Shown.of(z, r, w, s, stakes) for s, (z, r, w) in enumerate(zip(base, rows, windows, strict=True))]
    n = int(windows[0].sum())
    for share in asked.top:
        yield from _mean(f"top/{share:g}", [one.top(share) for one in shown], n)
        if other is not None:
            more = _more_clicks(shown, other, share, rows, windows, clustered=clustered)
            yield from Estimated(f"top/{share:g}/more_clicks", more, n).measures()
    for threshold in asked.thresholds:
        yield from _mean(f"threshold/{threshold:g}", [one.at(threshold) for one in shown], n)
    if stakes.prices is not None:
        yield from _utility(shown, other, rows, windows, asked.price_beta, clustered=clustered)


class _Shown(NamedTuple):
    """One seed's rows in the window."""

    p: np.ndarray
    y: np.ndarray
    w: np.ndarray
    values: np.ndarray | None
    prices: np.ndarray | None

    @classmethod
    def of(cls, logits: np.ndarray, rows: JudgedRows, window: np.ndarray, seed: int, stakes: Stakes) -> _Shown:
        p = np.nan_to_num(sigmoid(logits[window]))
        values, prices = (None if of is None else of[seed][window] for of in stakes)
        return cls(p, rows.labels[window], rows.weights[window], values, prices)

    def top(self, share: float) -> Kept:
        return top_shares(self.p, self.y, [share], self.w, self.values)[0]

    def at(self, threshold: float) -> Kept:
        return at_thresholds(self.p, self.y, [threshold], self.w, self.values)[0]

    def utility(self, beta: float) -> np.ndarray:
        assert self.values is not None
        assert self.prices is not None
        return expected_utility(self.p, self.y, self.values, self.prices, beta=beta, weights=self.w)


def _mean(rule: str, kept: Sequence[Kept], n: int) -> Iterator[Measure]:
    """Means over seeds; unknown where a figure is undefined under one of them."""
    for name in Kept._fields:
        yield over_seeds(f"{rule}/{name}", [getattr(one, name) for one in kept], n)


def _more_clicks(
    own: Sequence[_Shown],
    base: Sequence[_Shown],
    share: float,
    rows: Sequence[JudgedRows],
    windows: BySeed,
    *,
    clustered: bool,
) -> Estimate | None:
    """Clicks among the top share, in % more than the baseline's."""
    clicks = [(a.top(share), b.top(share)) for a, b in zip(own, base, strict=True)]
    if not all(of_base.clicks > 0 for _, of_base in clicks):
        return None

    def influence(seed: int) -> np.ndarray:
        of_own, of_base = clicks[seed]
        pull = _pull(own[seed], of_own) - of_own.clicks / of_base.clicks * _pull(base[seed], of_base)
        return np.asarray(100 * pull / of_base.clicks)

    return estimate_over_seeds(
        [100 * (a.clicks / b.clicks - 1) for a, b in clicks], influence, rows, windows, clustered=clustered
    )


def _pull(shown: _Shown, kept: Kept) -> np.ndarray:
    return np.where(shown.p >= kept.threshold, shown.w * (shown.y - kept.threshold), 0.0)


def _utility(
    own: Sequence[_Shown],
    base: Sequence[_Shown] | None,
    rows: Sequence[JudgedRows],
    windows: BySeed,
    beta: float,
    *,
    clustered: bool,
) -> Iterator[Measure]:
    """Expected utility per row, and what it is above the baseline's."""
    each = [one.utility(beta) for one in own]
    per_row = [_average(u, one.w) for u, one in zip(each, own, strict=True)]
    n = int(windows[0].sum())
    yield over_seeds("utility", per_row, n)
    if base is None:
        return
    apart = [u - one.utility(beta) for u, one in zip(each, base, strict=True)]
    means = [_average(d, s.w) for d, s in zip(apart, own, strict=True)]

    def influence(seed: int) -> np.ndarray:
        w = own[seed].w
        return np.asarray(w * (apart[seed] - means[seed]) / w.sum())

    gained = estimate_over_seeds(means, influence, rows, windows, clustered=clustered)
    yield from Estimated("utility/gain", gained, n).measures()


def _average(values: np.ndarray, weights: np.ndarray) -> float:
    return float((values * weights).sum() / weights.sum())
