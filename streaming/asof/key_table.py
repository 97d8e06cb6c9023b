"""Accumulators of each key: rows in slots, found by a 64-bit hash, with a cap and expiry; stored as base and deltas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.asof.loops import NEVER, empty_index, fill_index, slots_of
from streaming.errors import DataLost
from streaming.store.deltas import Deltas, numbers_of
from streaming.store.segments import Segments, StoredSegment

FIRST_SLOTS = 1024


class SlotRows(NamedTuple):
    """Rows of slots: their numbers (N,), and arrays by name, (N, …)."""

    slots: np.ndarray
    rows: Mapping[str, np.ndarray]


class TableBefore(NamedTuple):
    """A table as it was before events of some keys: its arrays, how many slots held a key, and the rows of theirs."""

    arrays: Mapping[str, np.ndarray]
    used: int
    rows: SlotRows


class KeyTable:
    """Arrays with a row for each key, S slots, the first `used` of which hold one.

    arrays     by name, (S, …), zeros for a new key
    touched    (S,) when each key was last shown, ms

    Where a key finds no slot, `make_room` lets go of those that have expired, or doubles the slots; at `max_keys` a
    quarter goes, of those longest unseen. All of it follows from the events alone.
    """

    def __init__(self, shapes: Mapping[str, tuple[type, tuple[int, ...]]], max_keys: int, expire_ms: int) -> None:
        """`shapes`: dtype and shape of a key's row in each array."""
        self._shapes, self._max_keys, self.expire_ms = dict(shapes), max_keys, expire_ms
        self._deltas = Deltas(self._rows)
        self._allocate(min(FIRST_SLOTS, max_keys))

    def _allocate(self, slots: int) -> None:
        self.used = 0
        self.hashes, self.touched = np.zeros(slots, np.uint64), np.full(slots, NEVER)
        self.arrays: dict[str, np.ndarray] = {
            name: np.zeros((slots, *shape), kind) for name, (kind, shape) in self._shapes.items()
        }
        self.changed = np.zeros(slots, np.uint8)
        self.index = np.full(1 << (2 * slots - 1).bit_length(), -1, np.int32)

    def make_room(self, now_ms: int) -> None:
        """Let a new key find a slot at event time `now_ms`."""
        slots = len(self.hashes)
        keep = np.flatnonzero(self.touched[: self.used] >= now_ms - self.expire_ms)
        if slots == self._max_keys and len(keep) > (most := max(1, slots * 3 // 4)):
            newest = np.lexsort((self.hashes[keep], -self.touched[keep]))[:most]
            keep = keep[np.sort(newest)]
        elif slots < self._max_keys and len(keep) > slots * 3 // 4:
            slots = min(2 * slots, self._max_keys)
        self._move(keep, slots)

    def forget_after(self, to_ms: int) -> None:
        """Forget the keys that were shown after `to_ms`."""
        self._move(np.flatnonzero(self.touched[: self.used] <= to_ms), len(self.hashes))

    def forget(self, keys: np.ndarray) -> None:
        """Forget these keys, (N,) uint64, as if they had never been shown."""
        gone = slots_of(self.index, self.hashes, np.unique(keys))
        if len(gone):
            self._move(np.setdiff1d(np.arange(self.used), gone), len(self.hashes))

    def map_values(self, name: str, new: Callable[[np.ndarray], np.ndarray]) -> None:
        """Replace an array's rows of the keys by new ones."""
        self.arrays[name][: self.used] = new(self.arrays[name][: self.used])
        self._deltas.forget()

    def _move(self, keep: np.ndarray, slots: int) -> None:
        """Let the rows `keep` be the first ones of `slots`."""
        rows = {"hashes": self.hashes[keep], "touched": self.touched[keep]}
        arrays = {name: array[keep] for name, array in self.arrays.items()}
        moved = len(keep) < self.used
        changed = self.changed[: self.used].copy()
        self._allocate(slots)
        self._put(np.arange(len(keep)), rows | arrays)
        self.used = len(keep)
        fill_index(self.index, self.hashes, 0, self.used)
        if moved:
            self._deltas.forget()
        else:
            self.changed[: self.used] = changed

    def _put(self, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        self.hashes[slots], self.touched[slots] = rows["hashes"], rows["touched"]
        for name, array in self.arrays.items():
            array[slots] = rows[name]

    @property
    def bytes_per_key(self) -> int:
        """Bytes of memory of a key: its row, and its share of the index, which is at most half full."""
        widths = [np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in self._shapes.values()]
        return 8 + 8 + 1 + 2 * 4 + sum(widths)

    @property
    def nbytes(self) -> int:
        parts = (self.hashes, self.touched, self.changed, self.index, *self.arrays.values())
        return sum(part.nbytes for part in parts) + self._deltas.nbytes

    # What survives

    def state(self) -> Segments:
        """Segments that the used slots are read from, oldest first."""
        numbers = np.flatnonzero(self.changed[: self.used])
        self._deltas.change(numbers, self.used)
        self.changed[:] = 0
        return self._deltas.state(0, self.used)

    def stored(self, state: Segments, folder: Path) -> None:
        """`state`, which was made of these slots, lies in `folder` now."""
        self._deltas.stored(state, folder)

    def restore(self, state: Segments, slots: int, used: int) -> None:
        """Read back the first `used` of `slots`, into an empty table. Raises StreamingError."""
        self._allocate(slots)
        for numbers, rows in self._deltas.restore(state):
            self._put(numbers, self._unpacked(rows))
        self.used = used
        fill_index(self.index, self.hashes, 0, self.used)
        if len(np.unique(self.hashes[:used])) < used:
            raise DataLost("two slots of a table of as-of features hold one key")

    # What is followed, as it is stored again and again

    def empty(self) -> KeyTable:
        """A table of the same shapes, without a key."""
        return KeyTable(self._shapes, self._max_keys, self.expire_ms)

    def read(self, segment: StoredSegment, folder: Path | None) -> SlotRows:
        """The rows that a segment of such a table holds. Raises StreamingError."""
        rows = segment.read(folder)
        return SlotRows(numbers_of(segment, rows), self._unpacked(rows))

    def take(self, changed: Iterable[SlotRows], slots: int, used: int) -> None:
        """Let rows that were stored replace those here, the oldest first; then `used` of `slots` hold a key."""
        if slots != len(self.hashes):
            self._allocate(slots)
        for each in changed:
            self._put(*each)
        fill_index(self.index, self.hashes, self.used, used)
        self.used = used

    def become(self, other: KeyTable) -> None:
        """Hold what another table of the same shapes holds, which is not used any more."""
        self.hashes, self.touched, self.changed, self.index = other.hashes, other.touched, other.changed, other.index
        self.arrays, self.used = other.arrays, other.used

    def before(self, keys: np.ndarray) -> TableBefore:
        """The state that `undo` needs after events of `keys`."""
        arrays = {"hashes": self.hashes, "touched": self.touched, "changed": self.changed, "index": self.index}
        slots = slots_of(self.index, self.hashes, np.unique(keys))
        rows = {"hashes": self.hashes[slots], "touched": self.touched[slots]}
        rows |= {name: array[slots] for name, array in self.arrays.items()}
        return TableBefore(arrays | self.arrays, self.used, SlotRows(slots, rows))

    def undo(self, before: TableBefore) -> None:
        """Go back to before the events that came last. Arrays that made room in between are left to themselves."""
        same = self.hashes is before.arrays["hashes"]
        arrays = dict(before.arrays)
        self.hashes, self.touched = arrays.pop("hashes"), arrays.pop("touched")
        self.changed, self.index, self.arrays = arrays.pop("changed"), arrays.pop("index"), arrays
        empty_index(self.index, self.hashes, before.used, self.used if same else len(self.hashes))
        self.used = before.used
        self._put(*before.rows)

    def _rows(self, numbers: np.ndarray) -> pa.RecordBatch:
        parts = {"hashes": self.hashes, "touched": self.touched, **self.arrays}
        return pa.record_batch({name: packed(array[numbers]) for name, array in parts.items()})

    def _unpacked(self, rows: pa.RecordBatch) -> dict[str, np.ndarray]:
        shapes = {"hashes": (np.uint64, ()), "touched": (np.int64, ()), **self._shapes}
        parts = {}
        for name, (kind, shape) in shapes.items():
            parts[name] = unpacked(rows.column(name), np.dtype(kind), shape)
        return parts


def packed(rows: np.ndarray) -> pa.Array:
    """Rows (N, …) as N fixed-size bytes."""
    count, width = len(rows), rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    data = pa.py_buffer(np.ascontiguousarray(rows).tobytes())
    return pa.Array.from_buffers(pa.binary(width), count, [None, data])


def unpacked(column: pa.Array, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The rows (N, *shape) of which `packed` made a column."""
    width = dtype.itemsize * int(np.prod(shape))
    if width == 0 or not len(column):
        return np.empty((len(column), *shape), dtype)
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return data.view(dtype).reshape(len(column), *shape).copy()
