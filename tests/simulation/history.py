"""A history: what is written to the topics, and what befalls those who read them. They are drawn in drawing.py."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from kafka.partitioner.default import murmur2

ADS, EVENTS = "shown", "clicks"
"""The input topics: impressions and feedback. They sort the other way round."""
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
    workers: int = 0
    """Number of ranks that share the partitions, which are settled by themselves, in some start; 0: one process settles
    the whole stream."""
    examples: int = 1
    lateness: int = 0
    horizon: int = 10
    skew: int | None = None
    block_rows: int = 4
    buffer_rows: int = 100
    message_bytes: int = 1 << 20
    """Of the topics; where it is small, a block makes several messages."""
    pace: Literal["lockstep", "free"] = "lockstep"
    idle_s: float = 5.0
    interval_s: float = 5.0
    """Of commits, in free pace."""
    stored: bool = False
    """The run lies at an object store, and machines come and go."""
    segment_rows: int = LARGE
    """After how many rows internal pieces end (`settlement.pending`, `id_index`, `marks`)."""


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
class At:
    """The service runs until the clock shows so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Kill:
    """The service is killed `after` so many points, or so many from its next commit on; `power`: its machine loses what
    it had not flushed."""

    after: int
    power: bool
    commit: bool = False


@dataclass(frozen=True)
class Stop:
    """The service stands still `after` so many points, or so many from its next commit on, and goes on `steps` steps
    after a second one was started."""

    after: int
    steps: int
    commit: bool = False


@dataclass(frozen=True)
class Away:
    """The broker does not answer for so many seconds, from now or from `after` points on; where it is away for longer
    already, this changes nothing."""

    seconds: float
    after: int = 0


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
class Refuse:
    """`after` so many points the object store fails so many requests; `carried_out`: their answers alone are lost."""

    after: int
    requests: int
    carried_out: bool


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


@dataclass(frozen=True)
class Grow:
    """A topic gets one more partition, while the service does not run; the service is started with it."""

    topic: str


Event = Grow | Write | Decide | Run | At | Kill | Stop | Away | Stall | Full | Unsure | Refuse | Truncate | Delete


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


def belongs_elsewhere(row: Row, partition: int, settings: Settings) -> bool:
    """Whether partitions are settled by themselves, and another one has the row's impression."""
    return settings.workers > 0 and partition_of(row, settings) != partition


def partition_of(row: Row, settings: Settings) -> int:
    """The partition of a record whose key is the row's id, as Kafka's clients choose it."""
    hashed: int = murmur2(str(identity(row, settings.string_ids)).encode()) & 0x7FFFFFFF
    return hashed % settings.partitions


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
