"""A history: what is written to the topics, and what befalls those who read them, drawn from a seed.

Histories are small, since small ones find faults fastest: tens of rows, of few ids and close times, so that ties,
duplicates, late and early feedback abound.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa

ADS, EVENTS = "ads", "events"
TASKS: tuple[tuple[tuple[str, int, str | None], ...], ...] = (
    (("ctr", 5, None),),
    (("ctr", 5, None), ("cvr", 20, "ctr")),
    (("ctr", 4, None), ("like", 10, None), ("cvr", 10, "ctr"), ("rebuy", 15, "cvr")),
)
"""(name, window in ms, condition) of every task."""
LARGE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """How the service is configured. Times are milliseconds."""

    tasks: tuple[tuple[str, int, str | None], ...] = TASKS[0]
    string_ids: bool = False
    codecs: tuple[str, str] = ("json", "json")
    partitions: int = 1
    """Of each input topic."""
    examples: int = 1
    lateness: int = 0
    horizon: int = 10
    skew: int | None = None
    block_rows: int = 4
    buffer_rows: int = 100
    message_bytes: int = 1 << 20
    """Of the topics; where it is small, a block makes several messages."""
    segment_rows: int = LARGE
    """After how many rows internal pieces end (`settlement.pending`, `ledger`, `id_index`, `marks`)."""


@dataclass(frozen=True)
class Row:
    """One row of a message. `what` is the vertical of an impression, the task of feedback; `fault` the reason for which
    it is refused."""

    id: int
    time: int
    what: str
    age: int = 0
    fault: str | None = None


@dataclass(frozen=True)
class Message:
    """`rows` of one kind in a codec. A message that cannot be decoded counts as one row."""

    rows: tuple[Row, ...]
    stamp: int = -1
    garbage: bytes | None = None


@dataclass(frozen=True)
class Write:
    """Somebody sends messages to a partition; `transaction` is decided later."""

    topic: str
    partition: int
    messages: tuple[Message, ...]
    transaction: int | None = None


@dataclass(frozen=True)
class Decide:
    """The end of a transaction."""

    transaction: int
    commit: bool


@dataclass(frozen=True)
class Run:
    """The service makes so many steps."""

    steps: int


@dataclass(frozen=True)
class Kill:
    """The service is killed `after` so many points; `power`: its machine loses what it had not flushed."""

    after: int
    power: bool


@dataclass(frozen=True)
class Stop:
    """The service stands still `after` so many points, and goes on `steps` steps after a second one was started."""

    after: int
    steps: int


@dataclass(frozen=True)
class Away:
    """The broker does not answer for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Stall:
    """A partition gives nothing for so many fetches."""

    topic: str
    partition: int
    fetches: int


@dataclass(frozen=True)
class Full:
    """The disk is full `after` so many points, `times` times."""

    after: int
    times: int


@dataclass(frozen=True)
class Unsure:
    """The next commit is stored, and reported as failed."""


@dataclass(frozen=True)
class Truncate:
    """An unclean election: a partition loses its last messages."""

    topic: str
    partition: int
    messages: int


@dataclass(frozen=True)
class Delete:
    """Retention: a partition loses this share of its first messages."""

    topic: str
    partition: int
    share: float


Event = Write | Decide | Run | Kill | Stop | Away | Stall | Full | Unsure | Truncate | Delete


@dataclass(frozen=True)
class History:
    """`seed` names it; `schedule` is what reads and crashes are drawn from while it is played."""

    seed: int
    schedule: int
    settings: Settings
    events: tuple[Event, ...]

    def with_events(self, events: tuple[Event, ...]) -> History:
        return replace(self, events=events)

    @property
    def rows(self) -> int:
        return sum(len(m.rows) for e in self.events if isinstance(e, Write) for m in e.messages)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, schedule {self.schedule}", repr(self.settings)]
        return "\n".join([*lines, *(f"  {event}" for event in self.events)])


def draw(seed: int) -> History:
    """The history of a seed."""
    random = Random(seed)
    settings = _settings(random)
    writes = _transactions(random, _writes(random, settings))
    return History(seed, random.randrange(1 << 30), settings, tuple(_interrupted(random, settings, writes)))


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
        message_bytes=random.choice([1 << 20, 1 << 20, 13_000]),
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
            messages.append(Message((Row(0, 0, "", fault="undecodable"),), stream.stamp, garbage))
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
    losing = random.random() < 0.06  # messages are lost for good: the run has to end
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
    if kind == "kill":
        return Kill(_points(random), power=False)
    if kind == "power":
        return Kill(_points(random), power=True)
    if kind == "stop":
        return Stop(_points(random), random.choice([1, 3, 10, 40]))
    if kind == "away":
        return Away(random.choice([0.5, 3.0, 20.0]))
    if kind == "stall":
        return Stall(topic, partition, random.choice([1, 5, 20]))
    if kind == "full":
        return Full(_points(random), random.choice([1, 2, 5]))
    return Unsure()


# Messages as bytes


def encoded(message: Message, topic: str, codec: str, string_ids: bool) -> bytes:
    """The value of a message as its producer writes it."""
    if message.garbage is not None:
        return message.garbage
    records = [record(row, topic, string_ids) for row in message.rows]
    if codec == "json":
        return json.dumps(records[0]).encode()
    identity = pa.string() if string_ids else pa.int64()
    last = [("vertical", pa.string()), ("age", pa.int64())] if topic == ADS else [("task", pa.string())]
    schema = pa.schema([("impression_id", identity), ("event_time_ms", pa.int64()), *last])
    batch = pa.RecordBatch.from_pylist([{n: each.get(n) for n in schema.names} for each in records], schema=schema)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def identity(row: Row, string_ids: bool) -> Any:
    return f"i{row.id}" if string_ids else row.id


def reason(row: Row, codec: str) -> str | None:
    """Why the row is refused, as its codec says it: in a batch of rows a column is there or not, so a value that is
    absent is a null."""
    if row.fault is not None and codec == "arrow" and row.fault.startswith("missing_column"):
        return row.fault.replace("missing_column", "null")
    return row.fault


def record(row: Row, topic: str, string_ids: bool) -> dict[str, Any]:
    """The row as its producer writes it, with its fault."""
    made: dict[str, Any] = {"impression_id": identity(row, string_ids), "event_time_ms": row.time}
    made |= {"vertical": row.what, "age": row.age} if topic == ADS else {"task": row.what}
    fault, _, name = (row.fault or "").partition(":")
    if fault == "missing_column":
        del made[name]
    elif fault == "null":
        made[name] = None
    elif fault == "out_of_range":
        made[name] = 700
    elif fault == "bad_event_time":
        made["event_time_ms"] = -5
    elif fault == "bad_vertical":
        made["vertical"] = ""
    elif fault == "unknown_task":
        made["task"] = name
    return made
