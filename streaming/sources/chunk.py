"""A chunk of a stream on its way to the topics, and rows delayed until their time."""

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
        self._rows = pa.RecordBatch.from_pylist([], schema)
        self._due_ms = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._rows.num_rows

    def push(self, rows: pa.RecordBatch, due_ms: np.ndarray) -> None:
        if rows.num_rows:
            self._rows = pa.concat_batches([self._rows, rows])
            self._due_ms = np.concatenate([self._due_ms, due_ms])

    def pop_until(self, now_ms: int) -> tuple[pa.RecordBatch, np.ndarray]:
        """Rows due by `now_ms`, in order of their time, and those times."""
        chosen = self._due_ms <= now_ms
        places = np.flatnonzero(chosen)
        if not places.size:
            return self._rows.slice(0, 0), self._due_ms[:0]
        places = places[np.argsort(self._due_ms[places], kind="stable")]
        popped, due_ms = self._rows.take(pa.array(places)), self._due_ms[places]
        self._rows = self._rows.filter(pa.array(~chosen))
        self._due_ms = self._due_ms[~chosen]
        return popped, due_ms

    def due_after(self, count: int) -> int:
        """Time by which `count` rows are due, or all if fewer. At least one is held."""
        place = min(count, len(self)) - 1
        return int(np.partition(self._due_ms, place)[place])
