"""Quarantine: rows that a model left out because they or their batch were not finite, with reasons.

Single rows are found and left out (exfm/models/bad_rows.py), and where that is not possible, the batch. None of them
reaches the weights. What was left out travels in the model's checkpoints and so agrees with the weights through any
crash: for every task, learned + left out = the rows of the lake that the model was given, by number and by
Σ hash64(impression_id).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.errors import Diverged
from exfm.step import REASONS, StepResult, reason_of
from pipelines.live.training.learned import LearnedCounts

KEPT = 1000
"""How many of the last places in the lake are kept; all rows are counted."""

log = logging.getLogger(__name__)


class QuarantinedRows(NamedTuple):
    """Rows between two `lake_seq`, left out for one reason."""

    first_lake_seq: int
    last_lake_seq: int
    rows: int
    reason: str


class Quarantine:
    """Rows that one model has left out.

    >>> quarantine = Quarantine("teacher", ["ctr"], in_a_row=16)
    >>> rows = pa.table({"lake_seq": [7, 8], "impression_id": [5, 6], "label_ctr": pa.array([1, 0], pa.int8())})
    >>> quarantine.judge(rows, StepResult(np.zeros((2, 1)), float("inf"), np.zeros(1), finite=False))
    >>> quarantine.rows, quarantine.state()["last"]
    (2, [{'first_lake_seq': 7, 'last_lake_seq': 8, 'rows': 2, 'reason': 'the loss is not finite'}])
    """

    def __init__(
        self,
        model: str,
        tasks: Sequence[str],
        *,
        in_a_row: int,
        grave_share: float = 0.5,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """`in_a_row`: so many batches that lose more than `grave_share` of their rows may follow one another. `state`
        is what `state()` gave; None: nothing was left out yet."""
        state = state or {}
        self._model = model
        self._limit, self._grave_share = in_a_row, grave_share
        self.rows: int = state.get("rows", 0)
        self.batches: int = state.get("batches", 0)
        self._in_a_row: int = state.get("in_a_row", 0)
        self._left_out = LearnedCounts(tasks, state.get("left_out"))
        self._last: deque[dict[str, Any]] = deque(state.get("last", ()), maxlen=KEPT)

    def judge(self, rows: pa.Table, result: StepResult, left_out: np.ndarray | None = None) -> None:
        """Record a step over these rows. `left_out` (N,): of each of them, why it was (`REASONS`); None: as the result
        says.

        Raises Diverged when more batches than allowed lost a grave share, one after the other.
        """
        reasons = result.left_out if left_out is None else left_out
        found = places_of(rows, result, reasons)
        if not found:
            self.well()
            return
        lost = LearnedCounts(list(self._left_out.rows))
        lost.add(rows if not result.finite or reasons is None else rows.filter(pa.array(reasons != 0)))
        self.leave_out(found, lost.numbers(), of=rows.num_rows)

    def well(self) -> None:
        """Record a step that learned every row."""
        self._in_a_row = 0

    def leave_out(self, places: Sequence[QuarantinedRows], lost: np.ndarray, *, of: int) -> None:
        """Record the rows left out of a batch of `of` rows; `lost`: their checksums (`LearnedCounts.numbers`). Raises
        Diverged as `judge` does."""
        rows = sum(place.rows for place in places)
        grave = rows == of or rows > self._grave_share * of
        self.rows += rows
        self.batches += 1
        self._in_a_row = self._in_a_row + 1 if grave else 0
        self._left_out.merge(lost)
        self._last.extend(place._asdict() for place in places)
        first, last = places[0].first_lake_seq, places[-1].last_lake_seq
        reasons = ", ".join(dict.fromkeys(place.reason for place in places))
        log.error("%s: %s; it leaves out %d of %d rows, lake_seq %d to %d", self._model, reasons, rows, of, first, last)
        if self._in_a_row > self._limit:
            raise Diverged(
                f"{self._model}: {self._in_a_row} batches one after the other lost more than {self._grave_share:.0%} "
                f"of their rows, because they are not finite, and {self._limit} are allowed "
                f"(resources.max_quarantined_in_a_row, losses.fail_share); the last: {reasons}, lake_seq {first} to "
                f"{last}. Look at these rows in the lake; if they are right, the model is not: lower its learning "
                "rates and start it in a new --run-dir. If they are wrong, bound their columns (rows.columns: minimum, "
                "maximum), or transform the feature (log1p)"
            )

    @property
    def note(self) -> str | None:
        """Sentence for people; None if nothing was left out."""
        if not self.batches:
            return None
        last = self._last[-1] if self._last else None
        where = f", the last at lake_seq {last['first_lake_seq']} to {last['last_lake_seq']}" if last else ""
        return f"{self._model}: {self.rows} rows in {self.batches} batches were not finite and are left out{where}"

    def state(self) -> dict[str, Any]:
        """State for checkpoints and for people: rows, batches, left-out rows by task, and the latest positions."""
        return {
            "rows": self.rows,
            "batches": self.batches,
            "in_a_row": self._in_a_row,
            "left_out": self._left_out.state(),
            "last": [dict(entry) for entry in self._last],
        }


def places_of(rows: pa.Table, result: StepResult, left_out: np.ndarray | None) -> list[QuarantinedRows]:
    """Rows that a step left out, one by one or as a batch; empty if it learned all."""
    if not rows.num_rows:
        return []
    seq = rows["lake_seq"].to_numpy()
    if not result.finite:
        return [QuarantinedRows(int(seq[0]), int(seq[-1]), len(seq), REASONS[reason_of(result)])]
    if left_out is None:
        return []
    return [QuarantinedRows(int(seq[n]), int(seq[n]), 1, REASONS[left_out[n]]) for n in np.flatnonzero(left_out)]
