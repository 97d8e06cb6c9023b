"""State of a stream's as-of features: rows go in in merge order, and come out with what was known of their keys.

    tick           an impression with key time k knows the events whose key time lies before k − k mod tick_s
    events         an impression when it is shown; a label when the later of its feedback and its impression has come; a
                   conditional label when its condition has come too
    rate           (labels + prior · parent) / (impressions + prior); parent: the rate of the key without its last
                   column, and of no key (labels + 1) / (impressions + 2). Of a conditional task: among its condition
    residual       (labels − Σ p) / (impressions + prior), p: the rate `against`, as each impression's row had it
    half_life_s    impressions count 2^(−age / half-life), their labels as much as they; counts of labels by own age

Everything is decided by key times, nothing by where chunks are cut: events are applied one by one in the order (key
time, stream, impression, kind).

R rows, E events, K keys (the distinct `by` and all their beginnings).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.asof.forgotten import AT_THE_END, ForgottenId, RemovedCounts
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
STREAM_SHIFT = 44
"""Bits of an event's number that count impressions; the stream stands above them."""

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

    def as_batch(self) -> pa.RecordBatch:
        """The events as Arrow rows."""
        return pa.record_batch({name: packed(values) for name, values in self._asdict().items()})

    @classmethod
    def of(cls, batch: pa.RecordBatch, like: Events) -> Events:
        """The events of `as_batch`, whose columns have the types and widths of `like`."""
        columns = like._asdict().items()
        return cls(*(unpacked(batch[name], each.dtype, each.shape[1:]) for name, each in columns))

    def with_more(self, *others: Events) -> Events:
        return Events(*map(np.concatenate, zip(self, *others, strict=True)))


