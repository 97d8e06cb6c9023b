"""A chunk of a stream on its way to the topics; rows held until their time, or until they are in order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.errors import DataLost
from streaming.messages.dead_letters import Kind
from streaming.messages.source import EndOfStream, Source


class Chunk(NamedTuple):
    """Rows that arrive in one interval of time. Chunks follow one another; either batch may be empty.

    impressions: `RowSchema.impression`, feedback: `RowSchema.feedback`, both in the order they arrive.
    malformed: message values to write as they are, each to the topic of its kind.
    watermark_ms: no record in a later chunk has an earlier event time, save the second copies of duplicates.
    truth: `TRUTH_SCHEMA`, one row per impression generated here (no duplicates); None where it is unknown.
    """

    impressions: pa.RecordBatch
    feedback: pa.RecordBatch
    malformed: list[tuple[Kind, bytes]]
    watermark_ms: int
    truth: pa.RecordBatch | None


class PlayedStream(Source[int, Chunk]):
    """A stream played from its start, deterministic for a given `chunk_rows`. Its position is the number of chunks
    handed out; to go to one, the stream is played again up to there, at the cost of its time."""

    chunk_rows = 8192
    _played = 0

    @abstractmethod
    def chunks(self, chunk_rows: int = 8192) -> Iterator[Chunk]:
        """The whole stream, from its start."""

    def open(self, position: int | None = None) -> None:
        """Seek to a position; raises DataLost if the stream ends before it."""
        self.seek(position or 0)

    def seek(self, position: int) -> None:
        self._chunks, self._played = self.chunks(self.chunk_rows), 0
        for _ in range(position):
            if next(self._chunks, None) is None:
                raise DataLost(
                    f"the stream was played for {position:,} chunks of {self.chunk_rows:,} rows before, and has "
                    f"{self._played:,}: it is not the same any more; play the one that was begun, or start a new run"
                )
            self._played += 1

    def next_batch(self, max_wait_s: float = 0.0) -> Chunk:
        chunk = next(self._chunks, None)
        if chunk is None:
            raise EndOfStream
        self._played += 1
        return chunk

    def position(self) -> int:
        return self._played


class HeldRows:
    """Rows delayed after their creation. Its size follows rate times delay, not the length of the stream.

    >>> held = HeldRows(pa.schema([("n", pa.int64())]))
    >>> held.push(pa.record_batch({"n": [1, 2, 3]}), np.array([30, 10, 20]))
    >>> rows, due_ms = held.pop_until(20)
    >>> rows["n"].to_pylist(), due_ms.tolist(), len(held)
    ([2, 3], [10, 20], 1)
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = pa.RecordBatch.from_pylist([], schema)
        self.due_ms = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.rows.num_rows

    def push(self, rows: pa.RecordBatch, due_ms: np.ndarray) -> None:
        if rows.num_rows:
            self.rows = pa.concat_batches([self.rows, rows])
            self.due_ms = np.concatenate([self.due_ms, due_ms])

    def drop(self, dropped: np.ndarray) -> int:
        """Drop rows by mask (N,) bool; returns their number."""
        if count := int(dropped.sum()):
            self.rows, self.due_ms = self.rows.filter(pa.array(~dropped)), self.due_ms[~dropped]
        return count

    def pop_until(self, now_ms: int) -> tuple[pa.RecordBatch, np.ndarray]:
        """Rows due by `now_ms`, in order of their time, and those times."""
        due = self.due_ms <= now_ms
        places = np.flatnonzero(due)
        places = places[np.argsort(self.due_ms[places], kind="stable")]
        popped = self.rows.take(pa.array(places)), self.due_ms[places]
        self.drop(due)
        return popped

    def due_after(self, count: int) -> int:
        """Time by which `count` rows are due, or all if fewer. At least one is held."""
        place = min(count, len(self)) - 1
        return int(np.partition(self.due_ms, place)[place])


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
        self._keys, self._held = keys, HeldRows(schema)
        self._passed_ms = -1
        self.dropped = 0

    def push(self, rows: pa.RecordBatch, watermark_ms: int) -> pa.RecordBatch:
        """Add rows; returns those before `watermark_ms`, which no later original precedes."""
        held = self._held
        held.push(rows, rows["event_time_ms"].to_numpy())
        self.dropped += held.drop(self._repeats(held.rows) | (held.due_ms < self._passed_ms))
        self._passed_ms = watermark_ms
        return held.pop_until(watermark_ms - 1)[0]

    def _repeats(self, rows: pa.RecordBatch) -> np.ndarray:
        """Rows whose key stands before them."""
        table = pa.Table.from_batches([rows.select(self._keys)])
        table = table.append_column("place", pa.array(np.arange(rows.num_rows)))
        first = table.group_by(self._keys, use_threads=False).aggregate([("place", "min")])["place_min"].to_numpy()
        repeats = np.ones(rows.num_rows, bool)
        repeats[first] = False
        return repeats
