"""As-of features, one event at a time, from a dictionary: slow, obvious, and compared with the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.hashing import hash64
from streaming.schema import AsOfFeature, RowSchema


class Shown(NamedTuple):
    """An impression: its key time, the values of its columns, and when the label of each task came, if it did."""

    key: int
    values: dict
    labels: dict[str, int]


class Forgotten(NamedTuple):
    """A value of a column that is forgotten, before the first row of key time `at` or later."""

    at: int
    column: str
    value: int | str


class Key:
    """What is remembered of a key for one feature."""

    def __init__(self) -> None:
        self.touched = -(2**62)
        self.sums: dict[str, tuple[float, int]] = {}
        self.last: list[list] = []  # [number, time, values, labels]


class Remembered:
    """The keys of one feature at one depth of its `by`."""

    def __init__(self, schema: RowSchema, feature: AsOfFeature, depth: int) -> None:
        self.feature, self.columns = feature, feature.by[:depth]
        self.most, self.expire = schema.asof.max_keys, schema.asof.expire_ms
        self.keys: dict[tuple, Key] = {}

    def of(self, values: dict) -> tuple | None:
        key = tuple(values[name] for name in self.columns)
        return None if any(value is None for value in key) else key

    def known(self, values: dict, now: int) -> Key | None:
        found = self.keys.get(self.of(values))
        return found if found is not None and found.touched >= now - self.expire else None

    def shown(self, values: dict, now: int) -> Key | None:
        """The key's entry, made where there is none."""
        key = self.of(values)
        if key is None:
            return None
        if key not in self.keys:
            if len(self.keys) == self.most:
                self._make_room(now)
            self.keys[key] = Key()
        elif self.keys[key].touched < now - self.expire:
            self.keys[key].sums, self.keys[key].last = {}, []
        self.keys[key].touched = now
        return self.keys[key]

    def _make_room(self, now: int) -> None:
        kept = {key: entry for key, entry in self.keys.items() if entry.touched >= now - self.expire}
        if len(kept) > (most := max(1, self.most * 3 // 4)):
            newest = sorted(kept, key=lambda key: (-kept[key].touched, _hash(key)))[:most]
            kept = {key: entry for key, entry in kept.items() if key in newest}
        self.keys = kept

    def forget(self, id: Forgotten) -> None:
        if id.column in self.columns:
            place = self.columns.index(id.column)
            self.keys = {key: entry for key, entry in self.keys.items() if key[place] != id.value}
        for entry in self.keys.values():
            for listed in entry.last:
                if listed[2][id.column] == id.value:
                    listed[2] = listed[2] | {id.column: 0}


def _hash(key: tuple) -> int:
    hashed = 1
    for depth, value in enumerate(key):
        mine = max(int(hash64(pa.array([value]))[0]), 1)
        both = np.array([(hashed * 0x9E3779B97F4A7C15 + mine) % 2**64], np.uint64)
        hashed = mine if depth == 0 else max(int(hash64(pa.array(both.view(np.int64)))[0]), 1)
    return hashed


def _add(key: Key, name: str, amount: float, now: int, half_ms: float) -> None:
    value, last = key.sums.get(name, (0.0, now))
    if half_ms and value != 0.0:
        value *= 0.5 ** ((now - last) / half_ms)
    key.sums[name] = value + amount, now


def _sum(key: Key | None, name: str, now: int, half_ms: float) -> float:
    if key is None or name not in key.sums:
        return 0.0
    value, last = key.sums[name]
    return value * 0.5 ** ((now - last) / half_ms) if half_ms else value


def asof_reference(schema: RowSchema, impressions: list[Shown], forgotten: Sequence[Forgotten] = ()) -> list[dict]:
    """The columns of every as-of feature, for impressions in merge order."""
    to_forget, impressions = sorted(forgotten), list(impressions)
    tick, given = schema.asof.tick_ms, schema.given
    events = [(shown.key, number, 0, "shown") for number, shown in enumerate(impressions)]
    for number, shown in enumerate(impressions):
        for place, task in enumerate(schema.tasks):
            if task.name in shown.labels:
                events.append((shown.labels[task.name], number, 1 + place, task.name))
    events.sort()
    tables = {f.name: [Remembered(schema, f, depth) for depth in range(len(f.by) + 1)] for f in schema.asof.features}
    rows: list[dict] = []
    rates: list[dict[str, float]] = []

    def apply_until(time: int) -> None:
        while events and events[0][0] < time:
            _apply(schema, tables, impressions, rates, *events.pop(0))

    for shown in impressions:
        while to_forget and to_forget[0].at <= shown.key:
            apply_until(to_forget[0].at - to_forget[0].at % tick)
            _forget(tables, impressions, to_forget.pop(0))
        apply_until(now := shown.key - shown.key % tick)
        row, rate_of = {}, {}
        for f in schema.asof.features:
            half, key = 1000 * (f.half_life_s or 0.0), tables[f.name][-1].known(shown.values, now)
            trial = given.get(f.event, "shown")
            if f.kind == "rate":
                rate = 0.0
                for depth, table in enumerate(tables[f.name]):
                    of = table.known(shown.values, now)
                    trials = _sum(of, f"{trial}", now, half)
                    labels = min(_sum(of, f"{f.event} aged", now, half), trials)
                    rate = (labels + f.prior * rate) / (trials + f.prior) if depth else (labels + 1) / (trials + 2)
                rate_of[f.name], row[f"{f.name}_shown"] = rate, trials
                row[f.name] = rate
            elif f.kind == "residual":
                trials, expected = _sum(key, "shown", now, half), _sum(key, "expected", now, half)
                row[f.name] = (_sum(key, f"{f.event} aged", now, half) - expected) / (trials + f.prior)
                row[f"{f.name}_shown"] = trials
            elif f.kind == "count":
                row[f.name] = _sum(key, f.event, now, half)
            elif f.kind == "since":
                last = None if key is None or f.event not in key.sums else key.sums[f.event][1]
                row[f.name] = None if last is None else (now - last) / 1000
            else:
                newest = [] if key is None else key.last
                for item in f.of:
                    names = [task.name for task in schema.tasks]
                    row[f"{f.name}_{item}"] = [
                        (now - time) / 1000 if item == "gap_s" else
                        int(item in labels) if item in names else (values[item] or 0)
                        for _, time, values, labels in newest
                    ]  # fmt: skip
        rows.append(row)
        rates.append(rate_of)
    return rows


def _forget(tables: dict[str, list[Remembered]], impressions: list[Shown], id: Forgotten) -> None:
    """Tables lose it, and so do the impressions of before, whose events count for no key of it from here on."""
    for remembered in tables.values():
        for table in remembered:
            table.forget(id)
    for number, shown in enumerate(impressions):
        if shown.key < id.at and shown.values[id.column] == id.value:
            impressions[number] = shown._replace(values=shown.values | {id.column: None})


def _apply(schema, tables, impressions, rates, time, number, kind, event) -> None:
    shown, given = impressions[number], schema.given
    for f in schema.asof.features:
        half = 1000 * (f.half_life_s or 0.0)
        trial = given.get(f.event, "shown")
        for table in tables[f.name]:
            if len(table.columns) < len(f.by) and f.kind != "rate":
                continue
            key = table.shown(shown.values, time) if kind == 0 else table.known(shown.values, time)
            if key is None:
                continue
            if event == (f.having or "shown"):
                key.last.append([number, time, shown.values, set()])
                key.last = key.last[-(f.last or 1) :]
            for entry in key.last:
                if entry[0] == number and kind:
                    entry[3].add(event)
            if event in (f.event, trial):
                aged = 0.5 ** ((time - shown.key) / half) if half else 1.0
                counted_by_own_age = f.kind in ("count", "since") or event == "shown"
                _add(key, event, 1.0 if counted_by_own_age else aged, time, half)
                if event == f.event:
                    _add(key, f"{event} aged", aged, time, half)
            if event == "shown" and f.kind == "residual":
                _add(key, "expected", rates[number][f.against], time, half)
