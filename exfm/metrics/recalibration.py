"""Calibration-free metrics: logits after the best affine map per group, fitted on the rows before each block.

    z' = a_g·z + b_g        a_g ≥ 0

NE has a calibration part and a ranking part (reliability and resolution: Murphy, J. Appl. Meteorol. 12, 1973). The NE
of z' leaves out of the first whatever scale and shift can mend, as Platt scaling does (Platt, 1999): a model that is
off by a constant, or by a drift that is slow against the rows that the map remembers, has about the NE of one that is
not. What is left is how well rows are told apart. (a, b) are fitted online (exfm/distillation/regression.py), and each
block is mapped before they learn it, so the map knows no label of the rows that it is judged on. A falling map is not
allowed: a ranking that is wrong stays wrong.

The first rows of a stream are those of an untrained model, which no map of the later one should know: a row counts half
after a quarter as many rows as there were before it, at most `HALF_LIFE_ROWS`.

N rows in the order of the stream. A group, such as a vertical, needs some hundred positives until its map costs less
than it mends.
"""

from __future__ import annotations

import numpy as np
import torch

from exfm.distillation.regression import RegressionSettings, initial, learned

BLOCK_ROWS = 256  # of one group
HALF_LIFE_ROWS = 10_000  # with fewer the map's own noise would cost more than some .03 % of NE
_TERMS = RegressionSettings(
    start=(1.0, 0.0), least=(0.0, -20.0), largest=(10.0, 20.0), half_life_rows=HALF_LIFE_ROWS, iterations=3
)


def recalibrated(
    logits: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None, weights: np.ndarray | None = None
) -> np.ndarray:
    """z' (N,) float64 of logits (N,), labels (N,) in {0, 1}, groups (N,) of codes (one group without), weights (N,) or
    1 each. A logit that is not finite stays as it is, and nothing is learned of it.

    >>> from exfm.metrics import normalised_entropy
    >>> generator = np.random.default_rng(0)
    >>> z, vertical = generator.normal(-2, 1, 20_000), generator.integers(0, 2, 20_000)
    >>> y = generator.random(20_000) < 1 / (1 + np.exp(-z))
    >>> off = np.where(vertical, 1.5 * z - 1, z + 1)
    >>> [round(float(normalised_entropy(x[5000:], y[5000:])), 3) for x in (z, off, recalibrated(off, y, vertical))]
    [0.874, 1.084, 0.876]
    """
    z = np.array(logits, dtype=np.float64)
    codes, mapped, finite = np.zeros(len(z)) if groups is None else groups, z.copy(), np.isfinite(z)
    x_N11, y_N1 = torch.from_numpy(z[:, None, None]), torch.from_numpy(np.asarray(labels, np.float32)[:, None])
    w_N = torch.ones(len(z)) if weights is None else torch.from_numpy(np.asarray(weights, np.float32))
    for group in np.unique(codes):
        rows, state = np.flatnonzero((codes == group) & finite), initial(_TERMS, 1)
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            (a, b), known = state.theta[0].tolist(), torch.ones(len(block), 1, dtype=torch.bool)
            mapped[block] = a * z[block] + b
            terms = _TERMS._replace(half_life_rows=min(HALF_LIFE_ROWS, max(start, BLOCK_ROWS) // 4))
            state = learned(state, terms, x_N11[block], y_N1[block], known, w_N[block])
    return mapped
