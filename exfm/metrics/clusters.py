"""Clusters of rows by one column or by two, and the resulting variance of a sum over rows.

ψ_i is what row i adds to the error of a figure, its influence. Rows of one user are not independent of each other, so
influences are summed by cluster first. With G clusters

    V = G / (G − 1) · Σ_c (Σ_{i in c} ψ_i)²                                 G − 1 degrees of freedom

Rows of one item depend on each other, too, whichever users saw it. Two rows that share the user u, the item v or both
(Cameron, Gelbach & Miller, Robust inference with multiway clustering, 2011):

    V = V_u + V_v − V_uv            uv: pairs of both, which V_u and V_v count twice
    never below the larger of V_u and V_v                                   min(G_u, G_v) − 1 degrees of freedom
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exfm.errors import ConfigError

Sums = tuple[np.ndarray, ...]
"""Influences summed by cluster, (G,) for each way of clustering: one, or those of both columns and of their pairs. NaN
where a cluster has no row: it does not count."""


class Variance(NamedTuple):
    """A variance; `value` 0 with `freedom` 0 if unknown: a single cluster gives no error."""

    value: float
    freedom: float

    @property
    def se(self) -> float:
        return float(np.sqrt(self.value))

    @property
    def reach(self) -> float:
        """Half of the 95 % interval: t_{.975} standard errors; NaN where it is unknown.

        >>> round(Variance(4.0, 10).reach, 3)
        4.456
        """
        from scipy.special import stdtrit  # .1 s to import, and of use at the end of a run alone

        return float(stdtrit(self.freedom, 0.975)) * self.se


class Clusters(NamedTuple):
    """The clusters of N rows.

    codes   (N,) from 0, for each way of clustering: of the one column, or of both columns and of their pairs
    counts  how many clusters there are, for each way; those that have no row among the N included

    >>> clusters = Clusters.of(np.array(["u", "u", "v", "v"]), np.array([7, 8, 8, 8]))
    >>> clusters.counts
    (2, 2, 3)
    >>> [way.tolist() for way in clusters.sums(np.array([1.0, 2.0, 3.0, 4.0]))]
    [[3.0, 7.0], [1.0, 9.0], [1.0, 2.0, 7.0]]
    >>> [way.tolist() for way in clusters.take(np.array([2])).sums(np.array([3.0]))]
    [[nan, 3.0], [nan, 3.0], [nan, nan, 3.0]]
    """

    codes: tuple[np.ndarray, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, *columns: np.ndarray) -> Clusters:
        """Cluster rows by one or two columns (N,) of ids of any type. Raises ConfigError for another number."""
        if len(columns) not in (1, 2):
            raise ConfigError(f"rows are clustered by one column or by two, not by {len(columns)}")
        codes = [_codes(column) for column in columns]
        if len(codes) == 2:
            u, v = codes
            codes.append(_codes(u * (int(v.max(initial=0)) + 1) + v))
        return cls(tuple(codes), tuple(int(code.max(initial=-1)) + 1 for code in codes))

    def take(self, rows: np.ndarray) -> Clusters:
        """The clusters of a selection of rows, by indices or mask."""
        return Clusters(tuple(code[rows] for code in self.codes), self.counts)

    def sums(self, influence: np.ndarray) -> Sums:
        """An influence per row, (N,), summed by cluster."""
        pairs = zip(self.codes, self.counts, strict=True)
        return tuple(
            np.where(np.bincount(code, minlength=count) > 0, np.bincount(code, influence, count), np.nan)
            for code, count in pairs
        )

    def fewest(self, rows: np.ndarray | None = None) -> int:
        """Number of clusters with at least one of the N rows, or of those where `rows` (N,) is true; for two
        columns, the smaller number."""
        columns = zip(self.codes[:2], self.counts[:2], strict=True)
        return min(
            int(np.count_nonzero(np.bincount(code if rows is None else code[rows], minlength=count)))
            for code, count in columns
        )


def variance_of(sums: Sequence[np.ndarray]) -> Variance:
    """The variance of a figure from its influences, real or complex, summed by the clusters of one column, or of two
    and their pairs.

    >>> variance_of([np.array([1.0, -1.0, np.nan])])
    Variance(value=4.0, freedom=1)
    >>> u, v, uv = np.array([3.0, -3.0]), np.array([1.0, -1.0]), np.array([2.0, 1.0, -1.0, -2.0])
    >>> variance_of([u, v, uv])  # 36 + 4 − 40/3 would be less than 36
    Variance(value=36.0, freedom=1)
    """
    ways = [_one_way(way) for way in sums]
    freedom = min((way.freedom for way in ways[:2]), default=0)
    if not freedom:
        return Variance(0.0, 0)
    if len(ways) == 1:
        return ways[0]
    u, v, uv = (way.value for way in ways)
    return Variance(max(u + v - uv, u, v), freedom)


def _one_way(sums: np.ndarray) -> Variance:
    pieces = sums[~np.isnan(sums)]
    G = len(pieces)
    return Variance(float(G / (G - 1) * (np.abs(pieces) ** 2).sum()), G - 1) if G > 1 else Variance(0.0, 0)


def _codes(column: np.ndarray) -> np.ndarray:
    return np.unique(column, return_inverse=True)[1].reshape(-1).astype(np.int64)
