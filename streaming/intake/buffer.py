"""Buffer of one partition between reading and the merge: accepted and refused rows, by key time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from streaming.messages.dead_letters import Kind
from streaming.position import SourcePosition

NO_TIME = -1
"""Event time before the first row; valid event times are not negative."""

Destination = Literal["impression", "feedback", "dead"]


class KeyedRows(NamedTuple):
    """Rows of one partition in (offset, row) order, with their key times, which ascend."""

    keys: np.ndarray
    batch: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.batch.nbytes)

    def slice(self, start: int, stop: int) -> KeyedRows:
        return KeyedRows(self.keys[start:stop], self.batch.slice(start, stop - start))

    def position(self, at: int) -> SourcePosition:
        return SourcePosition(self.batch["source_offset"][at].as_py(), self.batch["source_row"][at].as_py())


class RowQueue:
    """Queue of one partition's rows, push by push: the accepted or the refused ones."""

    def __init__(self) -> None:
        self._pushes: deque[KeyedRows] = deque()
        self.nbytes = 0

    def append(self, rows: KeyedRows) -> None:
        if len(rows.keys):
            self._pushes.append(rows)
            self.nbytes += rows.nbytes

    def take(self, bound: int) -> list[KeyedRows]:
        """Remove the rows whose key time is below `bound`."""
        taken = []
        while self._pushes:
            rows = self._pushes[0]
            if not (stop := int(np.searchsorted(rows.keys, bound))):
                break
            self._pushes.popleft()
            self.nbytes -= rows.nbytes
            taken.append(rows.slice(0, stop))
            if stop < len(rows.keys):
                rest = rows.slice(stop, len(rows.keys))
                self._pushes.appendleft(rest)
                self.nbytes += rest.nbytes
                break
        return taken

    @property
    def next_offset(self) -> int | None:
        return self._pushes[0].position(0).offset if self._pushes else None


@dataclass
class PartitionBuffer:
    """State of one partition: buffered rows, and its known event time."""

    kind: Kind
    running_max: int = NO_TIME
    popped_max: int = NO_TIME
    next_position: SourcePosition | None = None
    buffered: int = 0
    idle: bool = False
    ended: bool = False
    accepted: RowQueue = field(default_factory=RowQueue)
    refused: RowQueue = field(default_factory=RowQueue)

    @property
    def buffered_bytes(self) -> int:
        return self.accepted.nbytes + self.refused.nbytes

    def push(self, keys: np.ndarray, batch: pa.RecordBatch, refused_keys: np.ndarray, refused: pa.RecordBatch) -> None:
        self.accepted.append(KeyedRows(keys, batch))
        self.refused.append(KeyedRows(refused_keys, refused))
        self.running_max = max(int(part[-1]) for part in (keys, refused_keys) if len(part))
        self.buffered += len(keys) + len(refused_keys)
        self.idle = False

    def take(self, bound: int) -> list[tuple[Destination, KeyedRows]]:
        """Remove every buffered row whose key time is below `bound`, and advance the position past them."""
        accepted, refused = self.accepted.take(bound), self.refused.take(bound)
        ends = [rows[-1] for rows in (accepted, refused) if rows]
        if ends:
            self.popped_max = max(int(rows.keys[-1]) for rows in ends)
            last = max(rows.position(-1) for rows in ends)
            # Messages are pushed whole: the rest of this one, if any, is at the front of a queue.
            rest = last.offset in (self.accepted.next_offset, self.refused.next_offset)
            self.next_position = SourcePosition(last.offset, last.row + 1) if rest else SourcePosition(last.offset + 1)
            self.buffered -= sum(len(rows.keys) for rows in (*accepted, *refused))
        return [*((self.kind, rows) for rows in accepted), *(("dead", rows) for rows in refused)]
