"""Features whose values change over time, in all rows and in every vertical.

    PSI = Σ_b (p_b − q_b) log(p_b / q_b)            p, q: shares of the bins b in a day and in all days before it

less what chance alone gives, (B − 1)(1/n + 1/m) for n and m rows. A column of many values is compared by its most
frequent ones and the rest together. Above 0.1 a change is seen, above 0.25 it is large.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.data.findings import Finding, Rules, Severity
from pipelines.data.profile.codes import codes_of, days_of, feature_names

RULES = Rules("""
note|warn  drift.values  drift: {feature}
    values of `{feature}` changed most at {day} in {of}: PSI {psi:.2f}
    -> see whether its source changed; arms are best judged on both sides
""")

FREQUENT = 30
FEWEST_ROWS = 500
CHANGED, LARGE = 0.1, 0.25
CLOCK = 0.95
HOUR_MS = 3_600_000


class Drift(NamedTuple):
    """The largest change of a feature; `vertical` None means all rows."""

    feature: str
    vertical: str | None
    day: str
    psi: float


def drifts(table: pa.Table, growing: Collection[str] = ()) -> list[Drift]:
    """The largest change of every feature in all rows, or in a vertical where that is larger; the largest first.
    Columns that tell the time are left out, and those that are known to grow."""
    day, names = days_of(table)
    verticals: dict[str | None, np.ndarray] = {None: np.ones(table.num_rows, dtype=bool)}
    if "vertical" in table.schema.names:
        of = np.asarray(table["vertical"].to_numpy(zero_copy_only=False))
        verticals |= {str(name): of == name for name in np.unique(of.astype(str))}
    largest = []
    for name in feature_names(table):
        whole = codes_of(table[name])
        if name == "vertical" or name in growing or _tells_the_time(whole, table["event_time_ms"].to_numpy()):
            continue
        code = _frequent(whole)
        each = [
            Drift(name, vertical, names[k], psi)
            for vertical, mask in verticals.items()
            for k, psi in _by_day(code[mask], day[mask], len(names))
        ]
        if each:
            largest.append(max(each, key=lambda one: one.psi))
    return sorted(largest, key=lambda one: -one.psi)


def changes(drifts: Sequence[Drift]) -> Iterator[Finding]:
    for one in drifts:
        if one.psi >= CHANGED:
            of = "all rows" if one.vertical is None else f"vertical {one.vertical}"
            severity = Severity.WARN if one.psi >= LARGE else Severity.NOTE
            yield RULES("drift.values", severity, feature=one.feature, day=one.day, of=of, psi=one.psi)


def psi(now: np.ndarray, before: np.ndarray) -> float:
    """PSI of counts by bin, (B,) each, less what chance gives; never below 0.

    >>> psi(np.array([500, 500]), np.array([500, 500])), round(psi(np.array([900, 100]), np.array([500, 500])), 3)
    (0.0, 0.877)
    """
    used = (now + before) > 0
    n, m = float(now.sum()), float(before.sum())
    p, q = (np.maximum(counts[used], 0.5) / total for counts, total in ((now, n), (before, m)))
    value = float(((p - q) * np.log(p / q)).sum())
    return max(0.0, value - (int(used.sum()) - 1) * (1 / n + 1 / m))


def _by_day(code: np.ndarray, day: np.ndarray, days: int) -> Iterator[tuple[int, float]]:
    bins = int(code.max(initial=0)) + 1
    counts = np.bincount(day * bins + code, minlength=days * bins).reshape(days, bins)
    before = np.cumsum(counts, axis=0) - counts
    for k in range(1, days):
        if counts[k].sum() >= FEWEST_ROWS and before[k].sum() >= FEWEST_ROWS:
            yield k, psi(counts[k], before[k])


def _tells_the_time(code: np.ndarray, at: np.ndarray) -> bool:
    """True if a column is a clock or a calendar: one value in nearly all rows of an hour, others in other hours."""
    hour = np.unique(at // HOUR_MS, return_inverse=True)[1].reshape(-1)
    pairs, counts = np.unique(hour * (int(code.max(initial=0)) + 1) + code, return_counts=True)
    most = np.zeros(int(hour.max(initial=0)) + 1, np.int64)
    np.maximum.at(most, pairs // (int(code.max(initial=0)) + 1), counts)
    return bool(code.max(initial=0) > 0 and most.sum() >= CLOCK * len(code))


def _frequent(code: np.ndarray) -> np.ndarray:
    """Codes of the most frequent values, and one for the rest."""
    counts = np.bincount(code)
    if len(counts) <= FREQUENT:
        return code
    frequent = np.argsort(-counts, kind="stable")[:FREQUENT]
    new = np.full(len(counts), FREQUENT)
    new[frequent] = np.arange(FREQUENT)
    return np.asarray(new[code])
