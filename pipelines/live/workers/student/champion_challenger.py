"""Champion–challenger test: champion and candidate, as served, score the same fresh rows, which neither has learned.

Both are frozen since they were published: neither learns what it is compared on. A row is fresh if it was shown after
everything that either of them learned (by event time). Labels that come late settle rows that were shown before the
candidate was there; the champion, older, would be asked about rows that were new to it and the candidate about rows of
a time that it has learned from. So those are left out, and a task of slow labels is compared once rows that were shown
since have settled. What a student learns from others' rows plays no part: the trial is on its own rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from exfm.features.batch import Batch
from exfm.metrics.classification import cross_entropy, sigmoid
from exfm.metrics.sequential import PairedEvidence
from pipelines.core.config.sections import RegistrySettings
from pipelines.live.rules.promoting import Decision, Keep, Standards, TaskSeen, promotion

NAME = "registry"
"""The beginning of the names of a trial's tensors in a checkpoint."""
DAY_MS = 86_400_000


class Scores(Protocol):
    """A model that scores batches: logits (B, T)."""

    def score(self, batch: Batch) -> np.ndarray: ...


S = TypeVar("S", bound=Scores)


class ChallengerTest(Generic[S]):
    """`fresh_after_ms`: event time of the newest row that champion or candidate learned."""

    def __init__(
        self,
        tasks: Sequence[str],
        settings: RegistrySettings,
        champion: S,
        candidate: S,
        fresh_after_ms: int,
    ) -> None:
        self._tasks, self._settings = tuple(tasks), settings
        self._champion, self.candidate = champion, candidate
        self.fresh_after_ms = fresh_after_ms
        self._evidence = {t: PairedEvidence(settings.block_rows, settings.pilot_blocks) for t in tasks}
        self._rows = np.zeros((), np.int64)
        self._newest_ms = np.array(fresh_after_ms, np.int64)
        T = len(self._tasks)
        self._positives, self._not_finite = np.zeros((2, T), np.int64)
        self._predicted, self._labels = np.zeros((2, T))  # of the candidate, Σ w σ(z) and Σ w y

    def judge(self, rows: pa.Table, batch: Batch) -> np.ndarray | None:
        """Score the student's own rows with both, before the student learns them. Returns the champion's logits (B, T),
        None where no row is fresh."""
        event_time = rows["event_time_ms"].to_numpy()
        fresh = event_time > self.fresh_after_ms
        if not fresh.any():
            return None
        self._rows += int(fresh.sum())
        self._newest_ms = np.maximum(self._newest_ms, event_time.max())
        champion, candidate = self._champion.score(batch), self.candidate.score(batch)
        labels, weights = batch.labels.numpy(), batch.label_weights.numpy()
        known = batch.label_mask.numpy() & fresh[:, None]
        for t, task in enumerate(self._tasks):
            rows_t = known[:, t]
            if not rows_t.any():
                continue
            y, w = labels[rows_t, t].astype(np.float64), weights[rows_t, t].astype(np.float64)
            z_champion, z_candidate = champion[rows_t, t], candidate[rows_t, t]
            with np.errstate(invalid="ignore"):  # what is not finite is counted
                self._evidence[task].add(cross_entropy(z_champion, y) - cross_entropy(z_candidate, y), w)
            finite = np.isfinite(z_candidate)
            self._not_finite[t] += np.count_nonzero(~finite & np.isfinite(z_champion))  # both: the row's own fault
            self._positives[t] += np.count_nonzero(y[finite])
            self._predicted[t] += (w * sigmoid(z_candidate))[finite].sum()
            self._labels[t] += (w * y)[finite].sum()
        return champion

    @property
    def rows(self) -> int:
        """Fresh rows so far, labelled or not."""
        return int(self._rows)

    def seen(self, *, interval: bool = True) -> dict[str, TaskSeen]:
        """Evidence so far, by task. An interval takes a millisecond."""
        level = self._settings.level if interval else None
        return {
            task: TaskSeen(
                self._evidence[task].look(level),
                positives=int(self._positives[t]),
                calibration=float(self._predicted[t] / self._labels[t]) if self._labels[t] > 0 else None,
                not_finite=int(self._not_finite[t]),
            )
            for t, task in enumerate(self._tasks)
        }

    def decide(self) -> Decision:
        standards, days = standards_of(self._settings), float(self._newest_ms - self.fresh_after_ms) / DAY_MS
        decision = promotion(self.seen(interval=False), standards, rows=self.rows, days=days)
        if isinstance(decision, Keep):
            return decision
        return promotion(self.seen(), standards, rows=self.rows, days=days)  # the same, with intervals in its reason

    def as_json(self) -> dict[str, object]:
        """Evidence by task for the ledger and status.json."""
        return {"rows": self.rows, "tasks": {task: _plain(seen) for task, seen in self.seen().items()}}

    def state(self) -> dict[str, Tensor]:
        """Complete state, lossless, as `registry/<task>/<key>` and `registry/<key>`."""
        found = {f"{task}/{k}": v for task, evidence in self._evidence.items() for k, v in evidence.state().items()}
        found |= {"rows": self._rows, "newest_ms": self._newest_ms, "positives": self._positives}
        found |= {"not_finite": self._not_finite, "predicted": self._predicted, "labels": self._labels}
        return {f"{NAME}/{key}": torch.as_tensor(np.array(value)) for key, value in found.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a `state`. Raises ModelError where the evidence was cut into other blocks."""
        state = {key.removeprefix(f"{NAME}/"): tensor.numpy() for key, tensor in tensors.items()}
        for task, evidence in self._evidence.items():
            evidence.load({k.removeprefix(f"{task}/"): v for k, v in state.items() if k.startswith(f"{task}/")})
        self._rows, self._newest_ms = state["rows"].copy(), state["newest_ms"].copy()
        self._positives, self._not_finite = state["positives"].copy(), state["not_finite"].copy()
        self._predicted, self._labels = state["predicted"].copy(), state["labels"].copy()


def standards_of(settings: RegistrySettings) -> Standards:
    return Standards(
        level=settings.level,
        calibration=settings.calibration,
        min_positives=settings.min_positives,
        trial_rows=settings.trial_rows,
        trial_days=settings.trial_days,
    )


def _plain(seen: TaskSeen) -> dict[str, object]:
    found = seen.evidence
    return {
        "rows": found.rows,
        "positives": seen.positives,
        "log_e": found.log_e_better,
        "log_e_worse": found.log_e_worse,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "unclipped": found.raw,
        "clipped_blocks": found.clipped,
        "clipped_mass": found.clipped_mass,
        "calibration": seen.calibration,
    }
