"""Which feedback is a label. One bit per impression and task; conditions are applied when the bits are read.

For an impression with event time e and deadline d_t for task t of window w, feedback with event time f and key time kf:

    label = 1   iff   e <= f <= e + w   and   kf <= d_t        (else it is late; after a label, it is a repeat)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import POSITION_FIELDS, RowSchema, SettlementGroup
from streaming.settlement.ledger import Ledger
from streaming.settlement.marks import Marks
from streaming.settlement.matching import Matches
from streaming.settlement.pending import empty_batch

LATE_REASONS = ("after_settlement", "outside_window")


def late_schema(schema: RowSchema) -> pa.Schema:
    """Feedback that was matched and is no label, and why.

    `late_by_ms` is, `after_settlement`, how far its key time lies beyond the deadline; `outside_window`, how far its
    event time lies beyond the end of the window, or (negative) before the impression.
    """
    return pa.schema(
        [
            *schema.feedback,
            *POSITION_FIELDS,
            pa.field("reason", pa.string(), nullable=False),
            pa.field("late_by_ms", pa.int64(), nullable=False),
            pa.field("impression_event_time_ms", pa.int64(), nullable=False),
            pa.field("deadline_ms", pa.int64(), nullable=False),
        ]
    )


class Joined(NamedTuple):
    """What feedback rows became: labels, repeats of labels, or late rows (`late_schema`)."""

    labels: int
    repeats: int
    late: pa.RecordBatch


class LabelJoin:
    """Labels of numbered impressions.

    >>> join = LabelJoin(RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}]), lateness_ms=0)
    >>> join.append(event_time=np.array([100, 200]))
    >>> join.bits.mark(np.array([1]), 1)
    >>> join.labels(join.schema.groups[0], 0, 2)["ctr"][0].tolist()
    [False, True]
    """

    def __init__(self, schema: RowSchema, lateness_ms: int, first: int = 0) -> None:
        self.schema, self._lateness = schema, lateness_ms
        self._place = {task.name: i for i, task in enumerate(schema.tasks)}
        self._names = pa.array(list(self._place))
        self._windows = np.array([task.window_ms for task in schema.tasks])
        self._late_schema = late_schema(schema)
        self.nothing_late = empty_batch(self._late_schema)
        self.event_time = Ledger(np.int64, first)
        self.bits = Marks(np.min_scalar_type(2 ** len(schema.tasks) - 1), first)

    def append(self, event_time: np.ndarray) -> None:
        """Impressions admitted: their event times. None has a label yet."""
        self.event_time.append(event_time)
        self.bits.append(np.zeros(len(event_time), np.uint8))

    def join(self, matches: Matches, admitted_key: np.ndarray) -> Joined:
        """Take matched feedback, with the key time at which the impression of each row was admitted, (N,)."""
        in_order = np.lexsort((matches.rows.column("order").to_numpy(), matches.resolved))
        feedback = matches.rows.take(pa.array(in_order))
        number, admitted_key = matches.number[in_order], admitted_key[in_order]
        task = pc.index_in(feedback.column("task"), value_set=self._names).to_numpy(zero_copy_only=False)
        window = self._windows[task]
        impression_time = self.event_time[number]
        deadline = admitted_key + window + self._lateness
        after = feedback.column("key_time_ms").to_numpy() - deadline
        delay = feedback.column("event_time_ms").to_numpy() - impression_time
        counts = (after <= 0) & (delay >= 0) & (delay <= window)

        # The first row that counts sets the label of its (impression, task); whatever follows it is a repeat.
        _, pair = np.unique(number * len(self._names) + task, return_inverse=True)
        setter = np.full(len(number), len(number))
        setting = np.flatnonzero(counts)
        setter[pair[setting][::-1]] = setting[::-1]
        already = (self.bits[number].astype(np.uint64) >> task.astype(np.uint64)) & np.uint64(1) > 0
        repeat = already | (np.arange(len(number)) > setter[pair])
        sets = counts & ~repeat
        for place in range(len(self._names)):
            self.bits.mark(number[sets & (task == place)], 1 << place)

        late = np.flatnonzero(~counts & ~repeat)
        return Joined(
            labels=int(sets.sum()),
            repeats=int(repeat.sum()),
            late=self._late(feedback, late, after, delay, window, impression_time, deadline),
        )

    def labels(self, group: SettlementGroup, start: int, stop: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """(label, applicable) of impressions [start, stop) for every task of `group`, both (stop - start,) bool.

        Final once the group's deadline has passed: a condition's window is never longer than its task's.
        """
        bits = self.bits.view(start, stop)
        return {task.name: (self._positive(bits, task.name), self._applicable(bits, task.name)) for task in group.tasks}

    def drop(self, before: int) -> None:
        self.event_time.drop(before)
        self.bits.drop(before)

    @property
    def nbytes(self) -> int:
        return self.event_time.nbytes + self.bits.nbytes

    def _positive(self, bits: np.ndarray, task: str) -> np.ndarray:
        bit = (bits >> bits.dtype.type(self._place[task])) & bits.dtype.type(1)
        return bit.astype(bool) & self._applicable(bits, task)

    def _applicable(self, bits: np.ndarray, task: str) -> np.ndarray:
        given = self.schema.tasks[self._place[task]].given
        return np.ones(len(bits), bool) if given is None else self._positive(bits, given)

    def _late(self, feedback: pa.RecordBatch, late: np.ndarray, *measures: np.ndarray) -> pa.RecordBatch:
        if not len(late):
            return self.nothing_late
        after, delay, window, impression_time, deadline = (measure[late] for measure in measures)
        received = feedback.select(self._late_schema.names[:-4]).take(pa.array(late))
        reason = pa.array(LATE_REASONS).take(pa.array(np.where(after > 0, 0, 1)))
        late_by = np.where(after > 0, after, np.where(delay < 0, delay, delay - window))
        columns = [*received.columns, reason, pa.array(late_by), pa.array(impression_time), pa.array(deadline)]
        return pa.RecordBatch.from_arrays(columns, schema=self._late_schema)
