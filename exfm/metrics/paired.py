"""The paired difference of two models' normalised entropy on the same rows, with a 95 % interval.

With weights w, losses a and b of the two models, labels y, ȳ = Σwy/Σw and H the entropy of the base rate:

    d = Σ w (a − b) / Σ w,        D = NE_a − NE_b = d / H(ȳ)

Rows of one user, or of one stretch of the stream, are not independent: they are summed by cluster. D is a smooth
function of three means, so its error follows from each row's influence on it (delta method):

    ψ_i = w_i [ (a_i − b_i − d) − D · H′(ȳ) (y_i − ȳ) ] / (H Σ w),        H′(p) = log((1 − p) / p)
    s² = G / (G − 1) · Σ_clusters (Σ_{i in cluster} ψ_i)²,        D ± t_{.975, G−1} · s        with G clusters

The interval is honest only if clusters are independent of each other and there are enough of them: with 30 or more it
holds its 95 %, with 5 it is a rough guide. It says nothing of what another seed would give.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from exfm.errors import ConfigError
from exfm.metrics.classification import base_rate_entropy, cross_entropy


class PairedDifference(NamedTuple):
    """NE of the first model minus NE of the second: below 0 the first is better.

    Every figure is None where NE is undefined; the error and the interval also where there are fewer than 2 clusters.
    """

    difference: float | None
    low: float | None
    high: float | None
    standard_error: float | None
    clusters: int
    rows: int


def paired_ne_difference(
    logits: np.ndarray,
    other_logits: np.ndarray,
    labels: np.ndarray,
    clusters: np.ndarray,
    weights: np.ndarray | None = None,
) -> PairedDifference:
    """NE(logits) − NE(other_logits), all columns (N,). `clusters` are ids of any type: users, or `consecutive_blocks`.

    >>> rng = np.random.default_rng(0)
    >>> z, y = rng.normal(size=1000), rng.integers(0, 2, 1000)
    >>> same = paired_ne_difference(z, z, y, consecutive_blocks(1000, 100))
    >>> same.difference, same.low, same.high, same.clusters
    (0.0, 0.0, 0.0, 10)
    """
    rows = len(labels)
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones(rows) if weights is None else np.asarray(weights, dtype=np.float64)
    if not w.all():  # a row of weight 0 is as good as absent, and a cluster of such rows alone is none
        present = w > 0
        left = paired_ne_difference(
            *(np.asarray(column)[present] for column in (logits, other_logits, labels, clusters, w))
        )
        return left._replace(rows=rows)
    code = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    count = int(code.max()) + 1 if rows else 0
    total = w.sum()
    rate = float((w * y).sum() / total) if total > 0 else 0.0
    H = base_rate_entropy(rate)
    if H is None:
        return PairedDifference(None, None, None, None, count, rows)

    apart = cross_entropy(logits, y) - cross_entropy(other_logits, y)
    d = float((w * apart).sum() / total)
    D = d / H
    if count < 2:
        return PairedDifference(D, None, None, None, count, rows)
    slope = float(np.log1p(-rate) - np.log(rate))
    influence = w * ((apart - d) - D * slope * (y - rate)) / (H * total)
    by_cluster = np.bincount(code, weights=influence, minlength=count)
    s = float(np.sqrt(count / (count - 1) * (by_cluster**2).sum()))
    reach = float(stdtrit(count - 1, 0.975)) * s
    return PairedDifference(D, D - reach, D + reach, s, count, rows)


def consecutive_blocks(rows: int, block_rows: int) -> np.ndarray:
    """Cluster ids of `rows` consecutive rows cut into blocks: [0, 0, …, 1, 1, …]; the last block may be short.

    >>> consecutive_blocks(5, 2).tolist()
    [0, 0, 1, 1, 2]
    """
    if block_rows < 1:
        raise ConfigError(f"a block of {block_rows} rows holds nothing; give 1 or more")
    return np.arange(rows) // block_rows
