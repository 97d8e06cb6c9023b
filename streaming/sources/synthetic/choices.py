"""Requests with several competing ads, and a log that shows one of them at random, with known propensities.

    score_k = ln(bid of candidate k)                     p_k = (1 − ε) softmax(score)_k + ε / K

The log prefers dear ads, and explores with ε. All candidates of a request are impressions of the stream, one after the
other, of one user, moment and place; only the one that was shown can be clicked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streaming.sources.synthetic.world_config import GeneratorConfig

SHOWN = "shown"
"""The task whose label says which candidate was shown; clicks are given it."""

REQUEST, PROPENSITY = "request_id", "propensity"


class Choices(NamedTuple):
    """Competition among N candidates: the request of each, its propensity, and whether it was shown."""

    request: np.ndarray
    propensity: np.ndarray
    shown: np.ndarray


def by_request(column_N: np.ndarray, candidates: int) -> np.ndarray:
    """The value of each request's first candidate.

    >>> by_request(np.array([3, 4, 5, 6]), 2).tolist()
    [3, 3, 5, 5]
    """
    return column_N[::candidates].repeat(candidates)


def choose(config: GeneratorConfig, serial_N: np.ndarray, bid_N: np.ndarray, rng: np.random.Generator) -> Choices:
    """Draw the shown candidates among those with these serial numbers, whole requests only.

    >>> config = GeneratorConfig(candidates=2, exploration=0.5)
    >>> made = choose(config, np.arange(4), np.array([1.0, 3.0, 2.0, 2.0]), np.random.default_rng(0))
    >>> made.request.tolist(), made.propensity.tolist(), made.shown.reshape(2, 2).sum(1).tolist()
    ([0, 0, 1, 1], [0.375, 0.625, 0.5, 0.5], [1, 1])
    """
    K = config.candidates
    bid_RK = bid_N.astype(np.float64).reshape(-1, K)
    p_RK = (1 - config.exploration) * bid_RK / bid_RK.sum(1, keepdims=True) + config.exploration / K
    taken_R = (p_RK.cumsum(1)[:, :-1] < rng.random((len(p_RK), 1))).sum(1)
    return Choices(serial_N // K, p_RK.ravel(), (np.arange(K) == taken_R[:, None]).ravel())
