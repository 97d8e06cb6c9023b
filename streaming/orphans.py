"""Feedback that came before its impression: a tie in event time, a skewed clock, or an impression that never comes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streaming.hashing import hash64
from streaming.pending import Ledger, RowLog


class Orphans:
    """Feedback rows (`merged_schema`) that wait for their impression, at most `horizon_ms` of key time."""

    def __init__(self, schema: pa.Schema, horizon_ms: int) -> None:
        self._horizon = horizon_ms
        self._rows = RowLog(schema)
        self._claimed = Ledger(np.uint8)

    def __len__(self) -> int:
        """Rows that wait."""
        return len(self._waiting(self._rows.stop))

    def add(self, feedback: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Let rows wait; `hashes` are those of their ids."""
        self._rows.append(feedback, feedback.column("key_time_ms").to_numpy(), hashes)
        self._claimed.append(np.zeros(feedback.num_rows, np.uint8))

    def claim(self, ids: pa.Array, hashes: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, pa.RecordBatch]:
        """Rows that waited for distinct `ids`, admitted at `keys`: the index of each row's id, and the rows.

        No row is claimed twice: an id is admitted again only beyond the horizon.
        """
        query, number = self._rows.find(ids, hashes)
        waited = keys[query] - self._rows.key_time[number] <= self._horizon
        query, number = query[waited], number[waited]
        self._claimed.mark(number, 1)
        return query, self._rows.take(number)

    def expire(self, watermark_ms: int) -> pa.RecordBatch:
        """Take out the rows that no impression can claim any more, in the order they came."""
        stop = self._rows.key_time.search(watermark_ms - self._horizon)
        expired = self._rows.take(self._waiting(stop))
        self._rows.drop(stop)
        self._claimed.drop(stop)
        return expired

    def state(self) -> pa.RecordBatch:
        """The rows that wait, a copy."""
        return self._rows.take(self._waiting(self._rows.stop))

    def restore(self, rows: pa.RecordBatch) -> None:
        self.add(rows, hash64(rows.column("impression_id")))

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._claimed.nbytes

    def _waiting(self, stop: int) -> np.ndarray:
        return np.flatnonzero(self._claimed.view(self._rows.first, stop) == 0) + self._rows.first
