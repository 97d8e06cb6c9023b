"""What one model gains over another on the same rows, with a 95 % interval.

With weights w and losses a of the model, b of the other (a student and its twin), A = Σ w a and B = Σ w b:

    gain  g = 100 · (NE_b − NE_a) / NE_b = 100 · (1 − A / B)          above 0 the model is better

Both NE divide by the entropy of the same labels, so it cancels: g is a ratio of two sums of losses. Rows of one user,
or of one stretch of the stream, are not independent: they are summed by cluster. The error follows from each row's
influence on the ratio (delta method):

    ψ_i = −100 · w_i (a_i − (A / B) b_i) / B
    s² = G / (G − 1) · Σ_clusters (Σ_{i in cluster} ψ_i)²,        g ± t_{.975, G−1} · s        with G clusters

The interval is honest only if clusters are independent of each other and there is enough of everything: where there is
not (exfm/metrics/limits.py), there is none. It says nothing of what another seed would give.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from exfm.errors import ConfigError
from exfm.metrics.classification import cross_entropy
from exfm.metrics.limits import too_few


class PairedGain(NamedTuple):
    """100 · (NE of the other − NE of the model) / NE of the other: above 0 the model is better.

    `difference` is None where NE is undefined; `low`, `high` and `standard_error` also where there is too little to
    tell, and `too_few` says of what: `positives (9)`.
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
    clusters: np.ndarray,
    weights: np.ndarray | None = None,
) -> PairedGain:
    """What `logits` gain over `other_logits`, all columns (N,). `clusters` are ids of any type: users, or
    `consecutive_blocks`. Rows of weight 0 count in `rows` alone.

    >>> rng = np.random.default_rng(0)
    >>> z, y = rng.normal(size=1000), rng.integers(0, 2, 1000)
    >>> same = paired_gain(z, z, y, consecutive_blocks(1000, 100))
    >>> same.difference, same.low, same.high, same.clusters
    (0.0, 0.0, 0.0, 10)
    >>> paired_gain(z[:30], z[:30], y[:30], consecutive_blocks(30, 10)).too_few
    'negatives (14)'
    """
    rows = len(labels)
    w = np.ones(rows) if weights is None else np.asarray(weights, dtype=np.float64)
    if not w.all():  # a row of weight 0 is as good as absent, and a cluster of such rows alone is none
        columns = (np.asarray(column)[w > 0] for column in (logits, other_logits, labels, clusters, w))
        return paired_gain(*columns)._replace(rows=rows)
    y = np.asarray(labels, dtype=np.float64)
    positives = int(np.count_nonzero(y))
    code = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    count = int(code.max()) + 1 if rows else 0
    rarer = y > 0 if positives <= rows - positives else y <= 0
    lacking = too_few(positives, rows - positives, len(np.unique(code[rarer])))
    a, b = w * cross_entropy(logits, y), w * cross_entropy(other_logits, y)
    A, B = float(a.sum()), float(b.sum())
    if not 0 < positives < rows or B == 0:
        return PairedGain(None, None, None, None, count, rows, positives, lacking or "losses above 0 (0)")
    g = 100 * (1 - A / B)
    if lacking is not None:
        return PairedGain(g, None, None, None, count, rows, positives, lacking)
    by_cluster = np.bincount(code, weights=-100 * (a - A / B * b) / B, minlength=count)
    s = float(np.sqrt(count / (count - 1) * (by_cluster**2).sum()))
    reach = float(stdtrit(count - 1, 0.975)) * s
    return PairedGain(g, g - reach, g + reach, s, count, rows, positives, None)


def consecutive_blocks(rows: int, block_rows: int) -> np.ndarray:
    """Cluster ids of `rows` consecutive rows cut into blocks: [0, 0, …, 1, 1, …]; the last block may be short.

    >>> consecutive_blocks(5, 2).tolist()
    [0, 0, 1, 1, 2]
    """
    if block_rows < 1:
        raise ConfigError(f"a block of {block_rows} rows holds nothing; give 1 or more")
    return np.arange(rows) // block_rows
