"""Rows that wait: numbered as they come, found by id, forgotten from the front.

Rows lie in immutable segments of at least SEGMENT_ROWS (a checkpoint writes each once) and a head that fills up to the
next one. What changes or is needed for every row at random (key time, labels) lies beside them in ledgers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.hashing import hash64
from streaming.id_index import IdIndex

SEGMENT_ROWS = 32_768
_HEAD_PARTS = 32


class Ledger:
    """One value per number, numbers consecutive; appended at the end, dropped from the front.

    >>> ledger = Ledger(np.int64, first=10)
    >>> ledger.append(np.array([5, 6, 7])); ledger.drop(11)
    >>> ledger.first, ledger.stop, ledger[np.array([12, 11])].tolist(), ledger.search(7)
    (11, 13, [7, 6], 12)
    """

    def __init__(self, dtype: type | np.dtype, first: int = 0) -> None:
        self.first, self.stop = first, first
        self._base = first
        self._values = np.empty(1024, dtype)

    def append(self, values: np.ndarray) -> None:
        used = self.stop - self._base
        if used + len(values) > len(self._values):
            kept = self._values[self.first - self._base : used]
            values_new = np.empty(max(1024, 3 * (len(kept) + len(values)) // 2), self._values.dtype)
            values_new[: len(kept)] = kept
            self._values, self._base = values_new, self.first
            used = len(kept)
        self._values[used : used + len(values)] = values
        self.stop += len(values)

    def drop(self, before: int) -> None:
        self.first = before

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        return self._values[numbers - self._base]

    def mark(self, numbers: np.ndarray, bit: int) -> None:
        """Set a bit in the values of distinct `numbers`."""
        self._values[numbers - self._base] |= self._values.dtype.type(bit)

    def view(self, start: int, stop: int) -> np.ndarray:
        """Values of [start, stop), not copied."""
        return self._values[start - self._base : stop - self._base]

    def search(self, value: int) -> int:
        """The first number whose value is not below `value`; values ascend."""
        return self.first + int(np.searchsorted(self.view(self.first, self.stop), value))

    @property
    def nbytes(self) -> int:
        return self._values.nbytes


@dataclass(frozen=True)
class Segment:
    """Rows `first`, `first + 1`, …, never changed. `name` is unique to its content."""

    name: str
    first: int
    rows: pa.RecordBatch

    @property
    def stop(self) -> int:
        return self.first + self.rows.num_rows


class RowLog:
    """Numbered rows with an exact index of their `impression_id` and the key time each was admitted at.

    Key times ascend with the numbers.
    """

    def __init__(self, schema: pa.Schema, first: int = 0) -> None:
        self.schema = schema
        self._nothing = empty_batch(schema)
        self.key_time = Ledger(np.int64, first)
        self.segments: list[Segment] = []
        self.head_first = first
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
        """Admit rows; `hashes` are those of their ids."""
        if not rows.num_rows:
            return
        self._index.append(hashes, self.stop)
        self.key_time.append(key_time)
        self._head.append(self._typed(rows))
        if self.stop - self.head_first >= SEGMENT_ROWS:
            self._seal()
        elif len(self._head) > _HEAD_PARTS:
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
        parts = [
            rows.slice(max(start - first, 0), min(stop - first, rows.num_rows) - max(start - first, 0))
            for first, rows in self._parts()
            if first < stop and first + rows.num_rows > start
        ]
        return [part for part in parts if part.num_rows]

    def take(self, numbers: np.ndarray, names: list[str] | None = None) -> pa.RecordBatch:
        """The rows of `numbers`, any order."""
        names = self.schema.names if names is None else names
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        taken = [self._nothing.select(names)]
        for first, rows in self._parts():
            low, high = np.searchsorted(ascending, [first, first + rows.num_rows])
            if high > low:
                taken.append(rows.select(names).take(pa.array(ascending[low:high] - first)))
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        return pa.concat_batches(taken).take(pa.array(inverse))

    def slim(self, before: int) -> None:
        """Keep only the ids of segments that lie below `before`."""
        for i, segment in enumerate(self.segments):
            if segment.stop > before:
                break
            if segment.rows.num_columns > 1:
                ids = self._typed(segment.rows.select(["impression_id"]))
                self.segments[i] = Segment(segment.name, segment.first, ids)

    def drop(self, before: int) -> None:
        """Forget rows below `before`: they are not found any more."""
        self.key_time.drop(before)
        self._index.drop(before)
        self.segments = [segment for segment in self.segments if segment.stop > before]
        if before == self.stop:
            self._head, self.head_first = [], self.stop

    def head(self) -> pa.RecordBatch:
        """The rows that are not in a segment yet."""
        return pa.concat_batches([self._nothing, *self._head])

    def restore_segment(self, segment: Segment, key_time: np.ndarray) -> None:
        """Put back a segment; of its rows those from `self.first` on, with `key_time` of all, are indexed."""
        ids = segment.rows.column("impression_id")
        skipped = max(self.stop - segment.first, 0)
        self._index.append(hash64(ids.slice(skipped)), self.stop)
        self.key_time.append(key_time[skipped:])
        self.segments.append(Segment(segment.name, segment.first, self._typed(segment.rows)))
        self.head_first = segment.stop

    @property
    def nbytes(self) -> int:
        return self.key_time.nbytes + self._index.nbytes + sum(rows.nbytes for _, rows in self._parts())

    def _parts(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        for segment in self.segments:
            yield segment.first, segment.rows
        first = self.head_first
        for rows in self._head:
            yield first, rows
            first += rows.num_rows

    def _typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same columns with the fields of `schema`, which know what may be null."""
        fields = [self.schema.field(name) for name in rows.schema.names]
        return pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema(fields))

    def _seal(self) -> None:
        rows = pa.concat_batches(self._head)
        digest = hashlib.blake2b(hash64(rows.column("impression_id")).tobytes(), digest_size=8)
        kept = min(max(self.first - self.head_first, 0), rows.num_rows)
        digest.update(self.key_time.view(self.head_first + kept, self.stop).tobytes())
        digest.update(rows.column("source_offset").to_numpy().tobytes())
        name = f"{self.head_first:015d}-{rows.num_rows}-{digest.hexdigest()}"
        self.segments.append(Segment(name, self.head_first, rows))
        self._head, self.head_first = [], self.stop


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
