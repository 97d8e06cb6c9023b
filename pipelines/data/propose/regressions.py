"""Progressive NE of small logistic regressions, several side by side: rows are predicted when they were shown, and
learned when their labels have settled.

    z = Σ_c w_c + x·v over the ids c of a row and its numbers x      p = σ(z)      g_i = Σ_b (p_b − y_b) x_bi of a batch
    n_i ← n_i + g_i²      w_i ← w_i − α g_i / (1 + √n_i)      α = RATE / C

All M read the same ids, and differ in what they read besides. The steps are AdaGrad's (Duchi et al., JMLR 2011), at
the rate of the baseline in exfm/baselines/ftrl.py.

N rows, C ids of a row, B rows of a batch, U distinct ids of a batch, D numbers that all read, K numbers of one's own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exfm.metrics.classification import base_rate_entropy, cross_entropy, sigmoid

BATCH = 256
RATE = 2.0


class ProgressiveRows(NamedTuple):
    """Rows with known labels, in order of time.

    ids      (N, C) int64, the columns' ids numbered on from each other
    labels   (N,) float64, 0 and 1
    time     (N,) int64, when each was shown, ms
    settled  (N,) int64, when its label may be learned, ms; in order
    """

    ids: np.ndarray
    labels: np.ndarray
    time: np.ndarray
    settled: np.ndarray


class ProgressiveLosses(NamedTuple):
    """Loss of M regressions in each batch of rows, (S, M): the sum over its rows, in NE's unit, so that all of a
    regression's add up to its NE."""

    of_batch: np.ndarray

    @property
    def ne(self) -> np.ndarray:
        """(M,)"""
        return self.of_batch.sum(0)

    @property
    def gain(self) -> np.ndarray:
        """Share of the first one's NE by which each lies below it, (M,)."""
        return 1 - self.ne / self.ne[0]

    @property
    def error(self) -> np.ndarray:
        """Standard error of the gain, from batch to batch, (M,)."""
        less = self.of_batch[:, :1] - self.of_batch
        return np.sqrt(np.square(less - less.mean(0)).sum(0)) / self.ne[0]


def progressive_losses(rows: ProgressiveRows, shared: np.ndarray, own: np.ndarray) -> ProgressiveLosses:
    """`shared`: numbers that all regressions read, (N, D). `own`: those of each, (N, M, K).

    >>> rows, label = np.arange(2048), np.arange(2048) % 2
    >>> told = np.stack([0 * label, label - 0.5], axis=1)[:, :, None]
    >>> stream = ProgressiveRows(np.zeros((2048, 1), np.int64), label * 1.0, rows, rows)
    >>> ne = progressive_losses(stream, np.empty((2048, 0)), told).ne
    >>> bool(ne[0] > 0.99), bool(ne[1] < 0.5)
    (True, True)
    """
    (N, C), (_, M, K), D = rows.ids.shape, own.shape, shared.shape[1]
    alpha = RATE / C
    w, n = np.zeros((2, int(rows.ids.max()) + 1, M), np.float32)
    v, m = np.zeros((2, D, M), np.float32)
    u, k = np.zeros((2, M, K), np.float32)

    def logits(at: slice) -> np.ndarray:
        return w[rows.ids[at]].sum(1) + shared[at] @ v + np.einsum("bmk,mk->bm", own[at], u)

    def learn(at: slice) -> None:
        g_BM = sigmoid(logits(at)) - rows.labels[at, None]
        flat = rows.ids[at].ravel()
        order = np.argsort(flat, kind="stable")
        ids_U, starts = np.unique(flat[order], return_index=True)
        g_UM = np.add.reduceat(g_BM[order // C], starts)
        n[ids_U] += np.square(g_UM)
        w[ids_U] -= alpha * g_UM / (1 + np.sqrt(n[ids_U]))
        for weights, sums, g in ((v, m, shared[at].T @ g_BM), (u, k, np.einsum("bmk,bm->mk", own[at], g_BM))):
            sums += np.square(g)
            weights -= alpha * g / (1 + np.sqrt(sums))

    loss = np.empty((N, M))
    ends = np.arange(BATCH, N + 1, BATCH)
    learned = np.searchsorted(rows.settled[ends - 1], rows.time, side="right")  # batches, when each row was shown
    begin = np.searchsorted(learned, np.arange(len(ends) + 2))
    for batch in range(len(ends) + 1):
        at = slice(begin[batch], begin[batch + 1])
        loss[at] = cross_entropy(logits(at), rows.labels[at, None])
        if batch < len(ends):
            learn(slice(ends[batch] - BATCH, ends[batch]))
    entropy = base_rate_entropy(rows.labels.mean())
    if entropy is None:
        raise ValueError("all labels are the same: nothing remains to be predicted")
    return ProgressiveLosses(np.add.reduceat(loss, np.arange(0, N, BATCH)) / (N * entropy))
