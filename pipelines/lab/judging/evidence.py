"""Confidence in a gain beyond one interval: under a sequential test, over event time, and segment by segment.

Every figure is in per cent of the baseline's NE, above 0 is better. Two intervals are shown of each gain: other rows
would give the one, other seeds the other. What watching shows is a difference of log-losses over the baseline's mean
log-loss, which is the same ratio; the test itself is of the difference (exfm/metrics/sequential.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from exfm.metrics.classification import calibration, sigmoid
from exfm.metrics.limits import too_few
from exfm.metrics.power import rows_needed, rows_to_stop
from exfm.metrics.watching import BLOCK_ROWS, Watched, watch
from pipelines.lab.judging.figures import WINDOWS, BySeed, JudgedRows, gain
from pipelines.report.cells import Estimated, Measure, part

EFFECT = 0.2
"""The gain, in % of NE, for which the rows needed to detect it are computed."""


SHARE_OF_LOSS = 0.6
"""Blocks are clipped no closer than this share of the standard deviation of a block's mean loss: arms that begin alike,
as before a teacher's first logits, would else be clipped where they part."""

PILOT_ROWS = 512


def watched(base: BySeed, own: BySeed, rows: Sequence[JudgedRows], windows: BySeed) -> Iterator[Measure]:
    """A gain under a sequential test over the rows in `windows`; nothing where losses are not finite, or rows are too
    few. The rows before them give the scale.

        gain/after/N           after N rows, with a bound that holds at all rows at once
        watched/log_e          the log of the e-value after the last row
        watched/stopped_at     rows after which 0 is excluded first
        watched/rows_to_stop   rows that a gain of EFFECT would have needed
    """
    if (evidence := _evidence(base, own, rows, windows)) is None:
        return
    found, scale = evidence
    for n, value, low, high in zip(found.rows.tolist(), found.difference, found.low, found.high, strict=True):
        yield Measure(f"gain/after/{n}", _scaled(value, scale), _scaled(low, scale), _scaled(high, scale), n)
    yield Measure("watched/log_e", found.log_e, n=int(found.rows[-1]))
    yield Measure("watched/blocks", found.blocks)
    if found.stopped_at is not None:
        yield Measure("watched/stopped_at", found.stopped_at)
    needed = rows_to_stop(found.block_variance, found.scale, EFFECT / scale, block_rows=BLOCK_ROWS)
    if needed is not None:
        yield Measure("watched/rows_to_stop", needed)


def _scaled(value: float, scale: float) -> float:
    return round(float(scale * value), 5)


def _evidence(base: BySeed, own: BySeed, rows: Sequence[JudgedRows], windows: BySeed) -> tuple[Watched, float] | None:
    differences, weights, before, loss, weight = [], [], [], 0.0, 0.0
    least = np.inf
    for b, a, r, window in zip(base, own, rows, windows, strict=True):
        d = b - a
        if not window.any() or not np.isfinite(d[window]).all():
            return None
        differences.append(d[window])
        weights.append(r.weights[window])
        earlier = np.arange(len(d)) < np.argmax(window)
        before.append(d[earlier & np.isfinite(d)])
        known = b[earlier & np.isfinite(b)]
        pilot = known if len(known) >= PILOT_ROWS else b[window][:PILOT_ROWS]
        least = min(least, SHARE_OF_LOSS * float(pilot.std()) / BLOCK_ROWS**0.5)
        loss += float((b[window] * r.weights[window]).sum())
        weight += float(r.weights[window].sum())
    result = watch(differences, weights, before, least_scale=least)
    return None if result is None or not loss > 0 else (result, 100 * weight / loss)


def power(gain: Estimated) -> Iterator[Measure]:
    """Rows that a gain of EFFECT needs, looked at once, from the standard error that the judged rows gave."""
    if gain.estimate is None or gain.lacking is not None or not (se := gain.estimate.summary()["se"]):
        return
    yield Measure(f"rows for {EFFECT:g} %", rows_needed(se, gain.n, EFFECT))


def over_windows(
    base: BySeed, own: BySeed, rows: Sequence[JudgedRows], times: BySeed, *, clustered: bool
) -> Iterator[Measure]:
    """Gains in windows of the student's life, `gain/window/K`; of each window `window/K/share` of the stream in its
    middle, and `window/K/times` of its first and last row."""
    alive = [np.flatnonzero(np.isfinite(b) & np.isfinite(a)) for b, a in zip(base, own, strict=True)]
    for k in range(WINDOWS):
        masks = []
        for r, of in zip(rows, alive, strict=True):
            mask = np.zeros(len(r.places), dtype=bool)
            mask[np.array_split(of, WINDOWS)[k]] = True
            masks.append(mask)
        estimate = gain(base, own, rows, masks, clustered=clustered) if all(m.any() for m in masks) else None
        if estimate is None:
            continue
        at = np.flatnonzero(masks[0])
        summary, first, last = estimate.summary(), float(times[0][at].min()), float(times[0][at].max())
        yield Measure(f"gain/window/{k}", summary["value"], summary["low"], summary["high"], len(at))
        yield Measure(f"gain/window/{k}/p", summary["p"])
        yield Measure(f"window/{k}/share", float(rows[0].places[at].mean()) / rows[0].stream_rows)
        yield Measure(f"window/{k}/times", (first + last) / 2, first, last)


