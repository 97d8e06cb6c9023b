"""Block totals of all ranks of the teacher, known to each.

A rank sees its own rows only. At a block's end the results of all ranks are put together, step by step and in order of
partition, which is the order of a batch learned by a single rank: counts, metrics and checkpoints do not depend on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.models.engine import TEACHER
from exfm.step import REASONS, StepResult
from pipelines.live.feeds.teacher import Step
from pipelines.live.training.account import Account
from pipelines.live.training.learned import LearnedCounts
from pipelines.live.training.live_metrics import TaskMetrics
from pipelines.live.training.quarantine import Quarantine, QuarantinedRows, places_of
from pipelines.live.workers.ranks import Ranks


class _Noted(NamedTuple):
    """A step. This rank's rows are `place` to `place + len(values)` of the `rows` that all ranks had."""

    place: int
    rows: int
    values: np.ndarray  # (own, 4, T) float32: logits, labels, whether a label is known, its weight


class BlockTally:
    """Totals of a block; `figures`: live figures of all ranks' rows. `trained_rows`: of all ranks; `own_rows`: read
    by this one. `event_time_ms`: of the last row that this rank read."""

    def __init__(self, tasks: Sequence[str], ranks: Ranks) -> None:
        self._tasks, self._ranks = tuple(tasks), ranks
        self._steps: list[_Noted] = []
        self._learned = LearnedCounts(tasks)
        self.figures = TaskMetrics(tasks)
        self.trained_rows = self.own_rows = 0
        self.event_time_ms: int | None = None

    def note(self, step: Step, result: StepResult, account: Account, *, place: int, rows: int) -> None:
        """Record a step of this rank, whose rows begin at `place` of all ranks' `rows`; accounted at once. A
        collective where rows were left out. Raises Diverged as `Quarantine.leave_out` does."""
        batch = step.batch
        columns = [result.logits, batch.labels.numpy(), batch.label_mask.numpy(), batch.label_weights.numpy()]
        self._steps.append(_Noted(place, rows, np.stack(columns, axis=1, dtype=np.float32)))
        account.rows += rows
        self.own_rows += step.rows.num_rows
        if step.rows.num_rows:
            self.event_time_ms = step.rows["event_time_ms"][-1].as_py()
        quarantine = account.quarantines[TEACHER]
        if result.finite:
            kept = step.rows if result.left_out is None else step.rows.filter(pa.array(result.left_out == 0))
            self._learned.add(kept)
            self.trained_rows += rows - result.left_out_rows
        if result.finite and not result.left_out_rows:
            quarantine.well()
        else:
            self._leave_out(quarantine, step, result, of=rows)

    def _leave_out(self, quarantine: Quarantine, step: Step, result: StepResult, *, of: int) -> None:
        """Put into quarantine what all ranks left out of a step: single rows, or all of it."""
        lost = LearnedCounts(self._tasks)
        if not result.finite:
            lost.add(step.rows)
        elif result.left_out is not None:
            lost.add(step.rows.filter(pa.array(result.left_out != 0)))
        mine = places_of(step.rows, result, result.left_out)
        coded = [[place.first_lake_seq, place.last_lake_seq, place.rows, REASONS.index(place.reason)] for place in mine]
        counts = self._ranks.all_gather([len(coded)])[:, 0]
        padded = np.zeros((int(counts.max()), 4), np.int64)
        padded[: len(coded)] = np.array(coded, np.int64).reshape(-1, 4)
        gathered = self._ranks.all_gather(padded.ravel().tolist()).reshape(len(counts), -1, 4)
        every = np.concatenate([of_rank[:count] for of_rank, count in zip(gathered, counts, strict=True)])
        if not result.finite:  # as one
            every = np.array([[every[:, 0].min(), every[:, 1].max(), every[:, 2].sum(), every[:, 3].min()]])
        every = every[np.argsort(every[:, 0], kind="stable")]
        places = [QuarantinedRows(first, last, rows, REASONS[reason]) for first, last, rows, reason in every.tolist()]
        with np.errstate(over="ignore"):
            numbers = self._ranks.sum(lost.numbers())
        quarantine.leave_out(places, numbers, of=of)

    def finish(self, account: Account) -> None:
        """Finish a block: count the steps of all ranks since the last one. A collective."""
        values = np.zeros((sum(step.rows for step in self._steps), 4, len(self._tasks)), np.float32)
        ends = np.cumsum([step.rows for step in self._steps])
        for step, end in zip(self._steps, ends, strict=True):
            start = end - step.rows + step.place
            values[start : start + len(step.values)] = step.values
        values = self._ranks.sum(values)
        for step, end in zip(self._steps, ends, strict=True):
            logits, labels, known, weights = np.moveaxis(values[end - step.rows : end], 1, 0)
            self.figures.count(logits, labels, known != 0, weights)
        account.learned.merge(self._ranks.sum(self._learned.numbers()))
        self._steps, self._learned = [], LearnedCounts(self._tasks)
