"""How sure a gain is, beyond one interval: under a sequential test, over event time, and segment by segment.

Every figure is in per cent of the baseline's NE, above 0 is better. Two intervals are shown of each gain: other rows
would give the one, other seeds the other. What watching shows is a difference of log-losses over the baseline's mean
log-loss, which is the same ratio; the test itself is of the difference (exfm/metrics/sequential.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from exfm.metrics.classification import calibration, sigmoid
from exfm.metrics.limits import too_few
from exfm.metrics.power import rows_needed, rows_to_stop
from exfm.metrics.watching import BLOCK_ROWS, Watched, watch
from pipelines.lab.judging.figures import WINDOWS, BySeed, JudgedRows, gain
from pipelines.lab.judging.summaries import limited

EFFECT = 0.2
"""The gain, in % of NE, for which the rows needed to detect it are computed."""


SHARE_OF_LOSS = 0.6
"""Blocks are clipped no closer than this share of the standard deviation of a block's mean loss: arms that begin alike,
as before a teacher's first logits, would else be clipped where they part."""

PILOT_ROWS = 512


def watched(base: BySeed, own: BySeed, rows: Sequence[JudgedRows], windows: BySeed) -> dict[str, Any] | None:
    """A gain under a sequential test over the rows in `windows`; None where losses are not finite, or rows are
    too few. The rows before them give the scale."""
    found = _evidence(base, own, rows, windows)
    if found is None:
        return None
    result, scale = found
    return {
        "rows": result.rows.tolist(),
        "difference": _rounded(scale * result.difference),
        "low": _rounded(scale * result.low),
        "high": _rounded(scale * result.high),
        "log_e": result.log_e,
        "stopped_at": result.stopped_at,
        "sign": result.sign,
        "blocks": result.blocks,
        "clipped_blocks": result.clipped,
        "rows_to_stop": rows_to_stop(result.block_variance, result.scale, EFFECT / scale, block_rows=BLOCK_ROWS),
    }


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


def power(estimate: Mapping[str, Any] | None, rows: int) -> dict[str, Any] | None:
    """Rows that a gain of EFFECT needs, looked at once, from the standard error that `rows` of them gave."""
    if estimate is None or not estimate["se"]:
        return None
    needed = rows_needed(estimate["se"], rows, EFFECT)
    return {"effect": EFFECT, "rows": needed, "detectable": EFFECT * (needed / rows) ** 0.5}


def over_windows(
    base: BySeed, own: BySeed, rows: Sequence[JudgedRows], times: BySeed, *, clustered: bool
) -> dict[str, Any]:
    """Gains in windows of the student's life, and where their sign flips: between two stretches of windows whose
    signs differ, each sure at 5 % over all windows."""
    alive = [np.flatnonzero(np.isfinite(b) & np.isfinite(a)) for b, a in zip(base, own, strict=True)]
    found: list[dict[str, Any]] = []
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
        entry = {
            "share": float(rows[0].places[at].mean()) / rows[0].stream_rows,
            "from_ms": int(times[0][at].min()),
            "to_ms": int(times[0][at].max()),
            "rows": len(at),
        }
        found.append(entry | estimate.summary())
    return {"windows": found, "flips": flips(found)}


def flips(windows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where sure windows of one sign are followed by sure ones of the other.

    >>> sure = {"p": 1e-6, "share": 0.1, "from_ms": 0, "to_ms": 9}
    >>> unsure = {"p": 0.5, "value": -1.0, "share": 0.2, "from_ms": 10, "to_ms": 19}
    >>> flips([sure | {"value": 1.0}, unsure, sure | {"value": -1.0, "from_ms": 20, "share": 0.3}])
    [{'after_share': 0.1, 'before_share': 0.3, 'after_ms': 9, 'before_ms': 20, 'sign': -1}]
    """
    sure = [w for w in windows if w["p"] is not None and w["p"] < 0.05 / max(1, len(windows))]
    found = []
    for before, after in pairwise(sure):
        if before["value"] * after["value"] < 0:
            found.append(
                {
                    "after_share": before["share"],
                    "before_share": after["share"],
                    "after_ms": before["to_ms"],
                    "before_ms": after["from_ms"],
                    "sign": 1 if after["value"] > 0 else -1,
                }
            )
    return found


def by_segment(
    base: BySeed,
    own: BySeed,
    logits: BySeed,
    rows: Sequence[JudgedRows],
    windows: BySeed,
    segments: Mapping[str, BySeed],
    *,
    clustered: bool,
) -> dict[str, Any]:
    """Gain and calibration of every segment, with the e-value by which e-BH tells discoveries (`log_e`). Gains are
    plain numbers: their influences, of many segments, take much memory."""
    found: dict[str, Any] = {}
    for name, masks in segments.items():
        kept = [w & m for w, m in zip(windows, masks, strict=True)]
        if not all(k.any() for k in kept):
            continue
        ratios = [calibration(z[k], r.labels[k], r.weights[k]) for z, r, k in zip(logits, rows, kept, strict=True)]
        known = [ratio for ratio in ratios if ratio is not None]
        count, positives = counts(rows, kept, clustered=clustered)
        lacking = too_little(rows, kept, clustered=clustered)
        found[name] = {
            "rows": count,
            "positives": positives,
            "too_few": lacking,
            "gain": limited(gain(base, own, rows, kept, clustered=clustered), lacking),
            "calibration": float(np.mean(known)) if known else None,
            "log_e": _log_e(base, own, rows, windows, masks),
        }
    return found


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
    """Of what there is too little for an interval; None where there is enough."""
    count, positives = counts(rows, windows, clustered=clustered)
    if not clustered:
        return too_few(positives, count - positives)
    labels, clusters = rows[0].labels[windows[0]], rows[0].clusters.take(windows[0])
    rarer = labels > 0 if 2 * positives <= count else labels <= 0
    return too_few(positives, count - positives, clusters.fewest(rarer))


def first_miscalibrated(logits: np.ndarray, rows: JudgedRows, window: np.ndarray) -> dict[str, Any] | None:
    """The row after which predictions are known not to be calibrated, watched from the first of `window` on: above 0,
    they are too low. None where there are too few."""
    residual = rows.labels - sigmoid(logits)
    if not window.any() or not np.isfinite(residual[window]).all():
        return None
    earlier = (np.arange(len(residual)) < np.argmax(window)) & np.isfinite(residual)
    found = watch([residual[window]], [rows.weights[window]], [residual[earlier]])
    return None if found is None else {"row": found.stopped_at, "sign": found.sign}


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(x), 5) for x in values]