def flips(windows: Sequence[tuple[float, float | None]]) -> list[tuple[int, int]]:
    """Numbers of neighbouring sure windows of opposite signs, from (gain, p) of each window.

    >>> flips([(1.0, 1e-6), (-1.0, 0.5), (-1.0, 1e-6)])
    [(0, 2)]
    """
    sure = [(k, value) for k, (value, p) in enumerate(windows) if p is not None and p < 0.05 / len(windows)]
    return [(before, after) for (before, one), (after, other) in pairwise(sure) if one * other < 0]


def by_segment(
    base: BySeed,
    own: BySeed,
    logits: BySeed,
    rows: Sequence[JudgedRows],
    windows: BySeed,
    segments: Mapping[str, BySeed],
    *,
    clustered: bool,
) -> Iterator[Measure]:
    """`gain/segment/NAME`, with `segment/NAME/positives`, `/calibration` and `/log_e`, by which e-BH tells
    discoveries."""
    for name, masks in segments.items():
        inside = [w & m for w, m in zip(windows, masks, strict=True)]
        if not all(mask.any() for mask in inside):
            continue
        count, positives = counts(rows, inside, clustered=clustered)
        lacking = too_little(rows, inside, clustered=clustered)
        estimate = gain(base, own, rows, inside, clustered=clustered)
        yield from Estimated(f"gain/segment/{part(name)}", estimate, count, lacking).measures()
        start = f"segment/{part(name)}"
        yield Measure(f"{start}/positives", positives, n=count)
        ratios = [calibration(z[k], r.labels[k], r.weights[k]) for z, r, k in zip(logits, rows, inside, strict=True)]
        defined = [ratio for ratio in ratios if ratio is not None]
        yield Measure(f"{start}/calibration", float(np.mean(defined)) if defined else None)
        yield Measure(f"{start}/log_e", _log_e(base, own, rows, windows, masks))


def _log_e(base: BySeed, own: BySeed, rows: Sequence[JudgedRows], windows: BySeed, masks: BySeed) -> float:
    """The log of the e-value of a segment's rows; 0 where there is no evidence."""
    evidence = _evidence(
        [x[m] for x, m in zip(base, masks, strict=True)],
        [x[m] for x, m in zip(own, masks, strict=True)],
        [r._replace(labels=r.labels[m], weights=r.weights[m]) for r, m in zip(rows, masks, strict=True)],
        [w[m] for w, m in zip(windows, masks, strict=True)],
    )
    return 0.0 if evidence is None else evidence[0].log_e


def counts(rows: Sequence[JudgedRows], windows: BySeed, *, clustered: bool) -> tuple[int, int]:
    """Rows and positives to judge by: of one seed where all have the same rows, else of all seeds together."""
    some = list(zip(rows, windows, strict=True))[: 1 if clustered else None]
    return sum(int(w.sum()) for _, w in some), sum(int(r.labels[w].sum()) for r, w in some)


def too_little(rows: Sequence[JudgedRows], windows: BySeed, *, clustered: bool) -> str | None:
    """Name of what is too scarce for an interval; None if there is enough."""
    count, positives = counts(rows, windows, clustered=clustered)
    if not clustered:
        return too_few(positives, count - positives)
    labels, clusters = rows[0].labels[windows[0]], rows[0].clusters.take(windows[0])
    rarer = labels > 0 if 2 * positives <= count else labels <= 0
    return too_few(positives, count - positives, clusters.fewest(rarer))


def first_miscalibrated(logits: np.ndarray, rows: JudgedRows, window: np.ndarray) -> Iterator[Measure]:
    """`calibration/wrong_from`: the row after which predictions are known not to be calibrated, watched from the first
    of `window` on; `calibration/sign`: above 0, they are too low. Nothing where that is not known."""
    residual = rows.labels - sigmoid(logits)
    if not window.any() or not np.isfinite(residual[window]).all():
        return
    earlier = (np.arange(len(residual)) < np.argmax(window)) & np.isfinite(residual)
    found = watch([residual[window]], [rows.weights[window]], [residual[earlier]])
    if found is not None and found.stopped_at is not None:
        yield Measure("calibration/wrong_from", found.stopped_at)
        yield Measure("calibration/sign", found.sign)
