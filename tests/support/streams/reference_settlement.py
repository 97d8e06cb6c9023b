"""The rules of merging and settlement, one row at a time: slow, obvious, and compared with the real ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streaming.schema import UNKNOWN, RowSchema
from tests.support.streams.reference_asof import Shown


class Row(NamedTuple):
    kind: str
    topic: str
    partition: int
    offset: int
    row: int
    id: object
    event_time_ms: int
    task: str = ""
    record_time_ms: int = 0
    values: dict | None = None


class Keyed(NamedTuple):
    key: int
    order: int
    row: Row
    dead: bool


def merge_reference(partitions: dict[tuple[str, int], list[Row]], skew_ms: int | None) -> list[Keyed]:
    keyed = []
    for (topic, partition), rows in partitions.items():
        running = -1
        for row in rows:
            dead = skew_ms is not None and 0 < row.record_time_ms < row.event_time_ms - skew_ms
            if not dead:
                running = max(running, row.event_time_ms)
            keyed.append((running, topic, partition, row.offset, row.row, row, dead))
    keyed.sort(key=lambda entry: entry[:5])
    return [Keyed(entry[0], order, entry[5], entry[6]) for order, entry in enumerate(keyed)]


@dataclass
class _Impression:
    id: object
    key: int
    event: int
    number: int
    position: tuple
    labels: set = field(default_factory=set)
    values: dict = field(default_factory=dict)
    came: dict = field(default_factory=dict)  # by task, the key time at which its label counted


class Reference:
    """Collects emitted (impression position, group, labels), late (position, reason, late_by) and dead (position,
    reason) rows in order."""

    def __init__(self, schema: RowSchema, lateness_ms: int, horizon_ms: int) -> None:
        self.schema, self.lateness, self.horizon = schema, lateness_ms, horizon_ms
        self.window = {task.name: task.window_ms for task in schema.tasks}
        self.given = {task.name: task.given for task in schema.tasks}
        self.impressions: list[_Impression] = []
        self.open: list[tuple[int, int, int]] = []  # deadline, group, number
        self.orphans: list[Keyed] = []
        self.emitted: list = []
        self.late: list = []
        self.dead: list = []
        self.count = dict.fromkeys(("duplicates", "repeats", "matched", "not_applicable", "unknown"), 0)

    def run(self, keyed: list[Keyed]) -> None:
        for item in keyed:
            self._time_is(item.key)
            if item.dead:
                self.dead.append((_position(item.row), "in_the_future"))
            elif item.row.kind == "impression":
                self._impression(item)
            else:
                self._feedback(item)
        self._time_is(2**62)

    def _known(self, id: object, key: int) -> _Impression | None:
        known = [i for i in self.impressions if i.id == id and key - i.key <= self.horizon]
        assert len(known) <= 1
        return known[0] if known else None

    def _impression(self, item: Keyed) -> None:
        row = item.row
        if row.event_time_ms < item.key - self.horizon:
            self.dead.append((_position(row), "too_old"))
            return
        if self._known(row.id, item.key):
            self.count["duplicates"] += 1
            return
        new = _Impression(row.id, item.key, row.event_time_ms, len(self.impressions), _position(row))
        new.values = row.values or {}
        self.impressions.append(new)
        for g, group in enumerate(self.schema.groups):
            self.open.append((item.key + group.window_ms + self.lateness, g, new.number))
        for orphan in [o for o in self.orphans if o.row.id == row.id]:
            self.orphans.remove(orphan)
            self._label(orphan, new)

    def _feedback(self, item: Keyed) -> None:
        known = self._known(item.row.id, item.key)
        if known:
            self._label(item, known)
        else:
            self.orphans.append(item)

    def _label(self, item: Keyed, impression: _Impression) -> None:
        task, window = item.row.task, self.window[item.row.task.removeprefix(UNKNOWN)]
        deadline = impression.key + window + self.lateness
        delay = item.row.event_time_ms - impression.event
        if task in impression.labels:
            self.count["repeats"] += 1
        elif item.key > deadline:
            self.late.append((_position(item.row), "after_settlement", item.key - deadline))
        elif delay < 0:
            self.late.append((_position(item.row), "before_impression", delay))
        elif delay > window:
            self.late.append((_position(item.row), "outside_window", delay - window))
        else:
            impression.labels.add(task)
            impression.came[task] = max(item.key, impression.key)
            self.count["matched"] += 1

    def shown(self) -> list[Shown]:
        """The admitted impressions in merge order, with the times of those labels that apply."""
        return [Shown(i.key, i.values, self._came(i)) for i in self.impressions]

    def _came(self, impression) -> dict[str, int]:
        chains = {task: [task] for task in self.given}
        for chain in chains.values():
            while (given := self.given[chain[-1]]) is not None:
                chain.append(given)
        return {
            task: max(impression.came[each] for each in chain)
            for task, chain in chains.items()
            if all(each in impression.came for each in chain)
        }

    def _time_is(self, now: int) -> None:
        for due in sorted(entry for entry in self.open if entry[0] < now):
            self.open.remove(due)
            self._emit(self.impressions[due[2]], self.schema.groups[due[1]])
        for orphan in [o for o in self.orphans if o.key + self.horizon < now]:
            self.orphans.remove(orphan)
            self.dead.append((_position(orphan.row), "unknown_impression"))

    def _emit(self, impression, group) -> None:
        labels = {task.name: None for task in self.schema.tasks}
        for task in group.tasks:
            if self._applies(impression, task.name):
                positive, unknown = task.name in impression.labels, UNKNOWN + task.name in impression.labels
                labels[task.name] = 1 if positive else None if unknown else 0
                self.count["unknown"] += unknown and not positive
        if all(label is None for label in labels.values()):
            self.count["not_applicable"] += 1
        else:
            self.emitted.append((impression.position, group.name, tuple(labels.values())))

    def _applies(self, impression, task) -> bool:
        given = self.given[task]
        return given is None or (given in impression.labels and self._applies(impression, given))


def _position(row: Row) -> tuple:
    return (row.topic, row.partition, row.offset, row.row)
