"""Confidence in a gain beyond one interval: under a sequential test, over event time, and segment by segment.

Every figure is in per cent of the baseline's NE, above 0 is better. Two intervals are shown of each gain: other rows
would give the one, other seeds the other. What watching shows is a difference of log-losses over the baseline's mean
log-loss, which is the same ratio; the test itself is of the difference (exfm/metrics/sequential.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from exfm.metrics.classification import calibration, sigmoid
from exfm.metrics.power import rows_needed, rows_to_stop
from exfm.metrics.reliability import clipped_log_loss, expected_calibration_error, reliability_bins
from exfm.metrics.watching import BLOCK_ROWS, Watched, watch
from pipelines.lab.judging.comparison import BySeed, Comparison, JudgedRows, Sample
from pipelines.report.cells import Estimated, Measure, part

WINDOWS = 24

EFFECT = 0.2
"""The gain, in % of NE, for which the rows needed to detect it are computed."""

SHARE_OF_LOSS = 0.6
"""Blocks are clipped no closer than this share of the standard deviation of a block's mean loss: arms that begin alike,
as before a teacher's first logits, would else be clipped where they part."""

PILOT_ROWS = 512


def watched(compared: Comparison) -> Iterator[Measure]:
    """A gain under a sequential test; nothing where losses are not finite, or rows are too few. The rows before those
    that are judged give the scale.

        gain/after/N           after N rows, with a bound that holds at all rows at once
        watched/log_e          the log of the e-value after the last row
        watched/stopped_at     rows after which 0 is excluded first
        watched/rows_to_stop   rows that a gain of EFFECT would have needed
    """
    if (evidence := _evidence(compared)) is None:
        return
    test, scale = evidence
    bands = np.stack([test.difference, test.low, test.high], axis=1) * scale
    for n, band in zip(test.rows.tolist(), bands.tolist(), strict=True):
        value, low, high = (round(end, 5) for end in band)
        yield Measure(f"gain/after/{n}", value, low, high, n)
    yield Measure("watched/log_e", test.log_e, n=int(test.rows[-1]))
    yield Measure("watched/blocks", test.blocks)
    if test.stopped_at is not None:
        yield Measure("watched/stopped_at", test.stopped_at)
    needed = rows_to_stop(test.block_variance, test.scale, EFFECT / scale, block_rows=BLOCK_ROWS)
    if needed is not None:
        yield Measure("watched/rows_to_stop", needed)


def _evidence(compared: Comparison, masks: BySeed | None = None) -> tuple[Watched, float] | None:
    """The sequential test, and the factor from nats to per cent of the baseline's loss; `masks`: of these rows only."""
    differences, weights, before, loss, weight = [], [], [], 0.0, 0.0
    least = np.inf
    for seed, (rows, judged) in enumerate(compared.sample):
        taken = slice(None) if masks is None else masks[seed]
        b, a, w, window = (x[taken] for x in (compared.base[seed], compared.own[seed], rows.weights, judged))
        d = b - a
        if not window.any() or not np.isfinite(d[window]).all():
            return None
        differences.append(d[window])
        weights.append(w[window])
        earlier = np.arange(len(d)) < np.argmax(window)
        before.append(d[earlier & np.isfinite(d)])
        base_before = b[earlier & np.isfinite(b)]
        pilot = base_before if len(base_before) >= PILOT_ROWS else b[window][:PILOT_ROWS]
        least = min(least, SHARE_OF_LOSS * float(pilot.std()) / BLOCK_ROWS**0.5)
        loss += float((b[window] * w[window]).sum())
        weight += float(w[window].sum())
    result = watch(differences, weights, before, least_scale=least)
    return None if result is None or not loss > 0 else (result, 100 * weight / loss)


def power(gain: Estimated) -> Iterator[Measure]:
    """Rows that a gain of EFFECT needs, looked at once, from the standard error that the judged rows gave."""
    if gain.estimate is None or gain.lacking is not None or not (se := gain.estimate.summary()["se"]):
        return
    yield Measure(f"rows for {EFFECT:g} %", rows_needed(se, gain.n, EFFECT))


