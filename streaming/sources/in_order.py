"""Reordering of a stream with jitter and repeats by event time, each record once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


class InOrder:
    """Sorts rows by `event_time_ms` behind a watermark. Memory holds the rows the watermark has not passed.

    keys: the columns that make a record; of two rows equal in them the first to come is kept. A copy whose original was
    given out already is known by its time, which lies behind the watermark.

    >>> clicks = pa.schema([("id", pa.int64()), ("event_time_ms", pa.int64())])
    >>> rows = lambda *values: pa.RecordBatch.from_pylist([{"id": i, "event_time_ms": t} for i, t in values], clicks)
    >>> in_order = InOrder(clicks, ["id"])
    >>> in_order.push(rows((1, 10), (2, 30), (3, 20), (1, 10)), watermark_ms=25)["id"].to_pylist()
    [1, 3]
    >>> in_order.push(rows((3, 20)), watermark_ms=31)["id"].to_pylist(), in_order.dropped
    ([2], 2)
    """

    def __init__(self, schema: pa.Schema, keys: list[str]) -> None:
        self._keys = keys
        self._held = pa.RecordBatch.from_pylist([], schema)
        self._passed_ms = -1
        self.dropped = 0

    def push(self, rows: pa.RecordBatch, watermark_ms: int) -> pa.RecordBatch:
        """Add rows; returns those before `watermark_ms`, which no later original precedes."""
        held = pa.concat_batches([self._held, rows])
        known = held.num_rows
        time_N = held["event_time_ms"].to_numpy()
        held = held.filter(pa.array(~self._repeats(held) & (time_N >= self._passed_ms)))
        self.dropped += known - held.num_rows
        time_N = held["event_time_ms"].to_numpy()
        due = np.flatnonzero(time_N < watermark_ms)
        out = held.take(pa.array(due[np.argsort(time_N[due], kind="stable")]))
        self._held = held.filter(pa.array(time_N >= watermark_ms))
        self._passed_ms = watermark_ms
        return out

    def _repeats(self, rows: pa.RecordBatch) -> np.ndarray:
        """Rows whose key stands before them."""
        table = pa.Table.from_batches([rows.select(self._keys)])
        table = table.append_column("place", pa.array(np.arange(rows.num_rows)))
        first = table.group_by(self._keys, use_threads=False).aggregate([("place", "min")])["place_min"].to_numpy()
        repeats = np.ones(rows.num_rows, bool)
        repeats[first] = False
        return repeats
