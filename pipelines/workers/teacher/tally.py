"""What all ranks of the teacher made of a block, on each of them.

A rank sees its own rows only. At a block's end the rows of all are put together, step by step and in order of
partition, which is the order of a batch learned by one rank: so counts, metrics and what a checkpoint says of them do
not depend on how many ranks there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from exfm.step import StepResult
from pipelines.training import REASONS, Learned, Quarantine, TaskMetrics, reason_of
from pipelines.workers import Ranks
from pipelines.workers.teacher.batches import Prepared


class _Step(NamedTuple):
    """This rank's rows are `place` to `place + own`, of `rows` that all ranks had."""

    place: int
    rows: int
    values: np.ndarray  # (own, 4, T) float32: logits, labels, whether a label is known, what it counts


class BlockTally:
    def __init__(self, tasks: Sequence[str], ranks: Ranks) -> None:
        self._tasks, self._ranks = tuple(tasks), ranks
        self._steps: list[_Step] = []
        self._learned = Learned(tasks)

    def add(self, ready: Prepared, result: StepResult, *, place: int, rows: int) -> None:
        """Note a step of this rank."""
        batch = ready.batch
        columns = [result.logits, batch.labels.numpy(), batch.label_mask.numpy(), batch.label_weights.numpy()]
        values = np.stack(columns, axis=1, dtype=np.float32)
        self._steps.append(_Step(place, rows, values))
        if result.finite:
            self._learned.add(ready.rows)

    def leave_out(self, quarantine: Quarantine, ready: Prepared, result: StepResult) -> None:
        """Note a step that was not finite, all ranks' rows of it. A collective. Raises Diverged."""
        left_out = Learned(self._tasks)
        left_out.add(ready.rows)
        seq = ready.rows["lake_seq"].to_numpy()
        own = [len(seq), seq.min(initial=np.iinfo(np.int64).max), seq.max(initial=-1), REASONS.index(reason_of(result))]
        told = self._ranks.tell([*own, *left_out.numbers().ravel()])
        with np.errstate(over="ignore"):
            numbers = told[:, 4:].sum(0).reshape(-1, 2)
        first, last, reason = int(told[:, 1].min()), int(told[:, 2].max()), REASONS[told[:, 3].min()]
        quarantine.leave_out(first, last, int(told[:, 0].sum()), numbers, reason)

    def finish(self, judge: TaskMetrics, learned: Learned) -> None:
        """Add what all ranks noted since the last time. A collective."""
        values = np.zeros((sum(step.rows for step in self._steps), 4, len(self._tasks)), np.float32)
        ends = np.cumsum([step.rows for step in self._steps])
        for step, end in zip(self._steps, ends, strict=True):
            start = end - step.rows + step.place
            values[start : start + len(step.values)] = step.values
        values = self._ranks.sum(values)
        for step, end in zip(self._steps, ends, strict=True):
            logits, labels, known, weights = np.moveaxis(values[end - step.rows : end], 1, 0)
            judge.count(logits, labels, known != 0, weights)
        learned.merge(self._ranks.sum(self._learned.numbers()))
        self._steps, self._learned = [], Learned(self._tasks)
