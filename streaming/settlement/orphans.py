"""Feedback before its impression: a tie in event time, a skewed clock, or an impression that never comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming.settlement.marks import Marks
from streaming.settlement.pending import RowLog, RowLogState
from streaming.store.segments import Segments

_CLAIMED = 1


class Orphans:
    """Feedback rows (`merged_schema`) that wait for their impression, at most `horizon_ms` of key time."""

    def __init__(self, schema: pa.Schema, horizon_ms: int, first: int = 0) -> None:
        self._horizon = horizon_ms
        self.rows = RowLog(schema, first, kind="waiting")
        self.claimed = Marks(np.uint8, first)
        self._waits = 0

    def __len__(self) -> int:
        """Rows that wait."""
        return self._waits

    def add(self, feedback: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add waiting rows; `hashes` are those of their ids."""
        self.rows.append(feedback, feedback.column("key_time_ms").to_numpy(), hashes)
        self.claimed.append(np.zeros(feedback.num_rows, np.uint8))
        self._waits += feedback.num_rows

    def claim(self, ids: pa.Array, hashes: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, pa.RecordBatch]:
        """Rows that waited for distinct `ids`, admitted at `keys`: the index of each row's id, and the rows.

        No row is claimed twice: an id is admitted again only beyond the horizon.
        """
        query, number = self.rows.find(ids, hashes)
        waited = keys[query] - self.rows.key_time[number] <= self._horizon
        query, number = query[waited], number[waited]
        self.claimed.mark(number, _CLAIMED)
        self._waits -= len(number)
        return query, self.rows.take(number)

    def expire(self, watermark_ms: int) -> pa.RecordBatch:
        """Take out the rows that no impression can claim any more, in order of arrival."""
        start, stop = self.rows.first, self.rows.key_time.search(watermark_ms - self._horizon)
        expired = self.rows.take(np.flatnonzero(self.claimed.view(start, stop) == 0) + start)
        self.rows.drop(stop)
        self.claimed.drop(stop)
        self._waits -= expired.num_rows
        return expired

    def restore(self, rows: RowLogState, claimed: Segments) -> None:
        """Put both back. Raises StreamingError when a segment is missing or damaged."""
        self.rows.restore(rows)
        self.claimed.restore(claimed, self.rows.stop)
        self._waits = int((self.claimed.view(self.rows.first, self.rows.stop) == 0).sum())

    def stored(self, rows: RowLogState, claimed: Segments, folder: Path) -> None:
        """The segments of both states lie in `folder` now."""
        self.rows.stored(rows, folder)
        self.claimed.stored(claimed, folder)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.claimed.nbytes
