"""Anytime-valid comparison of two models while the stream runs: its evidence may be inspected after every row.

A plain interval or p-value holds at one moment that was fixed before. Looked at again and again, it crosses its level
sooner or later though nothing is gained. An e-process does not: whoever stops whenever they like is wrong with
probability α at most. (Howard et al. 1810.08240; Waudby-Smith & Ramdas 2010.09686; for two forecasters Choe & Ramdas
2110.00115.)

**What is compared.** d = h(champion) − h(candidate) per row, in nats, both scored before either learned the row; above
0 the candidate is better. Rows next to each other are not independent (a user's session, an ad's hour), so the unit is
a block: D_b, the weighted mean of d over `block_rows` consecutive rows, clipped to ±c. What happens between rows of one
block cannot make the evidence look larger than it is.

**The scale c** is `clip_sd` × the root mean square of the first `pilot_blocks` blocks, which are no evidence
themselves: c is known before the first block that counts. What is clipped is counted, and the mean without clipping is
kept as well: a rare disaster of the candidate that clipping hides shows there.

**The evidence** after T blocks, with γ_b the running mean of the D before b, held within ±c/8:

    S = Σ D_b      V = Σ (D_b − γ_b)²      s = 9c/8, so that D_b − γ_b ≥ −s always
    E = mean over λ in a grid of (0, 1/s) of exp(λ S − ψ(λ) V),      ψ(λ) = (−log(1 − sλ) − sλ) / s²

By Fan's inequality exp(λ ξ − ψ(λ) ξ²) ≤ 1 + λ ξ for ξ ≥ −s, so with μ_b = E[D_b | everything before b], the same with
S − Σ μ_b in place of S is a supermartingale that starts at 1: by Ville's inequality it ever reaches 1/α with
probability α at most. Hence at all T at once:

    E ≥ 1/α          the mean of the μ_b so far is above 0, or something of probability ≤ α happened
    S/T ± u(V)/T     holds the mean of the μ_b so far; u is where E would be 2/α (α/2 on each side)

Nothing is asked of how μ_b moves: a candidate that is better by day and worse by night is judged by its mean so far. It
speaks of these two models on this stream; of other seeds or other streams it says nothing.

B blocks, P pairs of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from exfm.errors import ConfigError, ModelError

GAMMA_SHARE = 1 / 8
"""γ is held within this share of c, which keeps the scale s close to c."""
GRID = 0.9 * 2.0 ** (-np.arange(20) / 2)
"""s · λ, for every λ of the mixture: from effects of a block's own size down to a thousandth of it."""
COUNTS = ("rows", "blocks", "pilot", "clipped", "unscored")
SUMS = ("total", "variance", "scale", "raw", "clipped_mass", "pilot_squares")


