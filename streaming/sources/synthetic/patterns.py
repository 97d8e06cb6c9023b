"""Patterns of clicks beyond the match of one user and one ad: time of day, and succession.

    moment      Σ_d s_d c_d m_d / √8          audience, category, and the moment: part of the day and device
    succession  Σ_i w_i T[r_i, c] / Σ_i w_i    r_i the category clicked i clicks ago, w_i = 0.7^i, T = X Yᵀ

Vectors are standard normal, X leans on Y, so that a category mostly follows itself; T has mean 0 over what may follow
and variance 1. Letters: N rows, L clicks kept, C categories, G audiences, H moments.
"""

from __future__ import annotations

import numpy as np

from streaming.sources.synthetic.recent import NONE
from streaming.sources.synthetic.world_config import GeneratorConfig

DAY_PARTS = 4
DECAY = 0.7
OF_ITSELF = 0.6
WIDTH = 8


class Patterns:
    """Logit terms of a click from time of day and succession, at strength 1."""

    def __init__(self, config: GeneratorConfig, devices: int) -> None:
        rng = np.random.default_rng([config.seed, 4])
        self._devices = devices
        audience, category, moment = (
            rng.standard_normal((count, WIDTH)) for count in (config.segments, config.categories, DAY_PARTS * devices)
        )
        self._moment_GCH = (np.einsum("gd,cd,hd->gch", audience, category, moment) / np.sqrt(WIDTH)).astype(np.float32)
        follows = rng.standard_normal((config.categories, WIDTH))
        leads = OF_ITSELF * follows + np.sqrt(1 - OF_ITSELF**2) * rng.standard_normal((config.categories, WIDTH))
        after_CC = leads @ follows.T
        after_CC -= after_CC.mean(axis=1, keepdims=True)
        self._after_CC = (after_CC / max(after_CC.std(), 1e-9)).astype(np.float32)
        self._weight_L = (DECAY ** np.arange(config.recent_clicks)[::-1]).astype(np.float32)

    def moment(
        self, audience_N: np.ndarray, category_N: np.ndarray, hour_N: np.ndarray, device_N: np.ndarray
    ) -> np.ndarray:
        part_N = hour_N * DAY_PARTS // 24
        found: np.ndarray = self._moment_GCH[audience_N, category_N, part_N * self._devices + device_N]
        return found

    def succession(self, recent_NL: np.ndarray, category_N: np.ndarray) -> np.ndarray:
        """Succession term of the logit; 0 without an earlier click."""
        weight_NL = np.where(recent_NL == NONE, np.float32(0), self._weight_L)
        after_NL = self._after_CC[recent_NL, category_N[:, None]]
        total_N = weight_NL.sum(axis=1)
        found: np.ndarray = (weight_NL * after_NL).sum(axis=1) / np.where(total_N > 0, total_N, np.float32(1))
        return found
