"""State of a stream's as-of features: rows go in in merge order, and come out with what was known of their keys.

    tick           an impression with key time k knows the events whose key time lies before k − k mod tick_s
    events         an impression when it is shown; a label when the later of its feedback and its impression has come; a
                   conditional label when its condition has come too
    rate           (labels + prior · parent) / (impressions + prior); parent: the rate of the key without its last
                   column, and of no key (labels + 1) / (impressions + 2). Of a conditional task: among its condition
    residual       (labels − Σ p) / (impressions + prior), p: the rate `against`, as each impression's row had it
    half_life_s    impressions count 2^(−age / half-life), their labels as much as they; counts of labels by own age

Everything is decided by key times, nothing by where chunks are cut: events are applied one by one in the order (key
time, impression, kind).

R rows, E events, K keys (the distinct `by` and all their beginnings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streaming.asof.key_table import KeyTable, packed, unpacked
from streaming.asof.loops import AGED, COUNT, NEVER, SHOWN, WEIGHTED, accumulate, remember
from streaming.hashing import hash64
from streaming.schema import AsOfFeature, RowSchema
from streaming.store.deltas import content_of
from streaming.store.numbered import NumberedValues
from streaming.store.segments import Segments, StoredSegment

NO_KEY = 0
ROOT_KEY = 1
EVENTS = "events"

By = tuple[str, ...]


class LabelEvents(NamedTuple):
    """Labels that have come, E rows.

    number  (E,) int64, of the impression
    task    (E,) int64, place of the task in the schema
    time    (E,) int64, key time at which it counts
    shown   (E,) int64, key time of the impression
    """

    number: np.ndarray
    task: np.ndarray
    time: np.ndarray
    shown: np.ndarray


NO_LABELS = LabelEvents(*(np.empty(0, np.int64) for _ in range(4)))


class Events(NamedTuple):
    """Impressions and labels, E events in the order in which they are applied.

    kind     (E,) int64: SHOWN, or 1 + place of the label's task
    keys     (E, K) uint64, NO_KEY where the row has none
    weights  (E, W) float64, of impressions: what the rate `against` predicted, for each residual
    items    (E, I) int64, of the impression: the columns that a `last` lists
    """

    time: np.ndarray
    number: np.ndarray
    kind: np.ndarray
    shown: np.ndarray
    keys: np.ndarray
    weights: np.ndarray
    items: np.ndarray

    def at(self, places: np.ndarray | slice) -> Events:
        return Events(*(values[places] for values in self))

    def with_more(self, *others: Events) -> Events:
        return Events(*map(np.concatenate, zip(self, *others, strict=True)))


class Sum(NamedTuple):
    """An accumulator of each key: events of a kind, halved every `half_ms` (0: never), each counted by `mode`."""

    kind: int
    half_ms: float
    mode: int


@dataclass
class SumTable:
    """Sums of each key of `by`."""

    by: By
    weight: int | None = None
    sums: list[Sum] = field(default_factory=list)
    keys: KeyTable = field(init=False)

    def place(self, wanted: Sum) -> int:
        """Place of a sum, which is added where there is none such."""
        if wanted not in self.sums:
            self.sums.append(wanted)
        return self.sums.index(wanted)


class KeySums(NamedTuple):
    """Sums of R rows' keys, (R, V), and the times of their last events."""

    value: np.ndarray
    time: np.ndarray


