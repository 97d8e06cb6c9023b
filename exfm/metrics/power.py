"""Power analysis: rows that a comparison needs until a difference of a given size shows.

Looked at once, after n rows, with the standard error s of N rows of the same stream, shrinking as √(N/n):

    n = N · ((z_{1−α/2} + z_{power}) · s / effect)²

Watched all the time, and stopped as soon as the confidence sequence excludes 0: about the first T blocks at which
T · effect reaches u(T · v) (sequential.py), with v the variance of a block's mean.

Rows do not help against seeds: where these differ more than the effect, only more seeds do.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from exfm.errors import ConfigError
from exfm.metrics.sequential import reach

MOST_BLOCKS = 2**40


def rows_needed(se: float, rows: int, effect: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Rows after which a difference of `effect` shows with probability `power`, given the standard error `se` of `rows`
    rows, in the same unit. Raises ConfigError for an effect of 0.

    >>> rows_needed(se=0.5, rows=10_000, effect=0.5)
    78489
    """
    _check(effect)
    factor = float(ndtri(1 - alpha / 2) + ndtri(power)) * se / effect
    return int(np.ceil(rows * factor**2))


def rows_to_stop(
    block_variance: float, scale: float, effect: float, *, block_rows: int, alpha: float = 0.05
) -> int | None:
    """Expected rows until anytime-valid monitoring can stop, for a mean difference of `effect` in nats; None if more
    than 2⁴⁰ blocks. `scale`: the clip c. Raises ConfigError for an effect of 0.

    >>> rows_to_stop(0.01, 0.6, 0.02, block_rows=64) // 64
    558
    """
    _check(effect)
    low, high = 0, 1
    while high * effect < float(reach(high * block_variance, scale, alpha / 2)):
        low, high = high, 2 * high
        if high > MOST_BLOCKS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = middle * effect >= float(reach(middle * block_variance, scale, alpha / 2))
        low, high = (low, middle) if enough else (middle, high)
    return high * block_rows


def _check(effect: float) -> None:
    if not effect > 0:
        raise ConfigError(f"a difference of {effect:g} never shows; give one above 0, as 0.2")
