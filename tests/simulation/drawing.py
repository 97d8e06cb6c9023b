"""Draws histories from seeds.

They are small, since small ones find faults fastest: tens of rows, of few ids and close times, so that ties,
duplicates, late and early feedback abound.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.history import (
    ADS,
    EVENTS,
    LARGE,
    TASKS,
    Away,
    Decide,
    Delete,
    Event,
    Full,
    Grow,
    History,
    Kill,
    Message,
    Refuse,
    Row,
    Run,
    Settings,
    Stall,
    Stop,
    Truncate,
    Unsure,
    Write,
    partition_of,
)
from tests.simulation.live import live_events, live_settings

FEW_ROWS_BYTES = {1: 6800, 2: 7700, 4: 9500}
"""By the number of tasks, a size of messages into which a few rows of the lake fit."""

GROWN = 0.1
"""In this share of the others a partition is added to a topic."""

LIVE = 0.25
"""This share of histories is in free pace."""

APART = 0.3
"""In this share partitions are settled by themselves (`settlement.by: partition`)."""


STORED = 0.15
"""In this share the run lies at an object store."""


def draw(seed: int) -> History:
    """The history of a seed."""
    history, random = _drawn(seed), Random(f"stored {seed}")
    return _stored(random, history) if random.random() < STORED else history


def _stored(random: Random, history: History) -> History:
    """The same at an object store, which fails requests now and then."""
    share = random.choice([0.0, 0.05, 0.15])
    events: list[Event] = []
    for event in history.events:
        if random.random() < share:
            events.append(Refuse(_points(random), random.choice([1, 1, 2, 8]), random.random() < 0.5))
        events.append(event)
    return replace(history, settings=replace(history.settings, stored=True), events=tuple(events))


def _drawn(seed: int) -> History:
    random = Random(seed)
    settings = _settings(random)
    shared = Random(f"shared {seed}")
    apart = shared.random() < APART
    if random.random() < LIVE:
        settings = live_settings(random, settings)
        schedule, events = random.randrange(1 << 30), live_events(random, settings)
        settings, events = _apart(shared, settings, events) if apart else (settings, events)
        return History(seed, schedule, settings, tuple(events))
    writes = _transactions(random, _writes(random, settings))
    schedule, events = random.randrange(1 << 30), list(_interrupted(random, settings, writes))
    if apart:
        settings, events = _apart(shared, settings, events)
        return History(seed, schedule, settings, tuple(events))
    return History(seed, schedule, settings, tuple(_grown(Random(f"grown {seed}"), settings, events)))


def _apart(random: Random, settings: Settings, events: list[Event]) -> tuple[Settings, list[Event]]:
    """Partitions are settled by themselves, by some ranks, and rows lie where their ids belong, but for a few."""
    partitions = settings.partitions + random.choice([0, 1, 2])
    settings = replace(settings, partitions=partitions, workers=random.randint(1, partitions))
    stray = random.choice([0.0, 0.0, 0.05])
    placed: list[Event] = []
    for event in events:
        if not isinstance(event, Write) or random.random() < stray:
            placed.append(event)
            continue
        messages: dict[int, list[Message]] = {}
        for message in event.messages:
            rows: dict[int, list[Row]] = {} if message.rows and message.garbage is None else {event.partition: []}
            for row in message.rows:
                owner = event.partition if message.garbage is not None else partition_of(row, settings)
                rows.setdefault(owner, []).append(row)
            for partition, of in rows.items():
                messages.setdefault(partition, []).append(replace(message, rows=tuple(of)))
        placed += [replace(event, partition=partition, messages=tuple(of)) for partition, of in messages.items()]
    return settings, placed


def _grown(random: Random, settings: Settings, events: list[Event]) -> list[Event]:
    """Now and then a topic gets a partition, which takes half of what is written to it from then on."""
    if random.random() >= GROWN:
        return events
    at, topic = random.randrange(len(events) + 1), random.choice([ADS, EVENTS])

    def moved(event: Event) -> Event:
        here = isinstance(event, Write) and event.topic == topic and random.random() < 0.5
        return replace(event, partition=settings.partitions) if here else event

    return [*events[:at], Grow(topic), *map(moved, events[at:])]


def _settings(random: Random) -> Settings:
    tasks = random.choice(TASKS)
    lateness = random.choice([0, 0, 1, 4])
    longest = max(window for _, window, _ in tasks)
    return Settings(
        tasks=tasks,
        string_ids=random.random() < 0.3,
        codecs=(random.choice(["json", "arrow"]), random.choice(["json", "arrow"])),
        partitions=random.choice([1, 1, 2, 3]),
        examples=random.choice([1, 2]),
        lateness=lateness,
        horizon=longest + lateness + random.choice([0, 3, 8, 30]),
        skew=random.choice([None, None, 6]),
        block_rows=random.choice([1, 2, 3, 5, 8, 13]),
        buffer_rows=random.choice([1, 3, 10, 100]),
        message_bytes=random.choice([1 << 20, 1 << 20, FEW_ROWS_BYTES[len(tasks)]]),
        segment_rows=random.choice([2, 3, 7, LARGE]),
    )


class _Stream:
    """What producers send, row by row, in the order of their clock."""

    def __init__(self, random: Random, settings: Settings) -> None:
        self._random, self._settings = random, settings
        self._ids = random.choice([3, 8, 40])
        self._clock = random.choice([0, 5, 86_399_990])  # the last begins just before midnight
        self._shown: list[Row] = []
        self._names = [name for name, _, _ in settings.tasks]
        self._longest = max(window for _, window, _ in settings.tasks)

    def row(self) -> tuple[str, Row]:
        random = self._random
        self._clock += random.choice([0, 0, 1, 1, 2, 3, 9, random.randint(0, 2 * self._longest)])
        if random.random() < 0.55 or not self._shown:
            time = max(0, self._clock + random.choice([0, 0, 0, 0, -2, -1, -12, -60, 40]))
            row = Row(random.randrange(self._ids), time, random.choice(["feed", "shop"]), random.randrange(100))
            self._shown.append(row)
            return ADS, row
        shown = random.choice(self._shown[-6:])
        task = random.choice(self._names)
        window = next(w for name, w, _ in self._settings.tasks if name == task)
        delay = random.choice([0, 0, 1, 2, window // 2, window, window + 1, -1, random.randint(0, 2 * window)])
        late = random.random() < 0.2
        time = max(0, shown.time + delay if not late else self._clock - random.randint(0, window))
        if random.random() < 0.3:
            self._clock = max(self._clock, time)
        identity = shown.id if random.random() < 0.95 else random.randrange(self._ids + 2)
        unknown = "unknown:" if random.random() < 0.1 else ""
        return EVENTS, Row(identity, time, unknown + task)

    @property
    def stamp(self) -> int:
        return self._clock if self._random.random() < 0.9 else -1


IMPRESSION_FAULTS = ("missing_column:age", "null:age", "out_of_range:age", "bad_event_time", "bad_vertical")
FEEDBACK_FAULTS = ("missing_column:task", "null:task", "unknown_task:buy", "bad_event_time")
GARBAGE = (b"", b"[]", b'{"impression_id": 3', b"\xff\x00", b"null", b"{} {}")


def _writes(random: Random, settings: Settings) -> list[Write]:
    stream = _Stream(random, settings)
    codecs = dict(zip((ADS, EVENTS), settings.codecs, strict=True))
    writes: list[Write] = []
    sent: list[Write] = []
    waiting: dict[tuple[str, int], list[Row]] = {}
    broken = random.choice([0.0, 0.05, 0.2])
    repeated = random.choice([0.0, 0.1])
    for _ in range(random.choice([6, 15, 15, 30, 30, 60])):
        topic, row = stream.row()
        if random.random() < broken:
            faults = IMPRESSION_FAULTS if topic == ADS else FEEDBACK_FAULTS
            row = replace(row, fault=random.choice(faults))
        place = (topic, random.randrange(settings.partitions))
        rows = waiting.setdefault(place, [])
        rows.append(row)
        if len(rows) < (1 if codecs[topic] == "json" else random.choice([1, 1, 2, 4])):
            continue
        messages = [Message(tuple(rows), stream.stamp)]
        rows.clear()
        if random.random() < broken:
            garbage = random.choice(GARBAGE)
            messages.append(
                Message((Row(0, 0, "", fault="undecodable" if garbage else "tombstone"),), stream.stamp, garbage)
            )
        if codecs[topic] == "arrow" and random.random() < 0.03:
            messages.append(Message((), stream.stamp))
        write = Write(*place, tuple(messages))
        writes.append(write)
        sent.append(write)
        if random.random() < repeated:  # a producer that got no answer sends again
            writes.append(random.choice(sent[-4:]))
    left = [Write(*place, (Message(tuple(rows), stream.stamp),)) for place, rows in waiting.items() if rows]
    return writes + left


def _transactions(random: Random, writes: list[Write]) -> list[Event]:
    """Some of the writes as transactions, which are decided some writes later."""
    share = random.choice([0.0, 0.0, 0.3])
    events: list[Event] = []
    undecided: list[Decide] = []
    for number, write in enumerate(writes):
        if random.random() < share:
            write = replace(write, transaction=number)
            undecided.append(Decide(number, random.random() < 0.6))
            if len(undecided) > 1 and random.random() < 0.4:  # one transaction, several writes
                undecided.pop()
                write = replace(write, transaction=undecided[-1].transaction)
        events.append(write)
        while undecided and random.random() < 0.4:
            events.append(undecided.pop(0))
    return [*events, *undecided]


def _interrupted(random: Random, settings: Settings, writes: list[Event]) -> list[Event]:
    """The service runs between the writes, and faults strike."""
    faults = random.choice([0.0, 0.1, 0.25, 0.4])
    losing = random.random() < 0.1  # messages are lost for good: the run has to end
    runs = random.choice([0.2, 0.6, 0.9])
    events: list[Event] = []
    for write in writes:
        events.append(write)
        if random.random() < runs:
            if random.random() < faults:
                events.append(_fault(random, settings, losing))
            events.append(Run(random.choice([1, 2, 4, 8])))
    for _ in range(random.choice([0, 1, 2, 3]) if faults else 0):  # most of the commits come at the end
        events += [_fault(random, settings, losing), Run(random.choice([2, 6, 12]))]
    return events


def _points(random: Random) -> int:
    return random.choice([random.randint(1, 12), random.randint(1, 50), random.randint(1, 250)])


def _fault(random: Random, settings: Settings, losing: bool) -> Event:
    topic = random.choice([ADS, EVENTS])
    partition = random.randrange(settings.partitions)
    if losing and random.random() < 0.4:
        if random.random() < 0.5:
            return Truncate(topic, partition, random.randint(1, 4))
        return Delete(topic, partition, random.random())
    kind = random.choice(["kill", "kill", "kill", "power", "power", "stop", "stop", "away", "stall", "full", "unsure"])
    if kind in ("kill", "power", "stop"):
        commit = random.random() < 0.5
        after = random.randint(0, 25) if commit else _points(random)
        if kind == "stop":
            return Stop(after, random.choice([1, 3, 10, 40]), commit)
        return Kill(after, kind == "power", commit)
    if kind == "away":
        return Away(random.choice([0.5, 3.0, 20.0]))
    if kind == "stall":
        return Stall(topic, partition, random.choice([1, 5, 20]))
    if kind == "full":
        return Full(_points(random), random.choice([1, 2, 5]))
    return Unsure()