class NewEvents(NamedTuple):
    """Events of impressions that come next, and of labels that came with or after them.

    The first `shown` events are of the impressions, in the order of their rows: R of them, with `key_time` (R,) and
    `keys` (R, K).
    """

    events: Events
    shown: int

    @property
    def key_time(self) -> np.ndarray:
        return self.events.time[: self.shown]

    @property
    def keys(self) -> np.ndarray:
        return self.events.keys[: self.shown]


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

    def __init__(self, schema: RowSchema, first: int = 0, *, streams: int = 1) -> None:
        """`first`: number of the next impression; `streams`: how many number their impressions by themselves."""
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
        self._waiting = self.no_events
        self.streams = [ImpressionKeys(self, stream, first) for stream in range(streams)]

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
        new = self.streams[0].take(rows, key_time, labels)
        now = max((int(times.max()) for times in (key_time, labels.time) if len(times)), default=0)
        return finished(self.steps([new], [], now))[0]

    def steps(self, own: Sequence[NewEvents], others: Sequence[NewEvents], now: int) -> Columns:
        """Take the next events of all streams, none of them after the tick of `now`; gives the columns of the rows of
        each of `own`. On the way it yields what `others` need of these rows, (R, W), and is sent the same of theirs."""
        new = [*own, *others]
        before = np.cumsum([len(self._waiting.time), *(len(each.events.time) for each in new)])
        events = self._waiting.with_more(*(each.events for each in new))
        in_order = np.lexsort((events.kind, events.number, events.time))
        place = np.argsort(in_order)
        shown = [place[at : at + each.shown] for at, each in zip(before, new, strict=False)]
        events = events.at(in_order)
        key_time, keys = (np.concatenate(each) for each in zip(*((e.key_time, e.keys) for e in own), strict=True))
        by_time = np.argsort(key_time, kind="stable")
        until = np.searchsorted(events.time, self._ticks(np.append(key_time[by_time], now)))
        at = np.concatenate(shown[: len(own)])[by_time]
        theirs = np.concatenate([np.empty(0, np.int64), *shown[len(own) :]])
        back = np.argsort(by_time)
        columns = yield from self._steps(events, keys[by_time], key_time[by_time], until, at, back, theirs)
        self._waiting = events.at(slice(until[-1], None))
        if len(own) == 1:
            return [columns]
        sizes = np.cumsum([0, *(each.shown for each in own)])
        columns = [values.take(pa.array(back)) for values in columns]
        return [[c.slice(a, b - a) for c in columns] for a, b in pairwise(sizes)]

    def _ticks(self, time: np.ndarray) -> np.ndarray:
        """The last tick before each time, in ms."""
        return time // self._asof.tick_ms * self._asof.tick_ms

    def _columns(
        self, events: Events, keys: np.ndarray, key_time: np.ndarray, until: np.ndarray, place: np.ndarray
    ) -> list[pa.Array]:
        """The columns of `AsOf.columns` for R rows by key time, as of `until` (R + 1,) of the events, the last of which
        are applied too. `place`: which events the rows are, or empty."""
        nobody = np.empty(0, np.int64)
        return finished(self._steps(events, keys, key_time, until, place, np.arange(len(key_time)), nobody))

    def _steps(
        self,
        events: Events,
        keys: np.ndarray,
        key_time: np.ndarray,
        until: np.ndarray,
        place: np.ndarray,
        back: np.ndarray,
        others: np.ndarray,
    ) -> Generator[np.ndarray, np.ndarray, list[pa.Array]]:
        """`_columns`; `others`: which events are impressions of others, whose weights are sent to it. `back`: the order
        in which others get those of these rows."""
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
        against = [rates[str(feature.against)] for feature in self._residuals]
        if len(place):
            for weight, rate in enumerate(against):
                events.weights[place, weight] = rate
        if self._residuals:
            theirs = yield np.stack(against, axis=1)[back]
            if len(others):
                events.weights[others] = theirs
        for weight, feature in enumerate(self._residuals):
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

    def keys_of(self, rows: pa.RecordBatch) -> np.ndarray:
        """Hashes of the rows' keys, (R, K) uint64."""
        keys = np.full((rows.num_rows, len(self._keys)), ROOT_KEY, np.uint64)
        hashes = {name: _hashes(rows.column(name)) for name in dict.fromkeys(name for by in self._keys for name in by)}
        for place, by in enumerate(self._keys):
            for depth, name in enumerate(by):
                keys[:, place] = hashes[name] if depth == 0 else _crossed(keys[:, place], hashes[name])
        return keys

    def items_of(self, rows: pa.RecordBatch) -> np.ndarray:
        """Columns that a `last` lists, (R, I) int64; 0 for null."""
        items = np.zeros((rows.num_rows, len(self._items)), np.int64)
        for at, name in enumerate(self._items):
            items[:, at] = rows.column(name).fill_null(0).to_numpy(zero_copy_only=False)
        return items

    @property
    def reads(self) -> list[str]:
        """Columns of impressions that the features are made of."""
        return list(dict.fromkeys([*(name for by in self._keys for name in by), *self._items]))

    @property
    def widths(self) -> tuple[int, int, int]:
        """Keys, weights and items of an event."""
        return len(self._keys), len(self._residuals), len(self._items)

    @property
    def keeps_items(self) -> bool:
        """True if an impression's items are needed when its label comes."""
        return any(feature.having is not None for feature in self._lasts)

    @property
    def no_events(self) -> Events:
        K, W, columns = self.widths
        nothing = np.empty(0, np.int64)
        keys, weights, items = np.empty((0, K), np.uint64), np.empty((0, W)), np.empty((0, columns), np.int64)
        return Events(nothing, nothing, nothing, nothing, keys, weights, items)

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
        self.streams[0].drop(before)

    def forget(self, keys: np.ndarray, columns: Collection[str], items: Mapping[str, Sequence[int]]) -> RemovedCounts:
        """Forget `keys` (N, K) of those `by` that have one of these columns; and `items`, values by column, in
        the lists of all other keys. Sums of other keys keep what they counted."""
        of, waiting, entries = self._with(columns), self._waiting, 0
        held = sum(table.used for table in self._key_tables)
        for place, by in enumerate(self._keys):
            if of[place]:
                tables = [table.keys for table in self._sums.values() if table.by == by]
                tables += [self._rings[feature.name] for feature in self._lasts if feature.by == by]
                for table in tables:
                    table.forget(keys[:, place])
                waiting.keys[np.isin(waiting.keys[:, place], keys[:, place]), place] = NO_KEY
        gone = held - sum(table.used for table in self._key_tables)
        for name, values in items.items():
            if name in self._items:
                at = self._items.index(name)
                waiting.items[np.isin(waiting.items[:, at], values), at] = 0
                for ring in self._rings.values():
                    listed = ring.arrays["items"][..., at]
                    found = np.isin(listed, values)
                    listed[found] = 0
                    ring.changed[: ring.used][found[: ring.used].any(axis=1)] = 1
                    entries += int(found[: ring.used].sum())
        return RemovedCounts(gone, entries)

    def forget_id(self, id: ForgottenId, keys: np.ndarray) -> RemovedCounts:
        """Forget an id, once all rows before `id.at_ms` have been taken and none of later; `keys`: `keys_with`.

        Tables are brought to the tick of that time first: so what they hold depends on it alone, not on chunks."""
        if id.at_ms != AT_THE_END:
            finished(self.steps([NewEvents(self.no_events, 0)], [], id.at_ms))
        items = {} if isinstance(id.value, str) or id.value == 0 else {id.column: [id.value]}
        return self.forget(keys, [id.column], items)

    def keys_with(self, id: ForgottenId, rows: Iterable[pa.RecordBatch] = ()) -> np.ndarray:
        """Keys (N, K) that an id is, or is a part of in rows that it stands in; NO_KEY for others."""
        alone = pa.array([id.value])
        found = [np.full((1, len(self._keys)), NO_KEY, np.uint64)]
        found[0][0, [by == (id.column,) for by in self._keys]] = _hashes(alone)
        for batch in rows:
            keys = self.keys_of(batch)
            keys[:, ~np.array(self._with([id.column]))] = NO_KEY
            found.append(np.unique(keys, axis=0))
        return np.unique(np.concatenate(found), axis=0)

    def ledgers_with(
        self, column: str, keys: Sequence[NumberedValues], items: Sequence[NumberedValues]
    ) -> list[NumberedValues]:
        """The ledgers among these of keys that are made of a column, and of the item that it is."""
        made = [ledger for ledger, of in zip(keys, self._with([column]), strict=True) if of]
        return made + [ledger for ledger, name in zip(items, self._items, strict=bool(items)) if name == column]

    def _with(self, columns: Collection[str]) -> list[bool]:
        """By key, True if it is made of one of these columns."""
        return [bool(set(by) & set(columns)) for by in self._keys]

    def set_back(self, to_ms: int) -> None:
        """Move event time back to `to_ms`, and forget what was shown later."""
        self._waiting = self.no_events
        for keys in self._key_tables:
            keys.forget_after(to_ms)

    def renumber(self, before: np.ndarray, now: np.ndarray) -> None:
        """Give impressions of `before`, (I,) ascending, the numbers `now` (`global_numbers`)."""

        def new(numbers: np.ndarray) -> np.ndarray:
            if not len(before):
                return numbers
            place = np.minimum(np.searchsorted(before, numbers), len(before) - 1)
            return np.where(before[place] == numbers, now[place], numbers)

        self._waiting = self._waiting._replace(number=new(self._waiting.number))
        for ring in self._rings.values():
            ring.map_values("numbers", new)

    def state(self) -> AsOfFiles:
        """Complete state, to be restored exactly; the keys of impressions are made of their rows again."""
        rows = self._waiting.as_batch()
        waiting = Segments([StoredSegment.of(EVENTS, 0, rows, content_of(rows))], None)
        sizes = [[len(keys.hashes), keys.used] for keys in self._key_tables]
        return AsOfFiles([*(keys.state() for keys in self._key_tables), waiting], {"tables": sizes})

    def stored(self, files: AsOfFiles, folder: Path) -> None:
        """`files`, which were made of this state, lie in `folder` now."""
        for keys, segments in zip(self._key_tables, files.segments[:-1], strict=True):
            keys.stored(segments, folder)

    def restore(self, files: AsOfFiles) -> None:
        """Continue from `files`; the keys of impressions are restored by themselves. Raises StreamingError."""
        for keys, segments, (slots, used) in zip(
            self._key_tables, files.segments[:-1], files.meta["tables"], strict=True
        ):
            keys.restore(segments, slots, used)
        self._waiting = self._stored_events(files)

    def _stored_events(self, files: AsOfFiles) -> Events:
        (waiting,), folder = files.segments[-1]
        return Events.of(waiting.read(folder), self.no_events)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        tables = sum(keys.nbytes for keys in self._key_tables)
        rows = sum(keys.nbytes for keys in self.streams)
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


