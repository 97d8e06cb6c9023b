"""What all ranks of the teacher made of a block, known on each of them.

A rank sees its own rows only. At a block's end the results of all ranks are put together, step by step and in order of
partition, which is the order of a batch learned by a single rank: counts, metrics and checkpoints do not depend on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exfm.models import TEACHER
from exfm.step import StepResult
from pipelines.feeds import Step
from pipelines.training import REASONS, Account, Learned, Quarantine, TaskMetrics, reason_of
from pipelines.workers import Ranks


class _Noted(NamedTuple):
    """A step. This rank's rows are `place` to `place + len(values)` of the `rows` that all ranks had."""

    place: int
    rows: int
    values: np.ndarray  # (own, 4, T) float32: logits, labels, whether a label is known, its weight


class BlockTally:
    """`figures`: live figures of all ranks' rows. `trained_rows`: of all ranks; `own_rows`: read by this one.
    `event_time_ms`: of the last row that this rank read."""

    def __init__(self, tasks: Sequence[str], ranks: Ranks) -> None:
        self._tasks, self._ranks = tuple(tasks), ranks
        self._steps: list[_Noted] = []
        self._learned = Learned(tasks)
        self.figures = TaskMetrics(tasks)
        self.trained_rows = self.own_rows = 0
        self.event_time_ms: int | None = None

    def note(self, step: Step, result: StepResult, account: Account, *, place: int, rows: int) -> None:
        """Note a step of this rank, whose rows begin at `place` of the `rows` that all ranks had; in the account at
        once. A collective where the step was not finite. Raises Diverged as `Quarantine.leave_out` does."""
        batch = step.batch
        columns = [result.logits, batch.labels.numpy(), batch.label_mask.numpy(), batch.label_weights.numpy()]
        self._steps.append(_Noted(place, rows, np.stack(columns, axis=1, dtype=np.float32)))
        account.rows += rows
        self.own_rows += step.rows.num_rows
        if step.rows.num_rows:
            self.event_time_ms = step.rows["event_time_ms"][-1].as_py()
        quarantine = account.quarantines[TEACHER]
        if result.finite:
            self._learned.add(step.rows)
            self.trained_rows += rows
            quarantine.well()
        else:
            self._leave_out(quarantine, step, result)

    def _leave_out(self, quarantine: Quarantine, step: Step, result: StepResult) -> None:
        """Put a step that was not finite into quarantine, with all ranks' rows of it."""
        left_out = Learned(self._tasks)
        left_out.add(step.rows)
        seq = step.rows["lake_seq"].to_numpy()
        own = [len(seq), seq.min(initial=np.iinfo(np.int64).max), seq.max(initial=-1), REASONS.index(reason_of(result))]
        gathered = self._ranks.gather([*own, *left_out.numbers().ravel()])
        with np.errstate(over="ignore"):
            numbers = gathered[:, 4:].sum(0).reshape(-1, 2)
        first, last, reason = int(gathered[:, 1].min()), int(gathered[:, 2].max()), REASONS[gathered[:, 3].min()]
        quarantine.leave_out(first, last, int(gathered[:, 0].sum()), numbers, reason)

    def finish(self, account: Account) -> None:
        """A block's end: count what all ranks noted since the last one. A collective."""
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
        self._steps, self._learned = [], Learned(self._tasks)
