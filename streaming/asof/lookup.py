"""As-of features of rows that are asked about, from a stored state that goes on being written.

The stored tables are as of the last tick of the stream, and the later events wait. For a row of a later tick those
before it are applied; they are undone where a row of an earlier tick is asked about, and before a newer state is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.asof.features import AsOfFiles, AsOfState, Events
from streaming.asof.key_table import KeyTable, SlotRows, TableBefore
from streaming.schema import RowSchema


class _Held(NamedTuple):
    """Names of the segments that a table was read from, and its slots."""

    names: list[str]
    slots: int


class _Newer(NamedTuple):
    """The next state of a table: a `whole` one, or changed rows of slots, of which `used` hold a key then."""

    held: _Held
    whole: KeyTable | None
    changed: list[SlotRows]
    used: int


class NewerState(NamedTuple):
    """A stored state, read as far as it differs from the one that was taken before."""

    tables: list[_Newer]
    waiting: Events


class AsOfLookup(AsOfState):
    """As-of features of a stored state. A row is answered as if it were the next impression: exactly as by `advance`,
    where the state holds every event before its tick. A row of an earlier tick than the state's is answered as of that.

    >>> from streaming.asof.features import NO_LABELS
    >>> from streaming.schema import RowSchema
    >>> schema = RowSchema(columns=[{"name": "user"}], tasks=[{"name": "ctr", "window_s": 60}],
    ...                    asof={"features": [{"name": "seen", "by": "user", "count": "shown"}]})
    >>> state, lookup = AsOfState(schema), AsOfLookup(schema)
    >>> _ = state.advance(pa.record_batch({"user": [7, 7, 7]}), np.array([100, 9_000, 25_000]), NO_LABELS)
    >>> lookup.take(lookup.read(state.state()))
    >>> users = pa.record_batch({"user": [7, 7, 8]})
    >>> lookup.look(users, np.array([25_000, 31_000, 31_000]))["seen"].to_pylist()
    [2.0, 3.0, 0.0]
    """

    def __init__(self, schema: RowSchema) -> None:
        super().__init__(schema)
        self._held = [_Held([], 0) for _ in self._key_tables]
        self._applied = 0  # so many of the waiting events are in the tables
        self._before: list[list[TableBefore]] = []

    def read(self, files: AsOfFiles) -> NewerState:
        """Read what differs from the state that was taken last, beside any `look`. Raises StreamingError."""
        waiting = self._stored_events(files)  # what is soonest deleted comes first
        newer = []
        for keys, held, segments, (slots, used) in zip(
            self._key_tables, self._held, files.segments[:-1], files.meta["tables"], strict=True
        ):
            names = [segment.name for segment in segments.segments]
            anew = names[:1] != held.names[:1] or slots != held.slots
            new = [segment for segment in segments.segments if anew or segment.name not in held.names]
            changed = [keys.read(segment, segments.folder) for segment in reversed(new)][::-1]
            whole = keys.empty() if anew else None
            if whole is not None:
                whole.take(changed, slots, used)
            newer.append(_Newer(_Held(names, slots), whole, changed, used))
        return NewerState(newer, waiting)

    def take(self, newer: NewerState) -> None:
        """Answer from this state from now on."""
        self._undo()
        for keys, (held, whole, changed, used) in zip(self._key_tables, newer.tables, strict=True):
            if whole is None:
                keys.take(changed, held.slots, used)
            else:
                keys.become(whole)
        self._held, self._waiting = [table.held for table in newer.tables], newer.waiting

    @property
    def until_ms(self) -> int | None:
        """Key time of the last event."""
        return int(self._waiting.time[-1]) if len(self._waiting.time) else None

    def look(self, rows: pa.RecordBatch, time: np.ndarray) -> dict[str, pa.Array]:
        """The columns of `AsOf.columns`, by name, for R rows that have `key_columns`, shown at `time` (R,), in ms."""
        if self.until_ms is not None:
            time = np.maximum(time, self.until_ms // self._asof.tick_ms * self._asof.tick_ms)
        in_order = np.argsort(time, kind="stable")
        until = np.searchsorted(self._waiting.time, self._ticks(time[in_order]))
        until = np.append(until, until[-1:])
        if not len(until):
            return {column.name: pa.nulls(0, column.arrow_type) for column in self._asof.columns}
        events = self._applying(int(until[0]), int(until[-1]))
        keys, first = self.keys_of(rows)[in_order], int(until[-1]) - len(events.time)
        columns = self._columns(events, keys, time[in_order], until - first, np.empty(0, np.int64))
        back = pa.array(np.argsort(in_order))
        return {column.name: values.take(back) for column, values in zip(self._asof.columns, columns, strict=True)}

    def _applying(self, first: int, stop: int) -> Events:
        """The waiting events before `stop` that are not applied yet; those from `first` on are not."""
        if first < self._applied:
            self._undo()
        events = self._waiting.at(slice(self._applied, stop))
        if len(events.time):
            at = [self._keys.index(table.by) for table in self._sums.values()]
            at += [self._keys.index(feature.by) for feature in self._lasts]
            tables = zip(self._key_tables, at, strict=True)
            self._before.append([keys.before(events.keys[:, place]) for keys, place in tables])
        self._applied = stop
        return events

    def _undo(self) -> None:
        for tables in reversed(self._before):
            for keys, before in zip(self._key_tables, tables, strict=True):
                keys.undo(before)
        self._before, self._applied = [], 0
