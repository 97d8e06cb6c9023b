"""Batches that a model left out, because a logit, the loss or a gradient was not finite: which rows, and why.

Such a batch never reaches the weights (exfm/models). What was left out travels in the model's checkpoints and so agrees
with the weights through any crash: for every task, learned + left out = the rows of the lake that the model was given,
by number and by Σ hash64(impression_id).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.errors import Diverged
from exfm.step import StepResult
from pipelines.training.learned import Learned

KEPT = 1000
"""How many of the last batches are kept with their place in the lake; all are counted."""

REASONS = ("a logit is not finite", "the loss is not finite", "a gradient is not finite")
"""The first that holds; it may hold on one rank only."""

log = logging.getLogger(__name__)


class Quarantine:
    """What one model has left out.

    >>> quarantine = Quarantine("teacher", ["ctr"], in_a_row=16)
    >>> rows = pa.table({"lake_seq": [7, 8], "impression_id": [5, 6], "label_ctr": pa.array([1, 0], pa.int8())})
    >>> quarantine.judge(rows, StepResult(np.zeros((2, 1)), float("inf"), np.zeros(1), finite=False))
    >>> quarantine.rows, quarantine.state()["last"]
    (2, [{'first_lake_seq': 7, 'last_lake_seq': 8, 'rows': 2, 'reason': 'the loss is not finite'}])
    """

    def __init__(
        self, model: str, tasks: Sequence[str], *, in_a_row: int, state: Mapping[str, Any] | None = None
    ) -> None:
        """`state` is what `state()` gave; None: nothing was left out yet."""
        state = state or {}
        self._model = model
        self._limit = in_a_row
        self.rows: int = state.get("rows", 0)
        self.batches: int = state.get("batches", 0)
        self._in_a_row: int = state.get("in_a_row", 0)
        self._left_out = Learned(tasks, state.get("left_out"))
        self._last: deque[dict[str, Any]] = deque(state.get("last", ()), maxlen=KEPT)

    def judge(self, rows: pa.Table, result: StepResult) -> None:
        """Note a batch, if its step was not finite.

        Raises Diverged when more than the allowed number came one after the other.
        """
        if result.finite:
            self.well()
            return
        learned = Learned(list(self._left_out.rows))
        learned.add(rows)
        first, last = rows["lake_seq"][0].as_py(), rows["lake_seq"][-1].as_py()
        self.leave_out(first, last, rows.num_rows, learned.numbers(), reason_of(result))

    def well(self) -> None:
        """A step was finite."""
        self._in_a_row = 0

    def leave_out(self, first: int, last: int, rows: int, left_out: np.ndarray, reason: str) -> None:
        """Note a batch of `rows` rows between two lake_seq that was not finite; `left_out`: what they would have taught
        (`Learned.numbers`). Raises Diverged as `judge` does."""
        self.rows += rows
        self.batches += 1
        self._in_a_row += 1
        self._left_out.merge(left_out)
        entry = {"first_lake_seq": first, "last_lake_seq": last, "rows": rows, "reason": reason}
        self._last.append(entry)
        log.error("%s: %s; it leaves out %d rows, lake_seq %d to %d", self._model, reason, rows, first, last)
        if self._in_a_row > self._limit:
            raise Diverged(
                f"{self._model}: {self._in_a_row} batches one after the other are not finite, and {self._limit} are "
                f"allowed (resources.max_quarantined_in_a_row); the last: {reason}, lake_seq {first} to {last}. Look "
                "at these rows in the lake; if they are right, the model is not: lower its learning rates and start "
                "it in a new --run-dir. If they are wrong, bound their columns (rows.columns: minimum, maximum), or "
                "transform the feature (log1p)"
            )

    @property
    def note(self) -> str | None:
        """For people; None where nothing was left out."""
        if not self.batches:
            return None
        last = self._last[-1] if self._last else None
        where = f", the last at lake_seq {last['first_lake_seq']} to {last['last_lake_seq']}" if last else ""
        return f"{self._model}: {self.batches} batches ({self.rows} rows) were not finite and are left out{where}"

    def state(self) -> dict[str, Any]:
        """For a checkpoint, and to be read: rows, batches, what was left out by task, and where the last ones lie."""
        return {
            "rows": self.rows,
            "batches": self.batches,
            "in_a_row": self._in_a_row,
            "left_out": self._left_out.state(),
            "last": [dict(entry) for entry in self._last],
        }


def reason_of(result: StepResult) -> str:
    if not np.isfinite(result.logits).all():
        return REASONS[0]
    return REASONS[2] if np.isfinite(result.loss) else REASONS[1]