def over_windows(compared: Comparison, times: BySeed) -> Iterator[Measure]:
    """Gains in windows of the student's life, `gain/window/K`; of each window `window/K/share` of the stream in its
    middle, and `window/K/times` of its first and last row. `times`: event times of all rows, by seed."""
    rows = compared.sample.rows
    alive = [np.flatnonzero(np.isfinite(b) & np.isfinite(a)) for b, a in zip(*compared[:2], strict=True)]
    for k in range(WINDOWS):
        masks = []
        for r, of in zip(rows, alive, strict=True):
            mask = np.zeros(len(r.places), dtype=bool)
            mask[np.array_split(of, WINDOWS)[k]] = True
            masks.append(mask)
        in_window = compared._replace(sample=replace(compared.sample, windows=masks))
        estimate = in_window.gain() if all(mask.any() for mask in masks) else None
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


def by_segment(compared: Comparison, logits: BySeed, segments: Mapping[str, BySeed]) -> Iterator[Measure]:
    """`gain/segment/NAME`, with `segment/NAME/positives`, `/calibration` and `/log_e`, by which e-BH tells
    discoveries. `segments`: masks of all rows, by seed."""
    for name, masks in segments.items():
        inside = compared.within(masks)
        if not all(mask.any() for mask in inside.sample.windows):
            continue
        count, positives = inside.sample.counts
        yield from Estimated(f"gain/segment/{part(name)}", inside.gain(), count, inside.sample.lacking).measures()
        start = f"segment/{part(name)}"
        yield Measure(f"{start}/positives", positives, n=count)
        scored = zip(logits, inside.sample, strict=True)
        ratios = [calibration(z[mask], r.labels[mask], r.weights[mask]) for z, (r, mask) in scored]
        defined = [ratio for ratio in ratios if ratio is not None]
        yield Measure(f"{start}/calibration", float(np.mean(defined)) if defined else None)
        evidence = _evidence(compared, masks)
        yield Measure(f"{start}/log_e", 0.0 if evidence is None else evidence[0].log_e)


def calibrated(logits: BySeed, sample: Sample) -> Iterator[Measure]:
    """Calibration of the first seed; nothing where a logit is not finite.

    bin/K            the observed rate with its band, of the K-th of ten bins of equally many rows
    bin/K/predicted  the mean probability, and its bounds
    """
    (rows, window), z = next(iter(sample)), logits[0]
    if not window.any() or not np.isfinite(z[window]).all():
        return
    scored = z[window], rows.labels[window], rows.weights[window]
    bins = reliability_bins(*scored, clusters=rows.clusters.take(window) if sample.clustered else None)
    for k, one in enumerate(bins):
        yield Measure(f"bin/{k}", one.observed, one.low, one.high, one.rows)
        yield Measure(f"bin/{k}/predicted", one.predicted, one.above, one.upto)
    clipped = clipped_log_loss(*scored)
    yield Measure("calibration/error", expected_calibration_error(bins), n=len(scored[0]))
    yield Measure("clipped/share", clipped.share)
    yield Measure("clipped/cut", clipped.cut)
    yield from first_miscalibrated(z, rows, window)


def first_miscalibrated(logits: np.ndarray, rows: JudgedRows, window: np.ndarray) -> Iterator[Measure]:
    """`calibration/wrong_from`: the row after which predictions are known not to be calibrated, watched from the first
    of `window` on; `calibration/sign`: above 0, they are too low. Nothing where that is not known."""
    residual = rows.labels - sigmoid(logits)
    if not window.any() or not np.isfinite(residual[window]).all():
        return
    earlier = (np.arange(len(residual)) < np.argmax(window)) & np.isfinite(residual)
    test = watch([residual[window]], [rows.weights[window]], [residual[earlier]])
    if test is not None and test.stopped_at is not None:
        yield Measure("calibration/wrong_from", test.stopped_at)
        yield Measure("calibration/sign", test.sign)
