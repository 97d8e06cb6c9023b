"""What the lake, its side tables and its topics have to hold, one row at a time, from the true contents of the topics.

A plain model of how rows are merged, joined and settled: it imports nothing of the product, and reads the true rows
that messages were made of, not their bytes. Slow and obvious on purpose.

    key of a row  the largest event time of its partition so far; rows go by (key, topic, partition, offset, row)
    d_g           the key of an impression + window of group g + lateness; it leaves for g once a later key has come
    a label       feedback with e <= f <= e + window, and a key of at most the deadline
"""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation.history import ADS, EVENTS, Message, Row, Settings, belongs_elsewhere, identity, reason
from tests.simulation.outcome import TakenIn

KINDS = {ADS: "impression", EVENTS: "feedback"}
UNKNOWN = "unknown:"


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int
    row: int


class Keyed(NamedTuple):
    key: int
    place: Place
    row: Row
    refused: str | None


@dataclass
class Impression:
    place: Place
    row: Row
    key: int
    number: int
    seen: dict[str, int] = field(default_factory=dict)
    """Tasks with a label, and `unknown:` tasks: the key time at which it counted."""


@dataclass
class Expected:
    """What becomes of the rows. `lake`: (impression, group); `late`: (place, reason, late by, event time of the
    impression, deadline); `dead`: (place, kind, reason)."""

    lake: list[tuple[Impression, int]] = field(default_factory=list)
    late: list[tuple[Place, str, int, int, int]] = field(default_factory=list)
    dead: list[tuple[Place, str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    not_applicable: Counter[int] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    offsets: dict[str, Counter[str]] = field(default_factory=dict)


def settled_apart(settings: Settings, logs: dict[tuple[str, int], Any]) -> Expected:
    """What becomes of the rows where partitions of one number are settled by themselves: blocks hold the next rows of
    all of them, by deadline, and one partition's after the other's."""
    parts = [
        Model(settings).settle({place: log for place, log in logs.items() if place[1] == number})
        for number in sorted({number for _, number in logs})
    ]
    groups = sorted({window for _, window, _ in settings.tasks})
    lake = [(*leaves, number) for number, part in enumerate(parts) for leaves in part.lake]
    lake.sort(key=lambda each: (each[0].key + groups[each[1]], each[2]))
    size = settings.block_rows
    blocks = [sorted(lake[at : at + size], key=lambda each: each[2]) for at in range(0, len(lake), size)]
    offsets: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS.values()}
    for part in parts:
        for kind, counted in part.offsets.items():
            offsets[kind].update(counted)
    return Expected(
        lake=[(impression, group) for block in blocks for impression, group, _ in block],
        late=[late for part in parts for late in part.late],
        dead=[dead for part in parts for dead in part.dead],
        counts=sum((part.counts for part in parts), Counter()),
        not_applicable=sum((part.not_applicable for part in parts), Counter()),
        unknown=sum((part.unknown for part in parts), Counter()),
        offsets=offsets,
    )


class Model:
    """Settles the rows of one history."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.groups = sorted({window for _, window, _ in settings.tasks})
        self._window = {name: window for name, window, _ in settings.tasks}
        self._given = {name: given for name, _, given in settings.tasks}
        self._codec = dict(zip((ADS, EVENTS), settings.codecs, strict=True))
        self._impressions: list[Impression] = []
        self._waiting: list[tuple[int, int, int]] = []  # deadline, group, number
        self._orphans: list[Keyed] = []
        self.found = Expected()

    def settle(self, logs: dict[tuple[str, int], Any], taken_in: TakenIn | None = None) -> Expected:
        """`taken_in`: rows of partitions that were not known then come after those that were read by then, and their
        keys are at least the event time of that moment."""
        for kind in KINDS.values():
            self.found.offsets[kind] = Counter()
        floors = {p: -1 if taken_in is None or p in taken_in.read else taken_in.watermark for p in logs}
        rows = [keyed for place, log in logs.items() for keyed in self._keyed(place, log, floors[place])]
        known = {} if taken_in is None else taken_in.read

        def later(keyed: Keyed) -> bool:
            topic, partition, *at = keyed.place
            return bool(known) and tuple(at) >= known.get((topic, partition), (0, 0))

        for keyed in sorted(rows, key=lambda keyed: (later(keyed), keyed)):
            self._time_is(keyed.key)
            kind = KINDS[keyed.place.topic]
            self.found.counts[f"{kind}s read"] += 1
            if keyed.refused is not None:
                self.found.dead.append((keyed.place, kind, keyed.refused))
            elif kind == "impression":
                self._impression(keyed)
            else:
                self._feedback(keyed)
        self._time_is(None)
        return self.found

    def _keyed(self, place: tuple[str, int], log: Any, latest: int) -> list[Keyed]:
        """The rows of a partition, and what became of its offsets."""
        settings, keyed = self._settings, []
        offsets = self.found.offsets[KINDS[place[0]]]
        visible = {record.offset: record.truth for record in log.visible()}
        for offset in range(log.first, log.end):
            offsets["offsets"] += 1
            truth = visible.get(offset)
            if truth is None:
                offsets["transaction_records"] += 1
                continue
            if truth == "end":
                offsets["end_markers"] += 1
                continue
            assert isinstance(truth, Message)
            offsets["messages" if truth.rows else "without_rows"] += 1
            offsets["rows"] += len(truth.rows)
            for number, row in enumerate(truth.rows):
                refused = reason(row, self._codec[place[0]]) if truth.garbage is None else row.fault
                if refused is None and settings.skew is not None and 0 < truth.stamp < row.time - settings.skew:
                    refused = "in_the_future"
                latest = latest if refused is not None else max(latest, row.time)
                if refused is None and belongs_elsewhere(row, place[1], settings):
                    refused = "wrong_partition"  # and it moves event time, as it may
                keyed.append(Keyed(latest, Place(*place, offset, number), row, refused))
        return keyed

    # one row

    def _known(self, row: Row, key: int) -> Impression | None:
        known = [i for i in self._impressions if i.row.id == row.id and key - i.key <= self._settings.horizon]
        return known[-1] if known else None

    def _impression(self, keyed: Keyed) -> None:
        row, horizon = keyed.row, self._settings.horizon
        if row.time < keyed.key - horizon:
            self.found.dead.append((keyed.place, "impression", "too_old"))
            return
        if self._known(row, keyed.key) is not None:
            self.found.counts["duplicates"] += 1
            return
        new = Impression(keyed.place, row, keyed.key, len(self._impressions))
        self._impressions.append(new)
        for group, window in enumerate(self.groups):
            self._waiting.append((keyed.key + window + self._settings.lateness, group, new.number))
        for orphan in [o for o in self._orphans if o.row.id == row.id]:
            self._orphans.remove(orphan)
            self._label(orphan, new)

    def _feedback(self, keyed: Keyed) -> None:
        impression = self._known(keyed.row, keyed.key)
        if impression is None:
            self._orphans.append(keyed)
        else:
            self._label(keyed, impression)

    def _label(self, keyed: Keyed, impression: Impression) -> None:
        task, counts = keyed.row.what, self.found.counts
        window = self._window[task.removeprefix(UNKNOWN)]
        deadline = impression.key + window + self._settings.lateness
        delay = keyed.row.time - impression.row.time
        if task in impression.seen:
            counts["repeats"] += 1
        elif keyed.key > deadline:
            found = (keyed.place, "after_settlement", keyed.key - deadline, impression.row.time, deadline)
            self.found.late.append(found)
        elif not 0 <= delay <= window:
            why, by = ("before_impression", delay) if delay < 0 else ("outside_window", delay - window)
            self.found.late.append((keyed.place, why, by, impression.row.time, deadline))
        else:
            impression.seen[task] = max(keyed.key, impression.key)
            counts["labels"] += 1

    def _time_is(self, now: int | None) -> None:
        """Whatever is due before `now` (None: everything) leaves."""
        for due in sorted(w for w in self._waiting if now is None or w[0] < now):
            self._waiting.remove(due)
            self._leave(self._impressions[due[2]], due[1])
        for orphan in [o for o in self._orphans if now is None or o.key + self._settings.horizon < now]:
            self._orphans.remove(orphan)
            self.found.dead.append((orphan.place, "feedback", "unknown_impression"))
            self.found.counts["unmatched"] += 1

    def _leave(self, impression: Impression, group: int) -> None:
        labels = self.labels(impression, group)
        for task, label in labels.items():
            self.found.unknown[task] += label is None and self._applies(impression, task)
        if all(label is None for label in labels.values()):
            self.found.not_applicable[group] += 1
        else:
            self.found.lake.append((impression, group))

    def labels(self, impression: Impression, group: int) -> dict[str, int | None]:
        """Of the tasks that settle with a group."""
        found: dict[str, int | None] = {}
        for task in (t for t, window in self._window.items() if window == self.groups[group]):
            unknown = UNKNOWN + task in impression.seen
            positive = task in impression.seen
            found[task] = None if not self._applies(impression, task) else 1 if positive else None if unknown else 0
        return found

    def _applies(self, impression: Impression, task: str) -> bool:
        given = self._given[task]
        return given is None or (given in impression.seen and self._applies(impression, given))

    def _came(self, impression: Impression, task: str) -> int:
        """The key time at which a positive label had come, with those of its conditions."""
        given = self._given[task]
        return max(impression.seen[task], -1 if given is None else self._came(impression, given))

    # how it is stored

    def lake_rows(self, expected: Expected, lag: int) -> list[dict[str, Any]]:
        """The rows of the lake, in order, every column."""
        size, rows = self._settings.block_rows, []
        names = [name for name, _, _ in self._settings.tasks]
        first = {window: next(n for n, w in self._window.items() if w == window) for window in self.groups}
        for seq, (impression, group) in enumerate(expected.lake):
            labels, block = self.labels(impression, group), seq // size
            block_rows = expected.lake[block * size : (block + 1) * size]
            date = datetime.datetime.fromtimestamp(impression.row.time / 1000, datetime.UTC).strftime("%Y-%m-%d")
            row: dict[str, Any] = {"lake_seq": seq, "block": block}
            row |= {"impression_id": identity(impression.row, self._settings.string_ids)}
            row |= {"event_time_ms": impression.row.time, "vertical": impression.row.what, "age": impression.row.age}
            row |= {"settlement": first[self.groups[group]]}
            row |= {f"label_{name}": labels.get(name) for name in names}
            row |= {"merge_time_ms": impression.key}
            row |= {
                f"feedback_time_ms_{name}": self._came(impression, name) if labels.get(name) == 1 else None
                for name in names
            }
            row |= {f"source_{name}": value for name, value in impression.place._asdict().items()}
            for number, name in enumerate(names, 1):  # a label that the teacher may have learned has no prediction
                ahead = self._window[name] >= self.groups[group]
                logit = float(impression.row.time % 1000 * number) if ahead and block >= lag else None
                row[f"teacher_logit_{name}"] = logit
            row["teacher_version"] = block - lag + 1 if block >= lag else None
            row["scored_at_ms"] = max(each.row.time for each, _ in block_rows)
            row["event_date"] = date
            rows.append(row)
        return rows
