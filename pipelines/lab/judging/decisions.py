"""What models decide on the rows that are judged: what they would show, bid and choose, next to the baseline.

Seeds are models of their own: every figure is the mean over them. Clicks among the top share of two models are compared
in pairs, with the error of the rows that only one of them shows: near its threshold τ a model changes a row that is
clicked with probability τ for another, so that the influence of a row on its clicks is 1[shown] (y − τ).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.metrics.classification import sigmoid
from exfm.metrics.decisions import Kept, at_thresholds, expected_utility, top_shares
from exfm.metrics.estimates import Estimate
from exfm.metrics.policy import best_of_request, policy_value
from pipelines.lab.judging.figures import BySeed, JudgedRows, over_seeds
from pipelines.lab.judging.settings import Judging, Ranking


class Stakes(NamedTuple):
    """What a row's click is worth, and the highest competing bid, by seed, (n,) each; None where no column says it."""

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
) -> dict[str, Any]:
    """Logits `own` on the rows in `windows`, next to those of `base` (None: of the baseline itself)."""
    shown = [_Shown.of(z, r, w, s, stakes) for s, (z, r, w) in enumerate(zip(own, rows, windows, strict=True))]
    other = None
    if base is not None:
        other = [_Shown.of(z, r, w, s, stakes) for s, (z, r, w) in enumerate(zip(base, rows, windows, strict=True))]
    found: dict[str, Any] = {"top": [], "thresholds": []}
    for share in asked.top:
        entry = {"asked": share} | _mean([one.top(share) for one in shown])
        if other is not None:
            entry["more_clicks"] = _more_clicks(shown, other, share, rows, windows, clustered=clustered)
        found["top"].append(entry)
    for threshold in asked.thresholds:
        found["thresholds"].append({"asked": threshold} | _mean([one.at(threshold) for one in shown]))
    if stakes.prices is not None:
        found["utility"] = _utility(shown, other, rows, windows, asked.price_beta, clustered=clustered)
    return found


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


def _mean(kept: Sequence[Kept]) -> dict[str, Any]:
    """The mean over seeds; None where a figure is undefined under one of them."""
    columns: dict[str, Any] = {}
    for name in Kept._fields:
        each = [getattr(one, name) for one in kept]
        columns[name] = None if any(x is None for x in each) else float(np.mean(each))
    return columns


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

    return over_seeds(
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
) -> dict[str, Any]:
    """Expected utility per row, and what it is above the baseline's."""
    each = [one.utility(beta) for one in own]
    per_row = [_average(u, one.w) for u, one in zip(each, own, strict=True)]
    found: dict[str, Any] = {"beta": beta, "per_row": float(np.mean(per_row))}
    if base is None:
        return found
    apart = [u - one.utility(beta) for u, one in zip(each, base, strict=True)]
    means = [_average(d, s.w) for d, s in zip(apart, own, strict=True)]

    def influence(seed: int) -> np.ndarray:
        w = own[seed].w
        return np.asarray(w * (apart[seed] - means[seed]) / w.sum())

    return found | {"gain": over_seeds(means, influence, rows, windows, clustered=clustered)}


def _average(values: np.ndarray, weights: np.ndarray) -> float:
    return float((values * weights).sum() / weights.sum())


def choices(
    logits: np.ndarray,
    labels: pa.Array,
    columns: dict[str, np.ndarray],
    asked: Ranking,
    window: np.ndarray,
    clusters: np.ndarray | None = None,
) -> dict[str, Any]:
    """What the candidates with a model's largest predictions are worth, from logged choices: `logits` and `labels` (n,)
    of all rows of the student, candidates that were not shown included. `clusters` (n,): ids, the same within a
    request; requests of one, as those of a user, are not independent. None: all requests are."""
    known = labels.is_valid().to_numpy(zero_copy_only=False)
    chosen = known if asked.chosen is None else columns[asked.chosen] > 0
    requests = columns[asked.request]
    y = labels.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    scored = window & np.isfinite(logits)
    left_out = ~scored | (chosen & ~known)  # a request is judged whole, with the label of its choice, or not at all
    whole = ~np.isin(requests, requests[left_out])
    z, at = logits[whole], requests[whole]
    found = policy_value(
        at,
        columns[asked.propensity][whole],
        chosen[whole],
        y[whole],
        best_of_request(at, z),
        sigmoid(z),
        None if clusters is None else clusters[whole],
    )
    values = {name: None if v is None else v._asdict() for name, v in found._asdict().items() if name in _VALUES}
    return {**{k: v for k, v in found._asdict().items() if k not in _VALUES}, **values}


_VALUES = ("logged", "ips", "snips", "dr")
WORTH = ("logged", "IPS", "SNIPS", "doubly robust", "effective requests", "agreement", "mean weight", "refused")
"""What `worth_of` tells."""


def worth_of(found: Mapping[str, Any]) -> list[str]:
    """What `choices` found, as text.

    >>> value = {"value": 0.25, "low": 0.125, "high": 0.375}
    >>> worth_of(dict.fromkeys(_VALUES, value) | {"dr": None, "effective": 900.4, "requests": 4000, "agreement": 0.24,
    ...                                           "mean_weight": 0.99, "refused": None})[2:]
    ['0.2500 [0.1250, 0.3750]', '–', '900 of 4,000', '24%', '0.990', '–']
    """
    values = [
        "–" if (of := found[name]) is None else f"{of['value']:.4f} [{of['low']:.4f}, {of['high']:.4f}]"
        for name in _VALUES
    ]
    overlap = [f"{found['effective']:,.0f} of {found['requests']:,}", f"{found['agreement']:.0%}"]
    return [*values, *overlap, f"{found['mean_weight']:.3f}", found["refused"] or "–"]
