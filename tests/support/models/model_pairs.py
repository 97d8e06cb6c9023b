"""Pairs of models on streams whose truth is known, and who promotes the candidate of a pair when.

The streams share users, ads and sessions as generated ones do: users and ads of Zipf's kind with tastes of their own,
sessions of some rows next to each other with a mood that neither model knows, and models that err by user, by ad and by
row: a user's rows are not independent of each other, nor are an ad's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exfm.metrics.classification import cross_entropy, sigmoid
from exfm.metrics.sequential import log_e_values, path

ALPHA = 0.05
BLOCK, PILOT, CLIP_SD = 64, 64, 6.0
PLAIN_FROM = 30
"""Blocks before the plain interval is looked at: fewer would only be worse for it."""


class World(NamedTuple):
    """A kind of stream. `shared`: whether rows share users, ads and sessions. `error`: how far the champion errs."""

    name: str
    rate: float
    shared: bool
    error: float = 0.3


def differences(rng: np.random.Generator, world: World, rows: int, gain: float) -> np.ndarray:
    """Differences d (rows,) of one pair: the champion's loss less the candidate's. Their expectation, summed over the
    stream, is `gain` × that of the champion's losses exactly."""
    user, ad, session = places(rng, rows)
    n_users, n_ads, n_sessions = (int(ids.max()) + 1 for ids in (user, ad, session))
    z = float(np.log(world.rate / (1 - world.rate))) + rng.normal(0, 0.8, n_users)[user] + rng.normal(0, 0.6, n_ads)[ad]
    mood = rng.normal(0, 0.7, n_sessions)[session] if world.shared else rng.normal(0, 0.7, rows)
    truth = sigmoid(z + mood)
    y = rng.random(rows) < truth

    def errors(size: float) -> np.ndarray:
        if not world.shared:
            return rng.normal(0, size, rows)
        by_user, by_ad = rng.normal(0, 0.7 * size, n_users)[user], rng.normal(0, 0.4 * size, n_ads)[ad]
        return np.asarray(by_user + by_ad + rng.normal(0, 0.6 * size, rows))

    champion, candidate = z + errors(world.error), z + errors(error_for(world, gain))
    d = cross_entropy(champion, y) - cross_entropy(candidate, y)
    expected = cross_entropy(champion, truth) - cross_entropy(candidate, truth)
    wanted = gain * cross_entropy(champion, truth).mean()
    return np.asarray(d - expected.mean() + wanted)


def error_for(world: World, gain: float) -> float:
    """How far a model errs whose loss is about `gain` lower: ½ p (1 − p) e² is what an error of e costs."""
    p = world.rate
    loss = -p * np.log(p) - (1 - p) * np.log1p(-p)
    return float(np.sqrt(max(0.0, world.error**2 - 2 * gain * loss / (p * (1 - p)))))


def places(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """User, ad and session of every row: sessions of 1 to some rows of one user, interleaved with others."""
    lengths = rng.geometric(0.25, rows // 2)
    sessions = int(np.searchsorted(np.cumsum(lengths), rows)) + 1
    session = np.repeat(np.arange(sessions), lengths[:sessions])[:rows]
    begins = np.sort(rng.random(sessions)) * rows
    order = np.argsort(begins[session] + rng.exponential(20, rows), kind="stable")
    session = session[order]
    user = rng.choice(20_000, sessions, p=_zipf(20_000, 0.8, 130))[session]
    return user, rng.choice(2_000, rows, p=_zipf(2_000, 0.8, 30)), session


def _zipf(n: int, exponent: float, offset: float) -> np.ndarray:
    p = (np.arange(n) + 1 + offset) ** -exponent
    return np.asarray(p / p.sum())


def first(hit: np.ndarray) -> float:
    """The first place where it is true, or NaN."""
    return float(np.argmax(hit)) if hit.any() else float("nan")


def watched(d: np.ndarray) -> tuple[float, float, float]:
    """The block (from 0) at which each of three ways promotes, NaN for never: an e-process that is looked at after
    every block, a plain 95 % interval that is, and one that is looked at once, after the last."""
    blocks = d[: len(d) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(1)
    c = CLIP_SD * float(np.sqrt((blocks[:PILOT] ** 2).mean()))
    sums = path(np.clip(blocks[PILOT:], -c, c), c)
    anytime = PILOT + first(log_e_values(sums.total, sums.variance, c) >= np.log(1 / ALPHA))
    n = np.arange(1, len(blocks) + 1)
    mean = np.cumsum(blocks) / n
    variance = (np.cumsum(blocks**2) / n - mean**2) * n / np.maximum(n - 1, 1)
    above = (mean - 1.96 * np.sqrt(variance / n) > 0) & (n >= PLAIN_FROM)
    return anytime, first(above), float(len(n) - 1) if above[-1] else float("nan")
