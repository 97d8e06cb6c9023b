"""A finished comparison replayed as if monitored: the evidence after N rows, and the earliest stop.

The evidence is that of sequential.py, over all blocks at once. Differences d = h(other) − h(model) in nats, above 0 the
model is better; with several seeds on one stream, D_b is the mean over seeds of a block's weighted mean, and on streams
of their own, blocks of the same number are averaged. The scale c comes from blocks that are no evidence themselves:
those of rows before the comparison begins, where there are such and models differ on most, else its own first blocks.

    E = (E⁺ + E⁻) / 2            against a mean difference of 0, either way
    stop                         at the first row where one of E⁺, E⁻ reaches 2/α: there the sequence excludes 0

The same says when predictions cease to be calibrated: y − p has mean 0 as long as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exfm.errors import ConfigError
from exfm.metrics.sequential import log_e_values, path, reach

BLOCK_ROWS = 64
PILOT_BLOCKS = 64
FEWEST_PILOT_BLOCKS = 8
CLIP_SD = 6.0
POINTS = 120
"""The confidence sequence is given at this many blocks at most, evenly spaced, the last one included."""


class Watched(NamedTuple):
    """`rows` (P,): how many rows had been seen; at each, the mean `difference` so far and its confidence sequence from
    `low` to `high`, in nats, (P,) each.

    log_e             log E after the last block
    stopped_at        rows after which the sequence first excludes 0; None: never
    sign              of the difference where it first did, 1 or -1; 0: never
    blocks            blocks that count as evidence
    clipped           how many of them were clipped
    block_variance    of a block's mean, in nats²
    scale             c
    """

    rows: np.ndarray
    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    log_e: float
    stopped_at: int | None
    sign: int
    blocks: int
    clipped: int
    block_variance: float
    scale: float


def watch(
    differences: Sequence[np.ndarray],
    weights: Sequence[np.ndarray] | None = None,
    before: Sequence[np.ndarray] = (),
    *,
    alpha: float = 0.05,
    block_rows: int = BLOCK_ROWS,
    least_scale: float = 0.0,
) -> Watched | None:
    """Replay anytime-valid monitoring over `differences` of S seeds, (N,) each in order of time, with `weights` alike,
    1 each if omitted; `before`: differences of earlier rows; `least_scale`: lower bound of c for models that begin
    alike. None where there is no block of evidence after the pilot. Raises ConfigError for an α outside (0, 1), and for
    a block of no rows.

    >>> rng = np.random.default_rng(0)
    >>> found = watch([rng.normal(0.02, 0.1, 20_000)], before=[rng.normal(0.02, 0.1, 4096)])
    >>> found.blocks, found.sign, found.stopped_at, bool(found.low[-1] < 0.02 < found.high[-1])
    (312, 1, 4224, True)
    """
    if not 0 < alpha < 1 or block_rows < 1:
        raise ConfigError(f"a level of {alpha:g} and blocks of {block_rows} rows; give a level in (0, 1) and 1 or more")
    means = _block_means(differences, weights, block_rows)
    pilot = _block_means(before, None, block_rows) if len(before) else np.empty(0)
    skipped = 0
    pilot = pilot[-PILOT_BLOCKS:]
    if len(pilot) < FEWEST_PILOT_BLOCKS or 2 * np.count_nonzero(pilot) < len(pilot):
        skipped = min(PILOT_BLOCKS, max(FEWEST_PILOT_BLOCKS, len(means) // 8))
        pilot, means = means[:skipped], means[skipped:]
    if not len(means):
        return None
    c = max(least_scale, CLIP_SD * float(np.sqrt((pilot**2).mean())))
    D = np.clip(means, -c, c)
    S, V = path(D, c)
    better, worse = log_e_values(S, V, c), log_e_values(-S, V, c)
    crossed = np.flatnonzero(np.maximum(better, worse) >= np.log(2 / alpha))
    first = int(crossed[0]) if len(crossed) else None
    shown = np.unique(np.linspace(0, len(D) - 1, min(POINTS, len(D))).round().astype(int))
    T = shown + 1
    u = reach(V[shown], c, alpha / 2) / T
    return Watched(
        rows=(skipped + T) * block_rows,
        difference=S[shown] / T,
        low=S[shown] / T - u,
        high=S[shown] / T + u,
        log_e=float(np.logaddexp(better[-1], worse[-1]) - np.log(2)),
        stopped_at=None if first is None else (skipped + first + 1) * block_rows,
        sign=0 if first is None else (1 if better[first] > worse[first] else -1),
        blocks=len(D),
        clipped=int(np.count_nonzero(means != D)),
        block_variance=float(D.var()),
        scale=c,
    )


def _block_means(values: Sequence[np.ndarray], weights: Sequence[np.ndarray] | None, block_rows: int) -> np.ndarray:
    """The weighted means of blocks, averaged over seeds, (B,). A block without weight is 0: nothing differed."""
    each = []
    for s, of in enumerate(values):
        d = np.asarray(of, dtype=np.float64)
        w = np.ones(len(d)) if weights is None else np.asarray(weights[s], dtype=np.float64)
        whole = len(d) // block_rows * block_rows
        w_BK = w[:whole].reshape(-1, block_rows)
        total = w_BK.sum(1)
        each.append((d[:whole].reshape(-1, block_rows) * w_BK).sum(1) / np.where(total > 0, total, 1.0))
    count = min(map(len, each), default=0)
    return np.mean([means[:count] for means in each], axis=0) if count else np.empty(0)