def log_e_values(total: np.ndarray, variance: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    """log E of sums S and V and clips c, arrays that broadcast: that the mean is above 0. With −S: below 0.

    A scale of 0 (models that never differed) is no evidence: log E = 0.

    >>> [round(float(log_e_values(np.array(S), np.array(100.0), 0.5)), 1) for S in (0.0, 30.0, 60.0)]
    [-0.5, 2.2, 11.9]
    """
    s = np.asarray(scale, dtype=np.float64) * (1 + GAMMA_SHARE)
    has_variance = s > 0
    s = np.where(has_variance, s, 1.0)
    exponents = _exponents(np.asarray(total, dtype=np.float64) / s, np.asarray(variance, dtype=np.float64) / s**2)
    return np.where(has_variance, exponents, 0.0)


def reach(variance: np.ndarray | float, scale: np.ndarray | float, alpha: float) -> np.ndarray:
    """Threshold u(V) of S for E = 1/α, in nats × blocks. Raises ConfigError for an α outside (0, 1).

    >>> u = reach(100.0, 8.0, alpha=0.05)
    >>> bool(abs(log_e_values(u, np.array(100.0), 8.0) - np.log(20)) < 1e-9)
    True
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"a level of {alpha:g} is no probability of being wrong; give one between 0 and 1, as 0.05")
    s = np.asarray(scale, dtype=np.float64) * (1 + GAMMA_SHARE)
    V = np.asarray(variance, dtype=np.float64) / np.where(s > 0, s, 1.0) ** 2
    low, high = np.zeros_like(V), np.ones_like(V)
    while (short := _exponents(high, V) < -np.log(alpha)).any():
        high = np.where(short, 2 * high, high)
    for _ in range(80):
        middle = (low + high) / 2
        enough = _exponents(middle, V) >= -np.log(alpha)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high * s)


def _exponents(total: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """log of the mixture, for S and V in units of s and s²."""
    psi = -np.log1p(-GRID) - GRID
    each = GRID * total[..., None] - psi * variance[..., None]
    most = each.max(-1)
    return np.asarray(most + np.log(np.exp(each - most[..., None]).mean(-1)))


class Path(NamedTuple):
    """Sums after each of B blocks, each (…, B): S and V."""

    total: np.ndarray
    variance: np.ndarray


def path(
    blocks: np.ndarray, scale: np.ndarray | float, total: float = 0.0, variance: float = 0.0, before: int = 0
) -> Path:
    """S and V after every block of `blocks` (…, B), clipped already, going on from sums over `before` blocks.

    The sums run from left to right, so any cut of the blocks into calls gives the same bits.
    """
    lead = np.zeros((*blocks.shape[:-1], 1))
    S = np.cumsum(np.concatenate([lead + total, blocks], axis=-1), axis=-1)
    count = before + np.arange(blocks.shape[-1])
    cap = np.asarray(scale)[..., None] * GAMMA_SHARE if np.ndim(scale) else scale * GAMMA_SHARE
    gamma = np.clip(S[..., :-1] / np.maximum(count, 1), -cap, cap)
    V = np.cumsum(np.concatenate([lead + variance, (blocks - gamma) ** 2], axis=-1), axis=-1)
    return Path(S[..., 1:], V[..., 1:])


class Evidence(NamedTuple):
    """Evidence on a candidate for one task. Differences are in nats per row, above 0: the candidate is better.

    log_e_better, log_e_worse    logs of the e-values that its mean difference is above 0, and below
    difference, low, high        the mean of the clipped blocks and its confidence sequence; None before the first, and
                                 where none was asked for
    raw                          the mean difference without clipping, of the same blocks
    rows, blocks                 all rows that were compared, blocks that count as evidence (without the pilot)
    scale                        c; None while the pilot runs
    clipped, clipped_mass        blocks that were clipped, and what was cut off in nats per block
    unscored                     rows where a model gave no finite logit: they are in no block
    """

    log_e_better: float
    log_e_worse: float
    difference: float | None
    low: float | None
    high: float | None
    raw: float | None
    rows: int
    blocks: int
    scale: float | None
    clipped: int
    clipped_mass: float
    unscored: int


class PairedEvidence:
    """Evidence on one pair of models and one task, row by row: a few sums, and the rows of the open block.

    >>> rng = np.random.default_rng(0)
    >>> evidence = PairedEvidence(block_rows=64, pilot_blocks=16)
    >>> evidence.add(rng.normal(0.01, 0.1, 40_000))  # the candidate's loss is lower by 0.01
    >>> found = evidence.look(alpha=0.05)
    >>> found.log_e_better > 3.0, found.low > 0, found.blocks, found.clipped
    (True, True, 609, 0)
    """

    def __init__(self, block_rows: int = 64, pilot_blocks: int = 64, clip_sd: float = 6.0) -> None:
        """Raises ConfigError where no block or no scale could come of it."""
        if block_rows < 1 or pilot_blocks < 1 or not clip_sd > 0:
            raise ConfigError(
                f"blocks of {block_rows} rows, {pilot_blocks} of them as a pilot, clipped at {clip_sd:g} times their "
                "size: all three have to be above 0"
            )
        self.block_rows, self.pilot_blocks, self.clip_sd = block_rows, pilot_blocks, clip_sd
        self._counts = dict.fromkeys(COUNTS, 0)
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._open = np.zeros((2, 0))  # differences and weights of the block that is not full yet

    def add(self, differences: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Count rows: differences (N,) in nats, weights (N,) ≥ 0 or 1 each. A difference that is not finite is
        unscored; rows of weight 0 are as good as absent."""
        w = np.ones(len(differences)) if weights is None else np.asarray(weights, dtype=np.float64)
        d = np.asarray(differences, dtype=np.float64)
        scored = np.isfinite(d)
        self._counts["unscored"] += int(np.count_nonzero(~scored))
        used = scored & (w > 0)
        rows = np.concatenate([self._open, np.stack([d[used], w[used]])], axis=1)
        self._counts["rows"] += int(np.count_nonzero(used))
        whole = rows.shape[1] // self.block_rows
        self._open = rows[:, whole * self.block_rows :]
        if whole:
            d_BK, w_BK = rows[:, : whole * self.block_rows].reshape(2, whole, self.block_rows)
            self._add_blocks((d_BK * w_BK).sum(1) / w_BK.sum(1))

    def _add_blocks(self, means: np.ndarray) -> None:
        counts, sums = self._counts, self._sums
        pilot, means = np.split(means, [self.pilot_blocks - counts["pilot"]])
        for mean in pilot.tolist():
            sums["pilot_squares"] += mean * mean
        counts["pilot"] += len(pilot)
        if counts["pilot"] == self.pilot_blocks and len(pilot):
            sums["scale"] = self.clip_sd * float(np.sqrt(sums["pilot_squares"] / self.pilot_blocks))
        if not len(means):
            return
        c = sums["scale"]
        D = np.clip(means, -c, c)
        after = path(D, c, sums["total"], sums["variance"], counts["blocks"])
        sums["total"], sums["variance"] = float(after.total[-1]), float(after.variance[-1])
        for mean, cut in zip(means.tolist(), np.abs(means - D).tolist(), strict=True):
            sums["raw"] += mean
            sums["clipped_mass"] += cut
        counts["clipped"] += int(np.count_nonzero(means != D))
        counts["blocks"] += len(D)

    def look(self, alpha: float | None = 0.05) -> Evidence:
        """The current evidence; the confidence sequence is wrong at any time with probability `alpha` at most. None:
        without one, which takes a hundredth of the time."""
        counts, sums = self._counts, self._sums
        T, S, V, c = counts["blocks"], sums["total"], sums["variance"], sums["scale"]
        better, worse = log_e_values(np.array([S, -S]), np.array([V, V]), c).tolist()
        u = float(reach(V, c, alpha / 2)) if T and alpha is not None else None
        return Evidence(
            log_e_better=better,
            log_e_worse=worse,
            difference=S / T if T else None,
            low=None if u is None else (S - u) / T,
            high=None if u is None else (S + u) / T,
            raw=sums["raw"] / T if T else None,
            rows=counts["rows"],
            blocks=T,
            scale=c if counts["pilot"] == self.pilot_blocks else None,
            clipped=counts["clipped"],
            clipped_mass=sums["clipped_mass"] / T if T else 0.0,
            unscored=counts["unscored"],
        )

    def state(self) -> dict[str, np.ndarray]:
        """The complete state, lossless: continuing from it gives the same bits as an uninterrupted run."""
        return {
            "cut": np.array([self.block_rows, self.pilot_blocks, self.clip_sd], dtype=np.float64),
            "counts": np.array([self._counts[name] for name in COUNTS], dtype=np.int64),
            "sums": np.array([self._sums[name] for name in SUMS], dtype=np.float64),
            "open": self._open.copy(),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore from a `state`. Raises ModelError if its blocks were cut otherwise."""
        now = [self.block_rows, self.pilot_blocks, self.clip_sd]
        if list(state["cut"]) != now:
            was = ", ".join(f"{value:g}" for value in state["cut"])
            asked = ", ".join(f"{value:g}" for value in now)
            raise ModelError(
                f"the evidence was kept with block_rows, pilot_blocks and clip_sd of {was}, and {asked} are asked for "
                "now; keep the former, or begin the comparison afresh"
            )
        self._counts = {name: int(value) for name, value in zip(COUNTS, state["counts"], strict=True)}
        self._sums = {name: float(value) for name, value in zip(SUMS, state["sums"], strict=True)}
        self._open = np.array(state["open"], dtype=np.float64)
