"""Figures of an arm beyond its gain, for one student and task, on the rows that are judged: segments under every
condition; under the first one also a sequential test, windows of time, calibration, decisions and choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.metrics.reliability import clipped_log_loss, expected_calibration_error, reliability_bins
from pipelines.core.config.models import StudentSettings
from pipelines.data.profile.columns import codes_of_values
from pipelines.lab.judging.decisions import Stakes, choices, decided
from pipelines.lab.judging.evidence import by_segment, first_miscalibrated, over_windows, watched
from pipelines.lab.judging.figures import BySeed, JudgedRows, losses
from pipelines.lab.judging.segments import Columns, segments_of
from pipelines.lab.replay.data import places_of
from pipelines.lab.replay.workspace import Workspace


class Details:
    """`rows` of every seed; `clustered`: whether clusters of rows are units of errors. `windows`: what of the rows is
    judged, by seed."""

    def __init__(
        self,
        workspace: Workspace,
        student: StudentSettings,
        task: str,
        rows: Sequence[JudgedRows],
        *,
        clustered: bool,
    ) -> None:
        self._spec, self._rows, self._clustered = workspace.spec, rows, clustered
        self._task, self._choices, self._labels, self._clusters = task, [], [], []
        seeds = workspace.spec.seeds
        columns = []
        for seed, r in zip(seeds, rows, strict=True):
            table = workspace.rows(seed).table
            columns.append(Columns(table, r.places, workspace.config.rows))
            if self._spec.ranking is not None:
                whole = places_of(table, workspace.of(seed), student)
                of = Columns(table, whole, workspace.config.rows)
                asked = [name for name in self._spec.ranking.model_dump().values() if name is not None]
                values = {name: of[name].to_numpy(zero_copy_only=False) for name in asked}
                values["judged"] = whole >= self._spec.judged_from * r.stream_rows
                self._choices.append(values)
                by = self._spec.clustered_by  # a request is of one value of the first
                self._clusters.append(codes_of_values(of[by[0]]) if by else None)
                self._labels.append(table[f"label_{task}"].take(pa.array(whole)).combine_chunks())
        segments = segments_of(self._spec.segments, columns[0], self._spec.clustered_by)
        self._segments = {segment.name: [segment.mask(c) for c in columns] for segment in segments}
        self._times = [c["event_time_ms"].to_numpy() for c in columns]
        named = (self._spec.value, self._spec.price)
        self._stakes = Stakes(*(None if name is None else [_numbers(c[name]) for c in columns] for name in named))

    def by_segment(self, base_logits: BySeed, logits: BySeed, windows: BySeed) -> dict[str, Any]:
        """Of an arm, next to its baseline."""
        base, own = losses(base_logits, self._rows), losses(logits, self._rows)
        return by_segment(base, own, logits, self._rows, windows, self._segments, clustered=self._clustered)

    def over_time(self, base_logits: BySeed, logits: BySeed, windows: BySeed) -> dict[str, Any]:
        """Of an arm, next to its baseline: as if it had been watched, and in windows of the student's life."""
        base, own = losses(base_logits, self._rows), losses(logits, self._rows)
        return {
            "watched": watched(base, own, self._rows, windows),
            "by_window": over_windows(base, own, self._rows, self._times, clustered=self._clustered),
        }

    def alone(self, logits: BySeed, base_logits: BySeed | None, windows: BySeed) -> dict[str, Any]:
        """Of any arm: calibration of its first seed, and decisions, compared with a baseline's where one is given."""
        rows, window, z = self._rows[0], windows[0], logits[0]
        if not window.any() or not np.isfinite(z[window]).all():
            return {"reliability": None, "decisions": None}
        given = z[window], rows.labels[window], rows.weights[window]
        clusters = rows.clusters.take(window) if self._clustered else None
        bins = {by: reliability_bins(*given, by=by, clusters=clusters) for by in ("quantile", "width")}
        clipped = clipped_log_loss(*given)
        return {
            "reliability": {
                "seed": self._spec.seeds[0],
                "bins": {by: [one._asdict() for one in of] for by, of in bins.items()},
                "expected_error": expected_calibration_error(bins["quantile"]),
                "first_miscalibrated": first_miscalibrated(z, rows, window),
                "clipped": {"share": clipped.share, "cut": clipped.cut},
            },
            "decisions": decided(
                base_logits, logits, self._rows, windows, self._stakes, self._spec, clustered=self._clustered
            ),
        }

    def ranked(self, whole_logits: BySeed) -> list[dict[str, Any]] | None:
        """What the arm's choices are worth, by seed; None where no propensities are logged. Logits of all rows of the
        student, those without a label included."""
        if self._spec.ranking is None:
            return None
        return [
            choices(z, labels, columns, self._spec.ranking, columns["judged"], clusters)
            for z, labels, columns, clusters in zip(
                whole_logits, self._labels, self._choices, self._clusters, strict=True
            )
        ]


def _numbers(column: pa.Array) -> np.ndarray:
    return np.nan_to_num(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