def global_numbers(stream: np.ndarray | int, number: np.ndarray) -> np.ndarray:
    """Numbers of impressions among those of all streams, from the stream of each and its number there."""
    return number + (np.int64(stream) << STREAM_SHIFT)


class ImpressionKeys:
    """Keys of a stream's impressions, by number, for as long as labels may come for them.

    `stream`: its place among those that number their impressions by themselves; events of one time are applied stream
    by stream.
    """

    def __init__(self, state: AsOfState, stream: int, first: int) -> None:
        self._state, self._stream = state, stream
        self.start_at(first)

    def start_at(self, first: int) -> None:
        """Begin anew; the next impression has number `first`."""
        K, _, columns = self._state.widths
        self._next = first
        self._keys = [NumberedValues(np.uint64, first) for _ in range(K)]
        self._items = [NumberedValues(np.int64, first) for _ in range(columns) if self._state.keeps_items]
        self._awaited: dict[ForgottenId, list[tuple[np.ndarray, np.ndarray]]] = {}

    @property
    def reads(self) -> list[str]:
        """Columns of impressions that the features are made of."""
        return self._state.reads

    def take(self, rows: pa.RecordBatch, key_time: np.ndarray, labels: LabelEvents) -> NewEvents:
        """Number the next impressions, and make events of them and of labels that came with or after them."""
        keys, items = self._state.keys_of(rows), self._state.items_of(rows)
        number = self._append(keys, items)
        for id in self._awaited:
            self._note(id, rows, number)
        _, W, columns = self._state.widths
        kind = np.full(len(number), SHOWN)
        shown = Events(key_time, self._unique(number), kind, key_time, keys, np.zeros((len(number), W)), items)
        count = len(labels.number)
        came = Events(
            labels.time,
            self._unique(labels.number),
            1 + labels.task,
            labels.shown,
            _of_rows(self._keys, labels.number, np.uint64),
            np.zeros((count, W)),
            _of_rows(self._items, labels.number, np.int64) if self._items else np.zeros((count, columns), np.int64),
        )
        return NewEvents(shown.with_more(came), rows.num_rows)

    def _unique(self, number: np.ndarray) -> np.ndarray:
        return global_numbers(self._stream, number)

    def _append(self, keys: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Number the next rows, and keep what their labels will need; returns their numbers."""
        for ledgers, values in ((self._keys, keys), (self._items, items)):
            for place, ledger in enumerate(ledgers):
                ledger.append(values[:, place])
        self._next += len(keys)
        return np.arange(self._next - len(keys), self._next)

    def expect(self, id: ForgottenId, waiting: Iterable[tuple[pa.RecordBatch, np.ndarray]]) -> None:
        """Note in which impressions an id stands that is to be forgotten: of those that come, and of those that wait
        for labels, rows with their numbers."""
        self._awaited[id] = []
        for rows, number in waiting:
            self._note(id, rows, number)

    def _note(self, id: ForgottenId, rows: pa.RecordBatch, number: np.ndarray) -> None:
        has = pc.fill_null(pc.equal(rows[id.column], pa.scalar(id.value)), False)
        if pc.any(has).as_py():
            keys = self._state.keys_with(id, [rows.filter(has)])
            self._awaited[id].append((keys, number[has.to_numpy(zero_copy_only=False)]))

    def found(self, id: ForgottenId) -> np.ndarray:
        """Keys (N, K) with the id of impressions that were noted."""
        return np.concatenate([self._state.keys_with(id), *(keys for keys, _ in self._awaited[id])])

    def forget(self, id: ForgottenId) -> None:
        """Let labels of the impressions that were noted count for no key that has the id, nor list it."""
        for _, number in self._awaited.pop(id):
            number = number[number >= self._keys[0].first]
            for ledger in self._state.ledgers_with(id.column, self._keys, self._items):
                ledger.put(number, NO_KEY)

    def drop(self, before: int) -> None:
        """Let go of impressions below number `before`: no label comes for them any more."""
        for values in (*self._keys, *self._items):
            values.drop(before)

    def restore(self, first: int, waits: int, rows: Iterable[pa.RecordBatch]) -> None:
        """Impressions from `first` on are numbered, those below `waits` have all their labels, and `rows` are the
        others."""
        self.start_at(first)
        K, _, columns = self._state.widths
        self._append(np.full((waits - first, K), NO_KEY, np.uint64), np.zeros((waits - first, columns), np.int64))
        for batch in rows:
            self._append(self._state.keys_of(batch), self._state.items_of(batch))

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in (*self._keys, *self._items))


def _of_rows(ledgers: Sequence[NumberedValues], numbers: np.ndarray, kind: type) -> np.ndarray:
    """Values of rows, (E, columns)."""
    return np.array([ledger[numbers] for ledger in ledgers], kind).reshape(len(ledgers), len(numbers)).T


Columns = Generator[np.ndarray, np.ndarray, list[list[pa.Array]]]
"""Steps that end with the columns of `AsOf.columns`, for each stream."""

T = TypeVar("T")


def finished(steps: Generator[np.ndarray, np.ndarray, T]) -> T:
    """The end of steps that need nothing of others."""
    try:
        next(steps)
        while True:
            steps.send(np.empty((0, 0)))
    except StopIteration as end:
        result: T = end.value
        return result


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
