"""Figures of models on the same rows, as functions: every list holds one entry per seed.

l is a row's log-loss, w its weight, per seed s; b the baseline, a the arm:

    gain         g_s = 100 · Σ w (l_b − l_a) / Σ w l_b          per cent of the baseline's NE; its mean over seeds

Errors: exfm/metrics/estimates.py. With one generated stream per seed, seeds are the independent units. Where all seeds
share a stream, both count: the seeds, and the clusters of rows, whose influence on a seed's gain is

    ψ_sc = 100 · Σ_{i in c} w_i ( (Σ w l_a / Σ w l_b) · l_b,i − l_a,i ) / Σ w l_b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from exfm.metrics.classification import calibration, cross_entropy, normalised_entropy
from exfm.metrics.clusters import Clusters, Sums
from exfm.metrics.estimates import Estimate, average_estimates, mean_of_seeds, mean_of_shared
from exfm.metrics.ranking import auc, gauc
from exfm.metrics.reliability import brier, clipped_log_loss
from pipelines.report.cells import Measure, over_seeds
from pipelines.report.results.age import TENTHS

WINDOWS = 24
FIGURES = ("ne", "auc", "gauc", "calibration", "log_loss", "brier")


class JudgedRows(NamedTuple):
    """The judged rows of one seed, in order, (n,) each: `at` is their index among the student's rows, `places` in
    the stream; `logits` those of the teacher by snapshots, and the optimum's."""

    at: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    clusters: Clusters
    logits: dict[Any, np.ndarray]
    student_rows: int
    stream_rows: int
    left_out: int

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
        )


Ids = tuple[np.ndarray, ...]
"""Which clusters of the stream a student has rows of, ascending, for each way of clustering."""


def own_clusters(clusters: Clusters) -> tuple[Clusters, Ids]:
    """Clusters with rows, renumbered: one student has few of a stream's pairs.

    >>> few, ids = own_clusters(Clusters((np.array([7, 2, 7]),), (9,)))
    >>> few, ids
    (Clusters(codes=(array([1, 0, 1]),), counts=(2,)), (array([2, 7]),))
    """
    found = [np.unique(code, return_inverse=True) for code in clusters.codes]
    ids = tuple(known for known, _ in found)
    return Clusters(tuple(code for _, code in found), tuple(map(len, ids))), ids


def mean_over_students(estimates: Sequence[Estimate], ids: Sequence[Ids]) -> Estimate:
    """Mean of one estimate per student, with clusters identified by `ids`.

    >>> both = [Estimate(1.0, (np.array([1.0, 2.0]),), np.empty(0)), Estimate(2.0, (np.array([3.0]),), np.empty(0))]
    >>> mean_over_students(both, [(np.array([2, 7]),), (np.array([7]),)]).clusters
    (array([0.5, 2.5]),)
    """
    every = [np.unique(np.concatenate(of)) for of in zip(*ids, strict=True)]

    def aligned(sums: Sums, own: Ids) -> Sums:
        placed = tuple(np.full(len(all_), np.nan, way.dtype) for all_, way in zip(every, sums, strict=False))
        for new, way, all_, known in zip(placed, sums, every, own, strict=False):
            new[np.searchsorted(all_, known)] = way
        return placed

    return average_estimates(
        [
            e._replace(clusters=aligned(e.clusters, own), crossed=aligned(e.crossed, own))
            for e, own in zip(estimates, ids, strict=True)
        ]
    )


BySeed = Sequence[np.ndarray]
"""Logits or losses of the judged rows, (n,) float64; or which of them are taken, (n,) bool."""


def losses(logits: BySeed, rows: Sequence[JudgedRows]) -> list[np.ndarray]:
    return [cross_entropy(z, r.labels) for z, r in zip(logits, rows, strict=True)]


def metrics(logits: BySeed, rows: Sequence[JudgedRows], windows: BySeed, *, grouped: bool) -> Iterator[Measure]:
    """FIGURES on the rows in `windows`, means over seeds; unknown where a figure is undefined under some seed. Without
    `grouped` there is no GAUC."""
    each: dict[str, list[float | None]] = {name: [] for name in FIGURES}
    for z, r, window in zip(logits, rows, windows, strict=True):
        arguments = z[window], r.labels[window], r.weights[window]
        finite = bool(window.any()) and bool(np.isfinite(arguments[0]).all())
        each["ne"].append(normalised_entropy(*arguments) if finite else None)
        each["auc"].append(auc(*arguments) if finite else None)
        in_groups = finite and grouped
        each["gauc"].append(
            gauc(*arguments[:2], r.clusters.codes[0][window], arguments[2]).value if in_groups else None
        )
        each["calibration"].append(calibration(*arguments) if finite else None)
        each["log_loss"].append(clipped_log_loss(*arguments).value if finite else None)
        each["brier"].append(brier(*arguments) if finite else None)
    n = int(windows[0].sum())
    yield from (over_seeds(name, values, n) for name, values in each.items())


def by_tenth(logits: BySeed, rows: Sequence[JudgedRows]) -> Iterator[Measure]:
    """`ne/tenth/K` of the stream; unknown where it is undefined or the student was not born."""
    for tenth in range(TENTHS):
        each: list[float | None] = []
        count = 0
        for z, r in zip(logits, rows, strict=True):
            at = r.places * TENTHS // r.stream_rows == tenth
            alive = at.any() and np.isfinite(z[at]).all()
            each.append(normalised_entropy(z[at], r.labels[at], r.weights[at]) if alive else None)
            count = int(at.sum())
        yield over_seeds(f"ne/tenth/{tenth}", each, count)


def gain(base: BySeed, own: BySeed, rows: Sequence[JudgedRows], windows: BySeed, *, clustered: bool) -> Estimate | None:
    """Gain of the losses `own` over `base` on the rows in `windows`; None if a loss is not finite.

    clustered  whether clusters of rows are units of the error: all seeds then have the same rows
    """
    b, a = _sums(base, rows, windows), _sums(own, rows, windows)
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (b > 0).all()):
        return None
    w, window = rows[0].weights[windows[0]], windows[0]

    def influence(seed: int) -> np.ndarray:
        A, B = a[seed], b[seed]
        return np.asarray(w * 100 / B * (A / B * base[seed][window] - own[seed][window]))

    return estimate_over_seeds(100 * (1 - a / b), influence, rows, windows, clustered=clustered)


def estimate_over_seeds(
    values: Sequence[float],
    influence: Callable[[int], np.ndarray],
    rows: Sequence[JudgedRows],
    windows: BySeed,
    *,
    clustered: bool,
) -> Estimate:
    """Mean over seeds of a figure; `influence(k)` (of the window's rows on the k-th seed's) is called if all seeds
    have the same rows."""
    if not clustered:
        return mean_of_seeds(values)
    influences = [influence(seed) for seed in range(len(values))]
    return mean_of_shared(values, influences, rows[0].clusters.take(windows[0]))


def _sums(values: BySeed, rows: Sequence[JudgedRows], windows: BySeed) -> np.ndarray:
    """Σ w l of each seed, (S,)."""
    triples = zip(values, rows, windows, strict=True)
    return np.array([(r.weights[w] * x[w]).sum() for x, r, w in triples])
