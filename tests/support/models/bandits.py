"""Logged choices with known propensities, whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from exfm.metrics.classification import sigmoid
from exfm.metrics.policy import PolicyValue, best_of_request, policy_value


class Bandit:
    """Requests with 5 candidates whose worth is known: the log prefers some, with known propensities; the new policy
    chooses by scores that know about half of the truth. `value`: what it is really worth."""

    def __init__(self, seed: int, requests: int = 3000) -> None:
        rng = np.random.default_rng(seed)
        truth = sigmoid(-2.0 + rng.normal(0, 1.0, (requests, 5)))
        heard = np.log(truth / (1 - truth)) + rng.normal(0, 0.7, truth.shape)
        taste = np.exp(0.5 * rng.normal(0, 1, truth.shape))
        propensity = 0.7 * taste / taste.sum(1, keepdims=True) + 0.3 / 5
        taken = (propensity.cumsum(1) < rng.random((requests, 1))).sum(1)
        self.requests = np.arange(requests).repeat(5)
        self.propensity, self.heard = propensity.ravel(), heard.ravel()
        self.chosen = (np.arange(5) == taken[:, None]).ravel()
        self.reward = np.where(self.chosen, rng.random(requests * 5) < truth.ravel(), np.nan)
        self.target = best_of_request(self.requests, self.heard)
        self.value = float((self.target * truth.ravel()).sum() / requests)

    def judged(self, **changes: Any) -> PolicyValue:
        given: dict[str, Any] = {
            "requests": self.requests, "propensities": self.propensity, "chosen": self.chosen, "rewards": self.reward,
            "target": self.target, "predicted": sigmoid(self.heard),
        }  # fmt: skip
        return policy_value(**(given | changes))
