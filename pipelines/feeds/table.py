"""A table in memory as a source of rows: a sweep's stream, or a test's, in place of a lake."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streaming.messages import EndOfStream, Source
from streaming.position import NOTHING_YET


class TableSource(Source[int, pa.Table]):
    """Rows of a table that is sorted by `lake_seq`, up to `batch_rows` at a time. Its position is a `lake_seq`."""

    def __init__(self, table: pa.Table, *, batch_rows: int) -> None:
        self._table, self._batch_rows = table, batch_rows
        self._seq = table["lake_seq"].to_numpy()
        self._at = 0
        self.end_seq: int | None = None  # a table knows its own end

    def open(self, position: int | None = None) -> None:
        self.seek(NOTHING_YET if position is None else position)

    def seek(self, position: int) -> None:
        self._at = int(np.searchsorted(self._seq, position, side="right"))

    def next_batch(self, max_wait_s: float = 0.0) -> pa.Table:
        if self._at >= len(self._seq):
            raise EndOfStream
        rows = self._table.slice(self._at, self._batch_rows)
        self._at += rows.num_rows
        return rows

    def position(self) -> int:
        return int(self._seq[self._at - 1]) if self._at else NOTHING_YET
