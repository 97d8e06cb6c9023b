"""Comparison of models on the same rows: every list holds one entry per seed.

l is a row's log-loss, w its weight, per seed s; b the baseline, a the arm:

    gain         g_s = 100 · Σ w (l_b − l_a) / Σ w l_b          per cent of the baseline's NE; its mean over seeds

Errors: exfm/metrics/estimates.py. With one generated stream per seed, seeds are the independent units. Where all seeds
share a stream, both count: the seeds, and the clusters of rows, whose influence on a seed's gain is

    ψ_sc = 100 · Σ_{i in c} w_i ( (Σ w l_a / Σ w l_b) · l_b,i − l_a,i ) / Σ w l_b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from exfm.metrics.classification import calibration, cross_entropy, normalised_entropy
from exfm.metrics.clusters import Clusters, Sums
from exfm.metrics.estimates import Estimate, average_estimates, mean_of_seeds, mean_of_shared
from exfm.metrics.limits import too_few
from exfm.metrics.ranking import auc, gauc
from exfm.metrics.recalibration import recalibrated
from exfm.metrics.reliability import brier, clipped_log_loss
from pipelines.report.cells import Estimated, Measure, over_seeds
from pipelines.report.results.age import TENTHS

BySeed = Sequence[np.ndarray]
"""Logits or losses of the judged rows, (n,) float64; or which of them are taken, (n,) bool."""

Ids = tuple[np.ndarray, ...]
"""Which clusters of the stream a student has rows of, ascending, for each way of clustering."""


class JudgedRows(NamedTuple):
    """The judged rows of one seed, in order, (n,) each: `at` is their index among the student's rows, `places` in
    the stream; `logits` those of the teacher by snapshots, and the optimum's; `verticals` codes of the rows' verticals,
    None where these are not told apart."""

    at: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    clusters: Clusters
    logits: dict[Any, np.ndarray]
    student_rows: int
    stream_rows: int
    left_out: int
    verticals: np.ndarray | None = None

    def only(self, which: np.ndarray) -> JudgedRows:
        """Select rows by a mask. `at` becomes their number."""
        at = np.flatnonzero(which)
        return self._replace(
            at=at,
            places=self.places[at],
            labels=self.labels[at],
            weights=self.weights[at],
            clusters=self.clusters.take(at),
            logits={name: z[at].astype(np.float64) for name, z in self.logits.items()},
            verticals=None if self.verticals is None else self.verticals[at],
        )


@dataclass(frozen=True)
class Sample:
    """The rows of every seed, and the windows of those that models are judged on.

    clustered  whether clusters of rows are units of the error: all seeds then have the same rows
    """

    rows: Sequence[JudgedRows]
    windows: BySeed
    clustered: bool

    def __iter__(self) -> Iterator[tuple[JudgedRows, np.ndarray]]:
        return zip(self.rows, self.windows, strict=True)

    def within(self, masks: BySeed) -> Sample:
        """The rows of the windows that are in these masks, too."""
        return Sample(self.rows, [w & mask for w, mask in zip(self.windows, masks, strict=True)], self.clustered)

    @cached_property
    def n(self) -> int:
        """Number of rows of the first seed."""
        return int(self.windows[0].sum())

    @cached_property
    def counts(self) -> tuple[int, int]:
        """Rows and positives to judge by: of one seed where all have the same rows, else of all seeds together."""
        seeds = list(self)[: 1 if self.clustered else None]
        return sum(int(w.sum()) for _, w in seeds), sum(int(rows.labels[w].sum()) for rows, w in seeds)

    @cached_property
    def lacking(self) -> str | None:
        """Name of what is too scarce for an interval; None if there is enough."""
        count, positives = self.counts
        if not self.clustered:
            return too_few(positives, count - positives)
        (rows, window), *_ = self
        labels = rows.labels[window]
        rarer = labels > 0 if 2 * positives <= count else labels <= 0
        return too_few(positives, count - positives, rows.clusters.take(window).fewest(rarer))

    def estimate(self, values: Sequence[float], influence: Callable[[int], np.ndarray]) -> Estimate:
        """Mean over seeds of a figure; `influence(k)` (of the window's rows on the k-th seed's) is called if all seeds
        have the same rows."""
        if not self.clustered:
            return mean_of_seeds(values)
        influences = [influence(seed) for seed in range(len(values))]
        return mean_of_shared(values, influences, self.rows[0].clusters.take(self.windows[0]))

    def estimated(self, metric: str, estimate: Estimate | None) -> Estimated:
        """An estimate of these rows, without its interval where they are too few."""
        return Estimated(metric, estimate, self.n, self.lacking)


class Comparison(NamedTuple):
    """Losses of a baseline and of an arm, by seed, on the same rows."""

    base: BySeed
    own: BySeed
    sample: Sample

    def gain(self) -> Estimate | None:
        """Gain of the arm over the baseline; None if a loss is not finite."""
        b, a = (
            np.array([(r.weights[w] * x[w]).sum() for x, (r, w) in zip(each, self.sample, strict=True)])
            for each in (self.base, self.own)
        )
        if not (np.isfinite(a).all() and np.isfinite(b).all() and (b > 0).all()):
            return None
        rows, window = next(iter(self.sample))
        weights = rows.weights[window]

        def influence(seed: int) -> np.ndarray:
            A, B = a[seed], b[seed]
            return np.asarray(weights * 100 / B * (A / B * self.base[seed][window] - self.own[seed][window]))

        return self.sample.estimate(100 * (1 - a / b), influence)

    def within(self, masks: BySeed) -> Comparison:
        """The comparison on the rows of these masks only."""
        return self._replace(sample=self.sample.within(masks))


def losses(logits: BySeed, rows: Sequence[JudgedRows]) -> list[np.ndarray]:
    return [cross_entropy(z, r.labels) for z, r in zip(logits, rows, strict=True)]


def calibration_free(logits: BySeed, rows: Sequence[JudgedRows]) -> list[np.ndarray]:
    """Logits after the best map per vertical, fitted on the rows before (exfm/metrics/recalibration.py)."""
    return [recalibrated(z, r.labels, r.verticals, r.weights) for z, r in zip(logits, rows, strict=True)]


def metrics(logits: BySeed, sample: Sample, *, grouped: bool) -> Iterator[Measure]:
    """NE, AUC, GAUC, calibration, log-loss and Brier score, means over seeds; unknown where a figure is undefined under
    some seed. Without `grouped` there is no GAUC."""
    by_seed: list[dict[str, float | None]] = []
    for z, (r, window) in zip(logits, sample, strict=True):
        scored = z[window], r.labels[window], r.weights[window]
        finite = bool(window.any()) and bool(np.isfinite(scored[0]).all())
        groups = r.clusters.codes[0][window]
        by_seed.append({
            "ne": normalised_entropy(*scored) if finite else None,
            "auc": auc(*scored) if finite else None,
            "gauc": gauc(*scored[:2], groups, scored[2]).value if finite and grouped else None,
            "calibration": calibration(*scored) if finite else None,
            "log_loss": clipped_log_loss(*scored).value if finite else None,
            "brier": brier(*scored) if finite else None,
        })  # fmt: skip
    yield from (over_seeds(name, [of[name] for of in by_seed], sample.n) for name in by_seed[0])


def by_tenth(logits: BySeed, rows: Sequence[JudgedRows]) -> Iterator[Measure]:
    """`ne/tenth/K` of the stream; unknown where it is undefined or the student was not born."""
    for tenth in range(TENTHS):
        by_seed: list[float | None] = []
        count = 0
        for z, r in zip(logits, rows, strict=True):
            at = r.places * TENTHS // r.stream_rows == tenth
            alive = at.any() and np.isfinite(z[at]).all()
            by_seed.append(normalised_entropy(z[at], r.labels[at], r.weights[at]) if alive else None)
            count = int(at.sum())
        yield over_seeds(f"ne/tenth/{tenth}", by_seed, count)


def own_clusters(clusters: Clusters) -> tuple[Clusters, Ids]:
    """Clusters with rows, renumbered: one student has few of a stream's pairs.

    >>> few, ids = own_clusters(Clusters((np.array([7, 2, 7]),), (9,)))
    >>> few, ids
    (Clusters(codes=(array([1, 0, 1]),), counts=(2,)), (array([2, 7]),))
    """
    ways = [np.unique(code, return_inverse=True) for code in clusters.codes]
    ids = tuple(own for own, _ in ways)
    return Clusters(tuple(code for _, code in ways), tuple(map(len, ids))), ids


def mean_over_students(estimates: Sequence[Estimate], ids: Sequence[Ids]) -> Estimate:
    """Mean of one estimate per student, with clusters identified by `ids`.

    >>> both = [Estimate(1.0, (np.array([1.0, 2.0]),), np.empty(0)), Estimate(2.0, (np.array([3.0]),), np.empty(0))]
    >>> mean_over_students(both, [(np.array([2, 7]),), (np.array([7]),)]).clusters
    (array([0.5, 2.5]),)
    """
    every = [np.unique(np.concatenate(of)) for of in zip(*ids, strict=True)]

    def aligned(sums: Sums, own: Ids) -> Sums:
        placed = tuple(np.full(len(all_), np.nan, way.dtype) for all_, way in zip(every, sums, strict=False))
        for new, way, all_, clusters in zip(placed, sums, every, own, strict=False):
            new[np.searchsorted(all_, clusters)] = way
        return placed

    return average_estimates(
        [
            e._replace(clusters=aligned(e.clusters, own), crossed=aligned(e.crossed, own))
            for e, own in zip(estimates, ids, strict=True)
        ]
    )
