"""Figures of an arm beyond its gain, for one student and task, on the rows that are judged: segments under every
condition; under the first one also a sequential test, windows of time, calibration and decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from exfm.metrics.reliability import clipped_log_loss, expected_calibration_error, reliability_bins
from pipelines.lab.judging.decisions import Stakes, decided
from pipelines.lab.judging.evidence import by_segment, first_miscalibrated, over_windows, watched
from pipelines.lab.judging.figures import BySeed, JudgedRows, losses
from pipelines.lab.judging.segments import SegmentColumns, segments_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.report.cells import Measure


class Details:
    """`rows` of every seed; `clustered`: clusters of rows are units of errors. `windows`: which of the rows are judged,
    by seed."""

    def __init__(self, workspace: Workspace, rows: Sequence[JudgedRows], *, clustered: bool) -> None:
        self._spec, self._rows, self._clustered = workspace.spec, rows, clustered
        seeds = workspace.spec.seeds
        columns = [
            SegmentColumns(workspace.rows(seed).table, r.places, workspace.config.rows)
            for seed, r in zip(seeds, rows, strict=True)
        ]
        segments = segments_of(self._spec.segments, columns[0], self._spec.clustered_by)
        self._segments = {segment.name: [segment.mask(c) for c in columns] for segment in segments}
        self._times = [c["event_time_ms"].to_numpy() for c in columns]
        named = (self._spec.value, self._spec.price)
        self._stakes = Stakes(*(None if name is None else [_numbers(c[name]) for c in columns] for name in named))

    def by_segment(self, base_logits: BySeed, logits: BySeed, windows: BySeed) -> Iterator[Measure]:
        """Segments of an arm, next to its baseline."""
        base, own = losses(base_logits, self._rows), losses(logits, self._rows)
        return by_segment(base, own, logits, self._rows, windows, self._segments, clustered=self._clustered)

    def over_time(self, base_logits: BySeed, logits: BySeed, windows: BySeed) -> Iterator[Measure]:
        """An arm next to its baseline: as if it had been watched, and in windows of the student's life."""
        base, own = losses(base_logits, self._rows), losses(logits, self._rows)
        yield from watched(base, own, self._rows, windows)
        yield from over_windows(base, own, self._rows, self._times, clustered=self._clustered)

    def alone(self, logits: BySeed, base_logits: BySeed | None, windows: BySeed) -> Iterator[Measure]:
        """Calibration of an arm's first seed, and its decisions, compared with a baseline's where one is given.

        bin/K            the observed rate with its band, of the K-th of ten bins of equally many rows
        bin/K/predicted  the mean probability, and its bounds
        """
        rows, window, z = self._rows[0], windows[0], logits[0]
        if not window.any() or not np.isfinite(z[window]).all():
            return
        given = z[window], rows.labels[window], rows.weights[window]
        bins = reliability_bins(*given, clusters=rows.clusters.take(window) if self._clustered else None)
        for k, one in enumerate(bins):
            yield Measure(f"bin/{k}", one.observed, one.low, one.high, one.rows)
            yield Measure(f"bin/{k}/predicted", one.predicted, one.above, one.upto)
        clipped = clipped_log_loss(*given)
        yield Measure("calibration/error", expected_calibration_error(bins), n=len(given[0]))
        yield Measure("clipped/share", clipped.share)
        yield Measure("clipped/cut", clipped.cut)
        yield from first_miscalibrated(z, rows, window)
        yield from decided(
            base_logits, logits, self._rows, windows, self._stakes, self._spec, clustered=self._clustered
        )


def _numbers(column: pa.Array) -> np.ndarray:
    return np.nan_to_num(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
