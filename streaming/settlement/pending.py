"""Waiting rows: numbered as they come, found by id, dropped from the front.

Rows lie in immutable segments of at least SEGMENT_ROWS and a head that fills up to the next one. A segment is written
once; from then on its rows lie in that file only, and memory keeps what is needed at random: the index of ids and the
key times here, event times and marks in separate ledgers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.evolution import filled
from streaming.hashing import hash64
from streaming.settlement.id_index import IdIndex
from streaming.store.files import make_folder
from streaming.store.numbered import NumberedValues
from streaming.store.segments import Segments, StoredSegment, store_segments

SEGMENT_ROWS = 32_768
SPILL_BYTES = 256 << 20
"""Segments in memory are stored early once they exceed this size, if a folder is given (`RowLog.spill`)."""

HEAD_PARTS = 32
_ALWAYS = ["impression_id", "event_time_ms"]
_FORGOTTEN = -1


@dataclass(frozen=True)
class RowLogState:
    """Rows `first`, `first + 1`, …: segments and head, both with `key_time_ms`. Stored segments lie in `folder`."""

    first: int
    segments: list[StoredSegment]
    head: StoredSegment
    folder: Path | None

    @property
    def files(self) -> Segments:
        return Segments([*self.segments, self.head], self.folder)


class RowLog:
    """Numbered rows with an exact index of their `impression_id` and the key time each was admitted at.

    Key times ascend with the numbers. `kind` tells the files of several logs in one folder apart; `readers` is the
    number of places that are read in turn.
    """

    def __init__(self, schema: pa.Schema, first: int = 0, *, kind: str = "segment", readers: int = 1) -> None:
        self.schema = schema
        self._kind = kind
        self._nothing = empty_batch(schema)
        self.key_time = NumberedValues(np.int64, first)
        self._segments: list[StoredSegment] = []
        self._stored = 0  # number of leading segments that are in `folder` alone
        self.folder: Path | None = None
        self.spill: Path | None = None
        self._opened: OrderedDict[str, pa.RecordBatch] = OrderedDict()
        self._most_opened = readers + 1
        self._head_first = first
        self._head: list[pa.RecordBatch] = []
        self._index = IdIndex()
        self._integer_ids = pa.types.is_integer(schema.field("impression_id").type)

    @property
    def first(self) -> int:
        return self.key_time.first

    @property
    def stop(self) -> int:
        return self.key_time.stop

    def append(self, rows: pa.RecordBatch, key_time: np.ndarray, hashes: np.ndarray) -> None:
        """Admit rows; `hashes` are those of their ids. Raises DiskFull."""
        if not rows.num_rows:
            return
        self._index.append(hashes, self.stop)
        self.key_time.append(key_time)
        self._head.append(self._typed(rows))
        if self.stop - self._head_first >= SEGMENT_ROWS:
            self._seal()
        elif len(self._head) > HEAD_PARTS:
            self._head = [pa.concat_batches(self._head)]

    def find(self, ids: pa.Array, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All pairs (index into `ids`, number) of equal id; of one id, numbers ascend."""
        query, number = self._index.find(hashes)
        known = number >= self.first
        query, number = query[known], number[known]
        if len(query) and not self._integer_ids:  # hashes of integers are bijective, those of strings are not
            stored = self.take(number, ["impression_id"]).column(0)
            same = pc.equal(stored, ids.take(pa.array(query))).to_numpy(zero_copy_only=False)
            query, number = query[same], number[same]
        return query, number

    def slices(self, start: int, stop: int) -> list[pa.RecordBatch]:
        """Rows [start, stop) as batches, not copied."""
        return [rows.slice(low, high - low) for rows, low, high in self._spans(start, stop)]

    def take(self, numbers: np.ndarray, names: list[str] | None = None) -> pa.RecordBatch:
        """The rows of `numbers`, any order."""
        names = self.schema.names if names is None else names
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        taken, at = [self._nothing.select(names)], 0
        while at < len(ascending):
            first, rows = self._part(int(ascending[at]), names)
            end = int(np.searchsorted(ascending, first + rows.num_rows))
            taken.append(rows.select(names).take(pa.array(ascending[at:end] - first)))
            at = end
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        return pa.concat_batches(taken).take(pa.array(inverse))

    def slim(self, before: int) -> None:
        """Drop the in-memory features of rows below `before`, segment by segment; they are not read any more."""
        for i in range(self._stored, len(self._segments)):
            segment = self._segments[i]
            if segment.stop > before:
                break
            if segment.rows is not None and segment.rows.num_columns > len(_ALWAYS):
                self._segments[i] = replace(segment, rows=self._typed(segment.rows.select(_ALWAYS)))

    def drop(self, before: int) -> None:
        """Forget rows below `before`: they are not found any more."""
        self.key_time.drop(before)
        self._index.drop(before)
        gone = 0
        while gone < len(self._segments) and self._segments[gone].stop <= before:
            self._opened.pop(self._segments[gone].name, None)
            gone += 1
        del self._segments[:gone]
        self._stored = max(self._stored - gone, 0)
        if before == self.stop:
            self._head, self._head_first = [], self.stop

    # What survives

    def state(self) -> RowLogState:
        """Everything, to be restored exactly. Segments never change, so what is stored is named, not copied."""
        segments = [*self._segments[: self._stored], *self._waiting_segments()]
        return RowLogState(self.first, segments, self._head_segment(), self.folder)

    def stored(self, state: RowLogState, folder: Path) -> None:
        """The segments of `state`, which was made of these rows, lie in `folder` now: let go of the segments' rows."""
        waiting = state.segments[self._stored :]
        self._segments[self._stored :] = [replace(segment, rows=None) for segment in waiting]
        self._stored, self.folder = len(self._segments), folder

    def restore(self, state: RowLogState) -> NumberedValues:
        """Restore `state` into an empty log; returns the rows' event times.

        Of the segments, only ids and times are read. Raises StreamingError when one is missing or damaged.
        """
        self.folder = state.folder
        event_time = NumberedValues(np.int64, state.first)
        self._index.restore(self._restored_segments(state, event_time), state.first)
        head = state.head.read(state.folder)
        event_time.append(head["event_time_ms"].to_numpy())
        self.append(filled(head, self.schema), head["key_time_ms"].to_numpy(), hash64(head["impression_id"]))
        return event_time

    def _restored_segments(self, state: RowLogState, event_time: NumberedValues) -> Iterator[np.ndarray]:
        """The hashes of each segment's ids; its times and the segment are back when the next one is asked for."""
        for segment in state.segments:
            columns = segment.read(state.folder, [*_ALWAYS, "key_time_ms"]).slice(max(self.stop - segment.first, 0))
            self.key_time.append(columns["key_time_ms"].to_numpy())
            event_time.append(columns["event_time_ms"].to_numpy())
            if segment.rows is None:
                self._stored += 1
            else:
                slim = segment.rows.schema.names[: len(_ALWAYS) + 1] == [*_ALWAYS, "key_time_ms"]
                kept = self._fields(_ALWAYS) if slim else self.schema
                segment = replace(segment, rows=filled(segment.rows, kept))
            self._segments.append(segment)
            yield hash64(columns["impression_id"])
        self._head_first = self.stop

    @property
    def nbytes(self) -> int:
        """Bytes of memory: the index, key times, unstored rows and stored ones being read."""
        rows = sum(rows.nbytes for rows in (*self._head, *self._opened.values()))
        return self.key_time.nbytes + self._index.nbytes + self._waiting_bytes + rows

    @property
    def _waiting_bytes(self) -> int:
        return sum(segment.rows.nbytes for segment in self._segments[self._stored :] if segment.rows is not None)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """The parts that hold [start, stop), and which of their rows those are."""
        while start < stop:
            first, rows = self._part(start, self.schema.names)
            low, high = start - first, min(stop - first, rows.num_rows)
            yield rows, low, high
            start = first + high

    def _part(self, number: int, names: Sequence[str]) -> tuple[int, pa.RecordBatch]:
        """The segment, or part of the head, that holds row `number`: its first number, and at least these columns."""
        if number >= self._head_first:
            first = self._head_first
            for rows in self._head:
                if number < first + rows.num_rows:
                    return first, rows
                first += rows.num_rows
            raise IndexError(number)
        segment = self._segments[bisect_right(self._segments, number, key=attrgetter("first")) - 1]
        if segment.rows is not None:
            return segment.first, segment.rows
        rows = self._opened.get(segment.name)
        if rows is None:
            rows = filled(segment.read(self.folder, names), self._fields(names))
            if len(names) == len(self.schema):
                self._opened[segment.name] = rows
        if segment.name in self._opened:
            self._opened.move_to_end(segment.name)
            while len(self._opened) > self._most_opened:
                self._opened.popitem(last=False)
        return segment.first, rows

    def _typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same columns with the fields of `schema`, which know what may be null."""
        return pa.RecordBatch.from_arrays(rows.columns, schema=self._fields(rows.schema.names))

    def _fields(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    def _seal(self) -> None:
        rows = pa.concat_batches(self._head)
        keys = self.key_time.view(max(self._head_first, self.first), self.stop)
        self._segments.append(StoredSegment.of(self._kind, self._head_first, rows, _content(rows, keys)))
        self._head, self._head_first = [], self.stop
        if self.spill is not None and self._waiting_bytes > SPILL_BYTES:
            state = self.state()
            make_folder(self.spill)
            store_segments(Segments(state.segments, state.folder), self.spill)
            self.stored(state, self.spill)

    def _waiting_segments(self) -> list[StoredSegment]:
        """The segments in memory, as they are stored."""
        waiting = []
        for segment in self._segments[self._stored :]:
            assert segment.rows is not None
            dropped = min(max(self.first - segment.first, 0), segment.count)
            keys = self.key_time.view(segment.first + dropped, segment.stop)
            keys = np.concatenate([np.full(dropped, _FORGOTTEN), keys])
            waiting.append(replace(segment, rows=self._keyed(segment.rows, keys)))
        return waiting

    def _head_segment(self) -> StoredSegment:
        start = max(self.first, self._head_first)
        rows = pa.concat_batches([self._nothing, *self._head]).slice(start - self._head_first)
        keys = self.key_time.view(start, self.stop).copy()
        return StoredSegment.of(f"{self._kind}_head", start, self._keyed(rows, keys), _content(rows, keys))

    def _keyed(self, rows: pa.RecordBatch, key_time: np.ndarray) -> pa.RecordBatch:
        if "key_time_ms" in rows.schema.names:
            return rows
        return rows.append_column("key_time_ms", pa.array(key_time))


def _content(rows: pa.RecordBatch, key_time: np.ndarray) -> list[np.ndarray]:
    """Columns that tell rows from all others of their number and count."""
    return [hash64(rows.column("impression_id")), key_time, rows.column("source_offset").to_numpy()]


def empty_value(field: pa.Field) -> pa.Scalar:
    """A value that says nothing: null, where the column may be null.

    >>> empty_value(pa.field("ad", pa.int64(), nullable=False)), empty_value(pa.field("ad", pa.int64()))
    (<pyarrow.Int64Scalar: 0>, <pyarrow.Int64Scalar: None>)
    """
    if field.nullable:
        return pa.scalar(None, field.type)
    if pa.types.is_list(field.type):
        return pa.scalar([], field.type)
    text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    return pa.scalar("" if text else 0).cast(field.type)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    nothing = [pa.nulls(0, field.type) for field in schema]  # `pa.array` would import pandas
    return pa.RecordBatch.from_arrays(nothing, schema=schema)
