"""Gain of one model over another on the same rows, with a 95 % interval.

With weights w and losses a of the model, b of the other (a student and its twin), A = Σ w a and B = Σ w b:

    gain  g = 100 · (NE_b − NE_a) / NE_b = 100 · (1 − A / B)          above 0 the model is better

Both NE divide by the entropy of the same labels, so it cancels: g is a ratio of two sums of losses. Rows of one user,
or of one stretch of the stream, are not independent: they are summed by cluster, and where rows of one user and rows of
one item depend on each other, by both (clusters.py). The error follows from each row's influence on the ratio (delta
method):

    ψ_i = −100 · w_i (a_i − (A / B) b_i) / B        s² = V(ψ), with ν degrees of freedom        g ± t_{.975, ν} · s

The interval is honest only if clusters are independent of each other and there is enough of everything: where there is
not (exfm/metrics/limits.py), there is none. It says nothing of what another seed would give.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exfm.errors import ConfigError
from exfm.metrics.classification import cross_entropy
from exfm.metrics.clusters import Clusters, variance_of
from exfm.metrics.limits import too_few


class PairedGain(NamedTuple):
    """100 · (NE of the other − NE of the model) / NE of the other: above 0 the model is better.

    `difference` is None where NE is undefined; `low`, `high` and `standard_error` also where there is too little to
    tell, and `too_few` says of what: `positives (9)`. `clusters`: how many there are; of two columns, of that with
    fewer.
    """

    difference: float | None
    low: float | None
    high: float | None
    standard_error: float | None
    clusters: int
    rows: int
    positives: int
    too_few: str | None


def paired_gain(
    logits: np.ndarray,
    other_logits: np.ndarray,
    labels: np.ndarray,
    clusters: np.ndarray | Clusters,
    weights: np.ndarray | None = None,
) -> PairedGain:
    """Gain of `logits` over `other_logits`, all columns (N,). `clusters` are ids of any type (users, or
    `consecutive_blocks`), or `Clusters.of(users, items)`. Rows of weight 0 count in `rows` alone.

    >>> rng = np.random.default_rng(0)
    >>> z, y = rng.normal(size=1000), rng.integers(0, 2, 1000)
    >>> same = paired_gain(z, z, y, consecutive_blocks(1000, 100))
    >>> same.difference, same.low, same.high, same.clusters
    (0.0, 0.0, 0.0, 10)
    >>> paired_gain(z[:30], z[:30], y[:30], consecutive_blocks(30, 10)).too_few
    'negatives (14)'
    """
    rows = len(labels)
    if not isinstance(clusters, Clusters):
        clusters = Clusters.of(np.asarray(clusters))
    w = np.ones(rows) if weights is None else np.asarray(weights, dtype=np.float64)
    if not w.all():  # a row of weight 0 is as good as absent, and a cluster of such rows alone is none
        z, other, y, w_kept = (np.asarray(column)[w > 0] for column in (logits, other_logits, labels, w))
        return paired_gain(z, other, y, clusters.take(w > 0), w_kept)._replace(rows=rows)
    y = np.asarray(labels, dtype=np.float64)
    positives = int(np.count_nonzero(y))
    count = clusters.fewest()
    rarer = y > 0 if positives <= rows - positives else y <= 0
    lacking = too_few(positives, rows - positives, clusters.fewest(rarer))
    a, b = w * cross_entropy(logits, y), w * cross_entropy(other_logits, y)
    A, B = float(a.sum()), float(b.sum())
    if not 0 < positives < rows or B == 0:
        return PairedGain(None, None, None, None, count, rows, positives, lacking or "losses above 0 (0)")
    g = 100 * (1 - A / B)
    if lacking is not None:
        return PairedGain(g, None, None, None, count, rows, positives, lacking)
    error = variance_of(clusters.sums(-100 * (a - A / B * b) / B))
    return PairedGain(g, g - error.reach, g + error.reach, error.se, count, rows, positives, None)


def consecutive_blocks(rows: int, block_rows: int) -> np.ndarray:
    """Cluster ids of `rows` consecutive rows cut into blocks: [0, 0, …, 1, 1, …]; the last block may be short.

    >>> consecutive_blocks(5, 2).tolist()
    [0, 0, 1, 1, 2]
    """
    if block_rows < 1:
        raise ConfigError(f"a block of {block_rows} rows holds nothing; give 1 or more")
    return np.arange(rows) // block_rows
