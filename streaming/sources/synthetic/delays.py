"""Delays of feedback, and its probability of arriving in time.

Click delay C and conversion delay D (from the click) are lognormal per vertical, independent of all else; an event is
lost, independently, with `lost_rate`. A label counts what happens up to its window w after the impression, so that

    p_settled_ctr = p_ctr · (1 − lost) · P(C ≤ w_ctr)
    p_settled_cvr = p_cvr · (1 − lost) · P(C + D ≤ w_cvr | C ≤ w_ctr)      of impressions whose click settled

The last factor is a midpoint quadrature over quantiles of C.
"""

from __future__ import annotations

from math import log
from statistics import NormalDist

import numpy as np

from streaming.sources.synthetic.world_config import Vertical

QUADRATURE_POINTS = 1024
_STANDARD = NormalDist()


def lognormal_cdf(x: float, median: float, sigma: float) -> float:
    """P(X ≤ x); 0 for x ≤ 0."""
    return _STANDARD.cdf((log(x) - log(median)) / sigma) if x > 0 else 0.0


def click_in_time(vertical: Vertical, window_s: float) -> float:
    """P(C ≤ window).

    >>> round(click_in_time(Vertical(name="a", share=1, base_rate=0.1, click_delay_s=60), window_s=60), 6)
    0.5
    """
    return lognormal_cdf(window_s, vertical.click_delay_s, vertical.click_delay_sigma)


def conversion_in_time(vertical: Vertical, click_window_s: float, window_s: float) -> float:
    """P(C + D ≤ window | C ≤ click window); 0 if no click comes in time, to the precision of floats."""
    settled = click_in_time(vertical, click_window_s)
    if 0.5 / QUADRATURE_POINTS * settled == 0:
        return 0.0
    mean = 0.0
    for point in range(QUADRATURE_POINTS):
        z = _STANDARD.inv_cdf((point + 0.5) / QUADRATURE_POINTS * settled)
        click_s = vertical.click_delay_s * np.exp(vertical.click_delay_sigma * z)
        mean += lognormal_cdf(window_s - click_s, vertical.cvr_delay_s, vertical.cvr_delay_sigma)
    return mean / QUADRATURE_POINTS


class Delays:
    """Draws delays, in whole milliseconds above 0, for rows of the verticals given by index."""

    def __init__(self, verticals: tuple[Vertical, ...]) -> None:
        self._click = np.array([(log(1000 * v.click_delay_s), v.click_delay_sigma) for v in verticals], np.float32)
        self._conversion = np.array([(log(1000 * v.cvr_delay_s), v.cvr_delay_sigma) for v in verticals], np.float32)

    def click_ms(self, vertical_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return _draw(self._click[vertical_N], rng)

    def conversion_ms(self, vertical_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return _draw(self._conversion[vertical_N], rng)


def _draw(log_median_and_sigma_N2: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    median, sigma = log_median_and_sigma_N2.T
    return np.exp(median + sigma * rng.standard_normal(len(median), np.float32)).astype(np.int64) + 1