class AsOfState:
    """All as-of features of a stream.

    >>> schema = RowSchema(columns=[{"name": "user"}], tasks=[{"name": "ctr", "window_s": 60}],
    ...                    asof={"features": [{"name": "seen", "by": "user", "count": "shown"}]})
    >>> state = AsOfState(schema)
    >>> rows = pa.record_batch({"user": [7, 7, 7, 8]})
    >>> state.advance(rows, np.array([100, 9_000, 25_000, 25_000]), NO_LABELS)[0].to_pylist()
    [0.0, 0.0, 2.0, 0.0]
    """

    _waiting: Events

    def __init__(self, schema: RowSchema, first: int = 0) -> None:
        """`first`: number of the next impression."""
        self._schema, self._asof = schema, schema.asof
        self._tasks = {task.name: place for place, task in enumerate(schema.tasks)}
        self._keys: list[By] = [()]
        self._sums: dict[tuple[By, int | None], SumTable] = {}
        self._residuals = [f for f in self._asof.features if f.kind == "residual"]
        self._lasts = [f for f in self._asof.features if f.kind == "last"]
        listed = [column.name for column in schema.columns]
        self._items = list(dict.fromkeys(item for f in self._lasts for item in f.of if item in listed))
        for feature in self._asof.features:
            self._declare(feature)
        for table in self._sums.values():
            shapes = {"values": (np.float64, (len(table.sums),)), "times": (np.int64, (len(table.sums),))}
            table.keys = self._key_table(shapes)
        self._rings = {f.name: self._ring(f) for f in self._lasts}
        self._start_at(first)

    def _key_table(self, shapes: Mapping[str, tuple[type, tuple[int, ...]]]) -> KeyTable:
        return KeyTable(shapes, self._asof.max_keys, self._asof.expire_ms)

    def _ring(self, feature: AsOfFeature) -> KeyTable:
        most = (feature.last or 0,)
        items = (*most, len(self._items))
        shapes = {"numbers": (np.int64, most), "times": (np.int64, most), "labels": (np.int64, most)}
        return self._key_table({"count": (np.int64, ()), **shapes, "items": (np.int64, items)})

    def _declare(self, feature: AsOfFeature) -> None:
        """Add the tables and sums that a feature reads."""
        for length in range(len(feature.by) + 1):
            if (by := feature.by[:length]) not in self._keys:
                self._keys.append(by)
        if feature.kind == "rate":
            for length in range(len(feature.by) + 1):
                self._trials_and_labels(feature, self._table(feature.by[:length]))
        elif feature.kind == "residual":
            table = self._table(feature.by, self._residuals.index(feature))
            self._trials_and_labels(feature, table)
            table.place(self._expected(feature))
        elif feature.kind in ("count", "since"):
            self._table(feature.by).place(self._counted(feature))

    def _table(self, by: By, weight: int | None = None) -> SumTable:
        return self._sums.setdefault((by, weight), SumTable(by, weight))

    def _kind(self, event: str) -> int:
        return SHOWN if event == "shown" else 1 + self._tasks[event]

    def _counted(self, feature: AsOfFeature) -> Sum:
        return Sum(self._kind(feature.event), _half_ms(feature), COUNT)

    def _expected(self, feature: AsOfFeature) -> Sum:
        return Sum(SHOWN, _half_ms(feature), WEIGHTED)

    def _trials_and_labels(self, feature: AsOfFeature, table: SumTable) -> tuple[int, int]:
        """Places of a rate's two sums: of impressions, or of labels of its condition; and of labels."""
        given = self._schema.given.get(feature.event)
        trials = Sum(SHOWN, _half_ms(feature), COUNT) if given is None else self._labels(feature, given)
        return table.place(trials), table.place(self._labels(feature, feature.event))

    def _labels(self, feature: AsOfFeature, task: str) -> Sum:
        return Sum(self._kind(task), _half_ms(feature), AGED)

    # Rows go in

    def advance(self, rows: pa.RecordBatch, key_time: np.ndarray, labels: LabelEvents) -> list[pa.Array]:
        """Take the next impressions in merge order, and the labels that came with or after them; returns the columns of
        `AsOf.columns`.

        Every event before the last of these key times has been taken with these, or before.
        """
        keys, items = self._keys_of(rows), self._items_of(rows)
        number = self._append(keys, items)
        weights = np.zeros((len(number), len(self._residuals)))
        shown = Events(key_time, number, np.full(len(number), SHOWN), key_time, keys, weights, items)
        came = self._events(labels, self._of_rows(self._row_keys, labels.number, np.uint64))
        if self._row_items:
            came.items[:] = self._of_rows(self._row_items, labels.number, np.int64)
        events = self._waiting.with_more(shown, came)
        in_order = np.lexsort((events.kind, events.number, events.time))
        place = np.argsort(in_order)[len(self._waiting.time) :][: rows.num_rows]
        events = events.at(in_order)
        now = max((int(times.max()) for times in (key_time, labels.time) if len(times)), default=0)
        until = np.searchsorted(events.time, self._ticks(np.append(key_time, now)))
        columns = self._columns(events, keys, key_time, until, place)
        self._waiting = events.at(slice(until[-1], None))
        return columns

    def _ticks(self, time: np.ndarray) -> np.ndarray:
        """The last tick before each time, in ms."""
        return time // self._asof.tick_ms * self._asof.tick_ms

    def _columns(
        self, events: Events, keys: np.ndarray, key_time: np.ndarray, until: np.ndarray, place: np.ndarray
    ) -> list[pa.Array]:
        """The columns of `AsOf.columns` for R rows by key time, as of `until` (R + 1,) of the events, the last of which
        are applied too. `place`: which events the rows are, or empty."""
        lookups = _Lookups(keys, self._ticks(key_time), until)
        sums = {
            by: self._accumulated(table, events, lookups)
            for (by, weight), table in self._sums.items()
            if weight is None
        }
        columns: dict[str, np.ndarray | pa.Array] = {}
        rates: dict[str, np.ndarray] = {}
        for feature in self._asof.features:
            if feature.kind == "rate":
                rates[feature.name], trials = self._rate(feature, sums)
                columns |= {feature.name: rates[feature.name], f"{feature.name}_shown": trials}
            elif feature.kind in ("count", "since"):
                at = self._table(feature.by).place(self._counted(feature))
                value, last = sums[feature.by].value[:, at], sums[feature.by].time[:, at]
                since = pa.array(((lookups.tick - last) / 1000).astype(np.float32), mask=last == NEVER)
                columns[feature.name] = value if feature.kind == "count" else since
        for weight, feature in enumerate(self._residuals):
            if len(place):
                events.weights[place, weight] = rates[str(feature.against)]
            table = self._table(feature.by, weight)
            trials_at, labels_at = self._trials_and_labels(feature, table)
            value = self._accumulated(table, events, lookups).value
            residual = (value[:, labels_at] - value[:, table.place(self._expected(feature))]) / (
                value[:, trials_at] + feature.prior
            )
            columns |= {feature.name: residual, f"{feature.name}_shown": value[:, trials_at]}
        for feature in self._lasts:
            columns |= self._last(feature, events, lookups)
        return [_typed(columns[column.name], column.arrow_type) for column in self._asof.columns]

    def _keys_of(self, rows: pa.RecordBatch) -> np.ndarray:
        """Hashes of the rows' keys, (R, K) uint64."""
        keys = np.full((rows.num_rows, len(self._keys)), ROOT_KEY, np.uint64)
        hashes = {name: _hashes(rows.column(name)) for name in dict.fromkeys(name for by in self._keys for name in by)}
        for place, by in enumerate(self._keys):
            for depth, name in enumerate(by):
                keys[:, place] = hashes[name] if depth == 0 else _crossed(keys[:, place], hashes[name])
        return keys

    def _items_of(self, rows: pa.RecordBatch) -> np.ndarray:
        """Columns that a `last` lists, (R, I) int64; 0 for null."""
        items = np.zeros((rows.num_rows, len(self._items)), np.int64)
        for at, name in enumerate(self._items):
            items[:, at] = rows.column(name).fill_null(0).to_numpy(zero_copy_only=False)
        return items

    @property
    def reads(self) -> list[str]:
        """Columns of impressions that the features are made of."""
        return list(dict.fromkeys([*(name for by in self._keys for name in by), *self._items]))

    def _append(self, keys: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Number the next rows, and keep what their labels will need; returns their numbers."""
        for ledgers, values in ((self._row_keys, keys), (self._row_items, items)):
            for place, ledger in enumerate(ledgers):
                ledger.append(values[:, place])
        self._next += len(keys)
        return np.arange(self._next - len(keys), self._next)

    @staticmethod
    def _of_rows(ledgers: Sequence[NumberedValues], numbers: np.ndarray, kind: type) -> np.ndarray:
        """Values of rows, (E, columns)."""
        return np.array([ledger[numbers] for ledger in ledgers], kind).reshape(len(ledgers), len(numbers)).T

    def _events(self, labels: LabelEvents, keys: np.ndarray) -> Events:
        count = len(labels.number)
        weights, items = np.zeros((count, len(self._residuals))), np.zeros((count, len(self._items)), np.int64)
        return Events(labels.time, labels.number, 1 + labels.task, labels.shown, keys, weights, items)

    # What their keys hold

    def _accumulated(self, table: SumTable, events: Events, lookups: _Lookups) -> KeySums:
        keys, count, width = table.keys, len(lookups.tick), len(table.sums)
        at = self._keys.index(table.by)
        kinds, halves, modes = (np.array(each) for each in zip(*table.sums, strict=True))
        weights = (
            np.zeros(len(events.time))
            if table.weight is None
            else np.ascontiguousarray(events.weights[:, table.weight])
        )
        event_key, row_key = np.ascontiguousarray(events.keys[:, at]), np.ascontiguousarray(lookups.keys[:, at])
        sums = KeySums(np.empty((count, width)), np.empty((count, width), np.int64))

        def loop(event: int, row: int) -> tuple[int, int, int]:
            return accumulate(
                keys.index, keys.hashes, keys.touched, keys.used, keys.changed, keys.arrays["values"],
                keys.arrays["times"], kinds, halves.astype(float), modes, events.time, events.kind, event_key,
                events.shown, weights, row_key, lookups.tick, lookups.until, keys.expire_ms, event, row, *sums,
            )  # fmt: skip

        _with_room(keys, loop, events, lookups)
        return sums

    def _rate(self, feature: AsOfFeature, sums: Mapping[By, KeySums]) -> tuple[np.ndarray, np.ndarray]:
        """The rate of R rows, and how much it is of; float64."""
        rate = trials = np.empty(0)
        for length in range(len(feature.by) + 1):
            table = self._table(feature.by[:length])
            trials_at, labels_at = self._trials_and_labels(feature, table)
            trials, labels = (sums[table.by].value[:, at] for at in (trials_at, labels_at))
            labels = np.minimum(labels, trials)  # a key that was forgotten may get labels of before
            rate = (labels + feature.prior * rate) / (trials + feature.prior) if length else (labels + 1) / (trials + 2)
        return rate, trials

    def _last(self, feature: AsOfFeature, events: Events, lookups: _Lookups) -> dict[str, pa.Array]:
        keys, rows, most = self._rings[feature.name], len(lookups.tick), feature.last or 0
        entering = self._kind(feature.event)
        at = self._keys.index(feature.by)
        event_key, row_key = np.ascontiguousarray(events.keys[:, at]), np.ascontiguousarray(lookups.keys[:, at])
        count = np.zeros(rows, np.int64)
        times, labels = np.zeros((rows, most), np.int64), np.zeros((rows, most), np.int64)
        items = np.zeros((rows, most, len(self._items)), np.int64)

        def loop(event: int, row: int) -> tuple[int, int, int]:
            ring = [keys.arrays[name] for name in ("count", "numbers", "times", "items", "labels")]
            return remember(
                keys.index, keys.hashes, keys.touched, keys.used, keys.changed, *ring, entering, events.time,
                events.kind, event_key, events.number, events.items, row_key, lookups.tick, lookups.until,
                keys.expire_ms, event, row, count, times, items, labels,
            )  # fmt: skip

        _with_room(keys, loop, events, lookups)
        listed = np.arange(most) < count[:, None]
        offsets = pa.array(np.append(0, np.cumsum(count)).astype(np.int32))
        values: dict[str, np.ndarray] = {"gap_s": ((lookups.tick[:, None] - times) / 1000).astype(np.float32)}
        values |= {name: items[:, :, place] for place, name in enumerate(self._items)}
        values |= {name: labels >> place & 1 for name, place in self._tasks.items() if name not in values}
        return {
            f"{feature.name}_{item}": pa.ListArray.from_arrays(offsets, pa.array(values[item][listed]))
            for item in feature.of
        }

    # What survives

    def drop(self, before: int) -> None:
        """Let go of impressions below number `before`: no label comes for them any more."""
        for values in (*self._row_keys, *self._row_items):
            values.drop(before)

    def set_back(self, to_ms: int, first: int) -> None:
        """Move event time back to `to_ms`, and forget what was shown later; the next impression has number `first`."""
        self._start_at(first)
        for keys in self._key_tables:
            keys.forget_after(to_ms)

    def state(self) -> AsOfFiles:
        """Complete state, to be restored exactly; the keys of impressions are made of their rows again."""
        rows = pa.record_batch({name: packed(values) for name, values in self._waiting._asdict().items()})
        waiting = Segments([StoredSegment.of(EVENTS, 0, rows, content_of(rows))], None)
        sizes = [[len(keys.hashes), keys.used] for keys in self._key_tables]
        return AsOfFiles([*(keys.state() for keys in self._key_tables), waiting], {"tables": sizes})

    def stored(self, files: AsOfFiles, folder: Path) -> None:
        """`files`, which were made of this state, lie in `folder` now."""
        for keys, segments in zip(self._key_tables, files.segments[:-1], strict=True):
            keys.stored(segments, folder)

    def restore(self, files: AsOfFiles, first: int, waits: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Continue from `files`: impressions from `first` on are numbered, those below `waits` have all their labels,
        and `rows` are the others. Raises StreamingError."""
        for keys, segments, (slots, used) in zip(
            self._key_tables, files.segments[:-1], files.meta["tables"], strict=True
        ):
            keys.restore(segments, slots, used)
        self._start_at(first)
        gone = waits - first
        self._append(np.full((gone, len(self._keys)), NO_KEY, np.uint64), np.zeros((gone, len(self._items)), np.int64))
        for batch in rows:
            self._append(self._keys_of(batch), self._items_of(batch))
        self._waiting = self._stored_events(files)

    def _stored_events(self, files: AsOfFiles) -> Events:
        (waiting,), folder = files.segments[-1]
        stored = waiting.read(folder)
        return Events(
            *(unpacked(stored[name], like.dtype, like.shape[1:]) for name, like in self._waiting._asdict().items())
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        tables = sum(keys.nbytes for keys in self._key_tables)
        rows = sum(values.nbytes for values in (*self._row_keys, *self._row_items))
        return tables + rows + sum(values.nbytes for values in self._waiting)

    @property
    def bytes_per_key(self) -> dict[str, int]:
        """Bytes of memory of a key, by the columns it is made of."""
        named = [("+".join(table.by) or "all", table.keys) for table in self._sums.values()]
        named += [("+".join(f.by), self._rings[f.name]) for f in self._lasts]
        return {name: sum(keys.bytes_per_key for of, keys in named if of == name) for name in dict(named)}

    @property
    def _key_tables(self) -> list[KeyTable]:
        return [*(table.keys for table in self._sums.values()), *self._rings.values()]

    def _start_at(self, first: int) -> None:
        self._next = first
        self._row_keys = [NumberedValues(np.uint64, first) for _ in self._keys]
        keep_items = any(feature.having is not None for feature in self._lasts)
        self._row_items = [NumberedValues(np.int64, first) for _ in self._items if keep_items]
        self._waiting = self._events(NO_LABELS, np.empty((0, len(self._keys)), np.uint64))


class AsOfFiles(NamedTuple):
    """Segments of every table and of the events that wait for their tick; `meta`, JSON: how large the tables are."""

    segments: Sequence[Segments]
    meta: dict[str, Any]


class _Lookups(NamedTuple):
    """R rows: their keys (R, K), the tick of each (R,), and the number of events before each, and before the last tick
    that is complete, (R + 1,)."""

    keys: np.ndarray
    tick: np.ndarray
    until: np.ndarray


Loop = Callable[[int, int], tuple[int, int, int]]


def _with_room(keys: KeyTable, loop: Loop, events: Events, lookups: _Lookups) -> None:
    """Go through events and rows, and make room where a new key finds none."""
    event, row, keys.used = loop(0, 0)
    while row < len(lookups.tick) or event < lookups.until[-1]:
        keys.make_room(int(events.time[event]))
        event, row, keys.used = loop(event, row)


def _half_ms(feature: AsOfFeature) -> float:
    return 1000 * (feature.half_life_s or 0.0)


def _hashes(column: pa.Array) -> np.ndarray:
    """Hashes of keys, (R,) uint64; NO_KEY where null."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    hashes = (
        hash64(column.fill_null(0 if pa.types.is_integer(column.type) else ""))
        if len(column)
        else np.empty(0, np.uint64)
    )
    return np.where(missing, np.uint64(NO_KEY), np.maximum(hashes, np.uint64(ROOT_KEY)))


def _crossed(keys: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Hashes of keys with one more column, (R,) uint64; NO_KEY where either has none."""
    both = keys * np.uint64(0x9E3779B97F4A7C15) + hashes
    crossed = np.maximum(hash64(pa.array(both.view(np.int64))), np.uint64(ROOT_KEY))
    return np.where((keys == NO_KEY) | (hashes == NO_KEY), np.uint64(NO_KEY), crossed)


def _typed(values: np.ndarray | pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values.astype(kind.to_pandas_dtype()))
