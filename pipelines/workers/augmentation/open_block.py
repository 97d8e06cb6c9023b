"""The open block: what has settled since the last commit, and when it is due."""

from __future__ import annotations

import pyarrow as pa

from pipelines.config import Pace
from streaming.messages import DEAD_LETTER_SCHEMA
from streaming.schema import RowSchema
from streaming.settlement import SettledRows, late_schema

DEAD_ROWS = 10_000
"""This many refused records are delivered without waiting for a block."""


class OpenBlock:
    """Settled rows that are not in the lake yet, with the late feedback and dead letters that were found meanwhile.

    Times are seconds of one monotonic clock.
    """

    def __init__(self, size: int, opened_s: float, read_before: int) -> None:
        """`size`: so many rows fill it; `opened_s`: when the last commit began; `read_before`: how many rows had been
        read by then."""
        self.size = size
        self.num_rows = self.dead_rows = 0
        self._opened_s, self._read_before = opened_s, read_before
        self._began_s = opened_s  # when the first row came
        self._rows: list[pa.RecordBatch] = []
        self._late: list[pa.RecordBatch] = []
        self._dead: list[pa.RecordBatch] = []

    def add(self, settled: SettledRows, now_s: float) -> None:
        if settled.batch.num_rows:
            if not self.num_rows:
                self._began_s = now_s
            self._rows.append(settled.batch)
            self.num_rows += settled.batch.num_rows
        if settled.late.num_rows:
            self._late.append(settled.late)
        if settled.dead.num_rows:
            self._dead.append(settled.dead)
            self.dead_rows += settled.dead.num_rows

    def is_due(self, pace: Pace, now_s: float, *, at_end: bool) -> bool:
        """Whether its rows are to be scored and committed: it is full, the stream has ended, or, in free pace, its
        first row has waited long enough."""
        if not self.num_rows:
            return False
        waited = pace.mode == "free" and now_s - self._began_s >= pace.commit_interval_s
        return self.num_rows >= self.size or at_end or waited

    def progress_is_due(self, pace: Pace, now_s: float, rows_read: int) -> bool:
        """Whether to commit without rows: dead letters are delivered, and in free pace read positions are kept, also
        while nothing settles."""
        if self.num_rows:
            return False
        waited = pace.mode == "free" and now_s - self._opened_s >= pace.commit_interval_s
        return self.dead_rows >= DEAD_ROWS or (waited and rows_read > self._read_before)

    def rows(self) -> pa.RecordBatch:
        """All rows, in the order in which they settled. There must be one."""
        return pa.concat_batches(self._rows)

    def late(self, schema: RowSchema) -> pa.Table:
        return pa.Table.from_batches(self._late, late_schema(schema))

    def dead(self) -> pa.Table:
        return pa.Table.from_batches(self._dead, DEAD_LETTER_SCHEMA)
