"""Deterministic merge of many partitions of two topics into one order.

The key of a row is (the running maximum of event time in its partition, topic, partition, offset, row). It is a
function of the recorded stream alone, so the merged sequence does not depend on how reads were cut. A row may leave
once no other partition can still bring an earlier key:

    key time  <  min over partitions that are neither ended nor idle of their last running maximum

Where nothing can leave so, and a partition holds as much as it may, rows of an equal key time leave too, as far as the
order allows (`_bounds`).

Partitions that are settled by themselves (`settlement.by: partition`) are popped up to a cut instead, an event time
that all of them have reached: `front` says how far this merge has, `pop_to` takes the rows before the cut. Where a
buffer is full, the cut is just beyond what all have reached.

Refused rows (undecodable, with an event time in the future or in seconds) take the key of the row before them and leave
in the same order, so that positions and counts cover them, but never move event time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from streaming.errors import BadInput, StreamingError
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, Kind, letters_to_batch, refuse_rows
from streaming.messages.times import FIRST_EVENT_TIME_MS, ahead_ms, believed, in_seconds, unit_hint
from streaming.position import Partition, Positions, SourcePosition
from streaming.schema import POSITION_FIELDS, RowSchema

BUFFER_BYTES = 64 * 2**20

END_OF_TIME = int(np.iinfo(np.int64).max)
NO_TIME = -1
"""Event time before the first row; valid event times are not negative."""

Destination = Literal["impression", "feedback", "dead"]

MERGE_FIELDS = (pa.field("key_time_ms", pa.int64(), nullable=False), pa.field("order", pa.int64(), nullable=False))

REFUSED_SCHEMA = pa.schema([*DEAD_LETTER_SCHEMA, *MERGE_FIELDS])
"""Refused rows as they leave the merge."""

_KINDS: tuple[Kind, Kind] = ("impression", "feedback")


def merged_schema(schema: RowSchema, kind: Kind) -> pa.Schema:
    """Schema of merged rows of one kind: as received, with position, key time and merge order."""
    received = schema.impression if kind == "impression" else schema.feedback
    return pa.schema([*received, *POSITION_FIELDS, *MERGE_FIELDS])


@dataclass(frozen=True)
class MergedChunk:
    """Consecutive rows of the merged order, by kind, each kind sorted by `order`.

    impressions, feedback  `merged_schema`
    watermark_ms           the largest key time popped so far
    dead                   `REFUSED_SCHEMA`: the refused rows among them
    """

    impressions: pa.RecordBatch
    feedback: pa.RecordBatch
    watermark_ms: int
    dead: pa.RecordBatch = field(default_factory=lambda: _empty(REFUSED_SCHEMA))

    def __len__(self) -> int:
        return self.impressions.num_rows + self.feedback.num_rows + self.dead.num_rows


class Front(NamedTuple):
    """Place that partitions have reached, as key times.

    bound   no row before it can still come
    newest  of the newest row that has come
    oldest  of the oldest row that waits; END_OF_TIME where none does
    full    a partition holds as much as it may
    """

    bound: int
    newest: int
    oldest: int
    full: bool


class Merge:
    """Merges partitions into one order: `push` rows read, `pop` rows that are safe.

    partitions: every partition that takes part, with the kind of its rows. All are waited for from the start.
    max_future_skew_s: rows whose event time lies further beyond their record's timestamp are refused (`in_the_future`),
    so that one wrong clock cannot close everyone's windows; None lets them pass. `now_ms`, where it is given, bounds
    them too: a wrong clock may set both times. A timestamp that cannot be right bounds nothing, and `warnings` has the
    first by its name.
    buffer_rows, buffer_bytes: rows, and their bytes, held for one partition while another is waited for; see `wants`.

    >>> schema = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}])
    >>> ads, clicks = Partition("ads", 0), Partition("clicks", 0)
    >>> merge = Merge(schema, {ads: "impression", clicks: "feedback"})
    >>> received = pa.schema([*schema.impression, *POSITION_FIELDS, pa.field("record_time_ms", pa.int64())])
    >>> row = dict(impression_id=1, event_time_ms=5, vertical="a", source_topic="ads", source_partition=0,
    ...            source_offset=0, source_row=0, record_time_ms=5)
    >>> merge.push(ads, pa.RecordBatch.from_pylist([row], schema=received))
    >>> merge.pop() is None, merge.held_by()
    (True, [Partition(topic='clicks', partition=0)])
    >>> merge.mark_ended(clicks); merge.mark_ended(ads)
    >>> merge.pop().impressions["key_time_ms"].to_pylist(), merge.finished
    ([5], True)
    """

    def __init__(
        self,
        schema: RowSchema,
        partitions: Mapping[Partition, Kind],
        *,
        max_future_skew_s: float | None = None,
        now_ms: Callable[[], int] | None = None,
        buffer_rows: int = 65_536,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._schemas: dict[Destination, pa.Schema] = {kind: merged_schema(schema, kind) for kind in _KINDS}
        self._received = {kind: pa.schema(list(self._schemas[kind])[: -len(MERGE_FIELDS)]) for kind in _KINDS}
        self._schemas["dead"] = REFUSED_SCHEMA
        self._feeds = {partition: PartitionBuffer(partitions[partition]) for partition in sorted(partitions)}
        self._skew_ms = None if max_future_skew_s is None else round(max_future_skew_s * 1000)
        self._now_ms = now_ms
        self._buffer_rows, self._buffer_bytes = buffer_rows, buffer_bytes
        self._next_order = 0
        self.slowest = END_OF_TIME
        """The key time that the slowest partition of all merges has reached, where partitions are shared."""
        self.watermark_ms = NO_TIME
        self.warnings: dict[str, str] = {}

    def push(self, partition: Partition, batch: pa.RecordBatch, dead: Sequence[DeadLetter] = ()) -> None:
        """Add rows read from `partition`: the columns of its kind, POSITION_FIELDS and `record_time_ms`, in (offset,
        row) order, and the dead letters found while decoding them.

        Rows before the position restored to are skipped, so a reader may seek to the message and push all of it.
        Raises StreamingError when the partition has ended.
        """
        feed = self._feed(partition)
        refused = letters_to_batch(dead)
        if feed.next_position is not None:
            batch, refused = _from(batch, feed.next_position), _from(refused, feed.next_position)
        if not batch.num_rows and not refused.num_rows:
            return
        if feed.ended:
            raise StreamingError(
                f"{partition.topic}/{partition.partition} was declared ended after "
                f"{feed.next_position or 'no rows'}, and brings {batch.num_rows + refused.num_rows} more rows; "
                "write them to a new topic, or start a run that reads beyond the end marker"
            )
        batch, refused = self._bounded(feed, batch, refused)
        if refused.num_rows:
            refused = refused.take(
                pa.array(np.lexsort((integers_of(refused, "source_row"), integers_of(refused, "source_offset"))))
            )
        # A partition that was idle may come back behind the others: its rows are keyed where the merge stands.
        keys, refused_keys = _key_times(batch, refused, earliest=max(feed.running_max, self.watermark_ms))
        received = self._received[feed.kind]
        batch = pa.RecordBatch.from_arrays([batch.column(name) for name in received.names], schema=received)
        feed.push(keys, batch, refused_keys, refused)

    def mark_ended(self, partition: Partition) -> None:
        """Mark a partition as ended: it is no longer waited for."""
        self._feed(partition).ended = True

    def mark_idle(self, partition: Partition) -> None:
        """Mark a partition as idle: it is not waited for until it brings rows. Only for one known to stand at its
        end."""
        self._feed(partition).idle = True

    def mark_awaited(self, partition: Partition) -> None:
        """Mark a partition as no longer idle, although it brought no rows."""
        self._feed(partition).idle = False

    @property
    def partitions(self) -> list[Partition]:
        return list(self._feeds)

    def pop(self) -> MergedChunk | None:
        """The longest run of rows that no partition can precede any more; None if empty."""
        bound = self._bound()
        taken = [feed.take(bound) for feed in self._feeds.values()]
        if not any(taken) and any(self._is_full(feed) for feed in self._feeds.values()):
            taken = [feed.take(end) for feed, end in zip(self._feeds.values(), self._bounds(), strict=True)]
        if not any(taken):
            return None
        self.watermark_ms = max(self.watermark_ms, *(int(rows.keys[-1]) for parts in taken for _, rows in parts))
        return self._chunk(taken)

    def _chunk(self, taken: list[list[tuple[Destination, KeyedRows]]]) -> MergedChunk:
        """The rows taken of each partition, in merged order."""
        parts = [part for parts in taken for part in parts]
        keys = np.concatenate([np.empty(0, np.int64), *(rows.keys for _, rows in parts)])
        in_order = _in_merged_order(taken, keys)
        order = np.empty(len(keys), np.int64)
        order[in_order] = np.arange(self._next_order, self._next_order + len(keys))
        self._next_order += len(keys)

        placed: dict[Destination, list[tuple[KeyedRows, np.ndarray]]] = {name: [] for name in self._schemas}
        at = 0
        for destination, rows in parts:
            placed[destination].append((rows, order[at : at + len(rows.keys)]))
            at += len(rows.keys)
        impressions, feedback, dead = (self._sorted(name, placed[name]) for name in ("impression", "feedback", "dead"))
        return MergedChunk(impressions, feedback, self.watermark_ms, dead)

    @property
    def front(self) -> Front:
        """Place that these partitions have reached."""
        feeds = self._feeds.values()
        waiting = [first for feed in feeds if (first := feed.first_key) is not None]
        newest, oldest = max(feed.running_max for feed in feeds), min(waiting, default=END_OF_TIME)
        return Front(self._bound(), newest, oldest, any(self._is_full(feed) for feed in feeds))

    def pop_to(self, cut: int) -> MergedChunk:
        """The rows with a key time before `cut`, possibly none."""
        taken = [feed.take(cut) for feed in self._feeds.values()]
        self.watermark_ms = max(self.watermark_ms, cut - 1)
        return self._chunk(taken)

    @property
    def finished(self) -> bool:
        """True if every partition has ended and everything was popped."""
        return all(feed.ended and not feed.buffered for feed in self._feeds.values())

    def held_by(self) -> list[Partition]:
        """The partitions that event time waits for: those whose last running maximum is the lowest. None where it waits
        for a partition of another merge."""
        if (bound := self._bound()) > self.slowest:
            return []
        return [p for p, feed in self._feeds.items() if not (feed.ended or feed.idle) and feed.running_max == bound]

    @property
    def reached_ms(self) -> dict[Partition, int]:
        """The latest event time of each partition that has brought a row."""
        return {p: feed.running_max for p, feed in self._feeds.items() if feed.running_max != NO_TIME}

    def empty(self) -> list[Partition]:
        """The partitions that event time waits for and that have brought no row yet."""
        return [partition for partition in self.held_by() if self._feeds[partition].running_max == NO_TIME]

    def wants(self, partition: Partition) -> bool:
        """True to read more of `partition`: false while its buffer is full and another one holds event time up."""
        feed = self._feed(partition)
        return not self._is_full(feed) or partition in self.held_by()

    def _is_full(self, feed: PartitionBuffer) -> bool:
        return feed.buffered >= self._buffer_rows or feed.buffered_bytes >= self._buffer_bytes

    @property
    def buffered_rows(self) -> int:
        return sum(self.buffered.values())

    @property
    def buffered(self) -> dict[Partition, int]:
        """Number of rows that are held of each partition."""
        return {partition: feed.buffered for partition, feed in self._feeds.items()}

    def begin_at(self, positions: Positions) -> None:
        """Set the first positions of new partitions; they become part of the state, so that rows deleted before they
        were read are noticed even in a partition that never brought any."""
        for partition, position in positions.items():
            feed = self._feed(partition)
            feed.next_position = position if feed.next_position is None else feed.next_position

    def positions(self) -> Positions:
        """Positions after the last popped row; before the first one, the partition's beginning."""
        return {p: feed.next_position for p, feed in self._feeds.items() if feed.next_position is not None}

    def state(self) -> dict[str, Any]:
        """The state as JSON. Buffered rows are not part of it: they are read again from `positions`."""
        return {
            "watermark_ms": self.watermark_ms,
            "next_order": self._next_order,
            "partitions": [
                [*partition, *feed.next_position, feed.popped_max]
                for partition, feed in self._feeds.items()
                if feed.next_position is not None
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` on a new Merge. Raises BadInput for a partition that is not merged here."""
        self.watermark_ms, self._next_order = state["watermark_ms"], state["next_order"]
        for topic, partition, offset, row, running_max in state["partitions"]:
            feed = self._feed(Partition(topic, partition))
            feed.next_position = SourcePosition(offset, row)
            feed.running_max = feed.popped_max = running_max

    def _feed(self, partition: Partition) -> PartitionBuffer:
        if partition not in self._feeds:
            partitions = ", ".join(f"{topic}/{number}" for topic, number in self._feeds)
            raise BadInput(
                f"{partition.topic}/{partition.partition} is not merged here; the partitions are {partitions}"
            )
        return self._feeds[partition]

    def _bounds(self) -> list[int]:
        """For every feed, the key time before which its rows may leave. No partition waits for itself: what follows in
        it, also at the same key time, comes later in the order. So thousands of rows that do not move event time on,
        dead letters for instance, need not be held."""
        waiting = [END_OF_TIME if feed.ended or feed.idle else feed.running_max for feed in self._feeds.values()]
        bounds = []
        for place in range(len(waiting)):
            before, after = min(waiting[:place], default=END_OF_TIME), min(waiting[place + 1 :], default=END_OF_TIME)
            bounds.append(min(before, after if after == END_OF_TIME else after + 1))
        return bounds

    def _bound(self) -> int:
        return min((f.running_max for f in self._feeds.values() if not (f.ended or f.idle)), default=END_OF_TIME)

    def _bounded(
        self, feed: PartitionBuffer, batch: pa.RecordBatch, refused: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows without those whose event time is no time of theirs, which join the refused."""
        event, recorded = integers_of(batch, "event_time_ms"), integers_of(batch, "record_time_ms")
        now_ms = None if self._now_ms is None else self._now_ms()
        seconds = in_seconds(event, recorded, now_ms)
        if NO_TIME < feed.running_max < FIRST_EVENT_TIME_MS:
            seconds[:] = False  # times of this stream count from the start of a log
        parts = [refused]
        if seconds.any():
            words = "milliseconds since 1970 needed"
            details = [f"event time is {ms}; {words}{unit_hint(ms)}" for ms in event[seconds].tolist()]
            parts.append(refuse_rows(batch.filter(pa.array(seconds)), feed.kind, "bad_event_time", details))
        wrong = seconds
        if self._skew_ms is not None:
            ahead = ahead_ms(event, recorded, now_ms)
            if (future := (ahead > self._skew_ms) & ~seconds).any():
                parts.append(self._refuse_future(feed.kind, batch.filter(pa.array(future)), ahead[future]))
            wrong = seconds | future
            self._doubt(batch, event, recorded, ~believed(recorded, event, now_ms) & (recorded >= 0) & ~wrong)
        return (batch.filter(pa.array(~wrong)), pa.concat_batches(parts)) if wrong.any() else (batch, refused)

    def _doubt(self, batch: pa.RecordBatch, event: np.ndarray, recorded: np.ndarray, doubtful: np.ndarray) -> None:
        """Name the first record whose timestamp is not believed."""
        if "record_times" in self.warnings or not doubtful.any():
            return
        row = int(np.flatnonzero(doubtful)[0])
        topic, partition, offset = (batch.column(field.name)[row].as_py() for field in POSITION_FIELDS[:3])
        self.warnings["record_times"] = (
            f"timestamps of records cannot be right, first in {topic}/{partition} at offset {offset:,}: the record has "
            f"{recorded[row]} (ms since 1970), its event time is {event[row]}. Such timestamps count as none, and rows "
            "are taken by their event times; have the producer or mirror set them in milliseconds, or the broker "
            "(message.timestamp.type=LogAppendTime)"
        )

    def _refuse_future(self, kind: Kind, batch: pa.RecordBatch, ahead_ms: np.ndarray) -> pa.RecordBatch:
        clock = "the record's timestamp" + ("" if self._now_ms is None else " or of the clock")
        words = f"ms ahead of {clock}; allowed: {self._skew_ms} (settlement.max_future_skew_s)"
        return refuse_rows(batch, kind, "in_the_future", [f"event time is {ms} {words}" for ms in ahead_ms])

    def _sorted(self, name: Destination, parts: list[tuple[KeyedRows, np.ndarray]]) -> pa.RecordBatch:
        schema = self._schemas[name]
        if not parts:
            return _empty(schema)
        batch = pa.concat_batches([rows.batch for rows, _ in parts])
        keys, order = np.concatenate([rows.keys for rows, _ in parts]), np.concatenate([order for _, order in parts])
        if (np.diff(order) < 0).any():
            in_order = np.argsort(order, kind="stable")
            batch, keys, order = batch.take(pa.array(in_order)), keys[in_order], order[in_order]
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(keys), pa.array(order)], schema=schema)


def set_back(state: Mapping[str, Any], to_ms: int) -> dict[str, Any]:
    """A `Merge.state` with event time moved back to `to_ms` if it was beyond.

    >>> set_back({"watermark_ms": 90, "next_order": 7, "partitions": [["ads", 0, 12, 0, 90]]}, 50)["partitions"]
    [['ads', 0, 12, 0, 50]]
    """
    partitions = [[*place, min(running_max, to_ms)] for *place, running_max in state["partitions"]]
    return {**state, "watermark_ms": min(state["watermark_ms"], to_ms), "partitions": partitions}


def with_partitions(state: Mapping[str, Any], added: Collection[Partition]) -> dict[str, Any]:
    """A `Merge.state` with new partitions: read from their first offset on, and waited for. Their rows are keyed where
    the merge stands, as those of a partition that was idle are.

    >>> state = {"watermark_ms": 90, "next_order": 7, "partitions": [["ads", 0, 12, 0, 90]]}
    >>> with_partitions(state, [Partition("ads", 1)])["partitions"]
    [['ads', 0, 12, 0, 90], ['ads', 1, 0, 0, -1]]
    """
    existing = {(topic, number) for topic, number, *_ in state["partitions"]}
    begun = [[*partition, *SourcePosition(0), NO_TIME] for partition in added if partition not in existing]
    return {**state, "partitions": [*state["partitions"], *begun]}


def _from(rows: pa.RecordBatch, position: SourcePosition) -> pa.RecordBatch:
    """The rows that do not precede `position`."""
    offset, row = integers_of(rows, "source_offset"), integers_of(rows, "source_row")
    new = (offset > position.offset) | ((offset == position.offset) & (row >= position.row))
    return rows if new.all() else rows.filter(pa.array(new))


def _key_times(batch: pa.RecordBatch, refused: pa.RecordBatch, *, earliest: int) -> tuple[np.ndarray, np.ndarray]:
    """Key times of both: the running maximum of event time, to which a refused row adds nothing."""
    times = integers_of(batch, "event_time_ms")
    if not refused.num_rows:
        return np.maximum(np.maximum.accumulate(times), earliest), np.empty(0, np.int64)
    offset, row = (
        np.concatenate([integers_of(part, name) for part in (batch, refused)])
        for name in ("source_offset", "source_row")
    )
    in_order = np.lexsort((row, offset))  # the last key sorts first: by offset, then by row
    times = np.concatenate([times, np.full(refused.num_rows, NO_TIME)])
    keys = np.empty(len(times), np.int64)
    keys[in_order] = np.maximum(np.maximum.accumulate(times[in_order]), earliest)
    return keys[: batch.num_rows], keys[batch.num_rows :]


def _in_merged_order(taken: list[list[tuple[Destination, KeyedRows]]], keys: np.ndarray) -> np.ndarray:
    """Sorts the rows of all feeds, in (topic, partition) order, by (key, topic, partition, offset, row)."""
    if not any(destination == "dead" for parts in taken for destination, _ in parts):
        return np.argsort(keys, kind="stable")  # rows of one feed lie in (offset, row) order already
    feed = np.repeat(np.arange(len(taken)), [sum(len(rows.keys) for _, rows in parts) for parts in taken])
    batches = [rows.batch for parts in taken for _, rows in parts]
    offset, row = (np.concatenate([integers_of(b, name) for b in batches]) for name in ("source_offset", "source_row"))
    return np.lexsort((row, offset, feed, keys))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def integers_of(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A column as int64."""
    return batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


class KeyedRows(NamedTuple):
    """Rows of one partition in (offset, row) order, with their key times, which ascend."""

    keys: np.ndarray
    batch: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.batch.nbytes)

    def slice(self, start: int, stop: int) -> KeyedRows:
        return KeyedRows(self.keys[start:stop], self.batch.slice(start, stop - start))

    def position(self, at: int) -> SourcePosition:
        return SourcePosition(self.batch["source_offset"][at].as_py(), self.batch["source_row"][at].as_py())


class RowQueue:
    """Queue of one partition's rows, push by push: the accepted or the refused ones."""

    def __init__(self) -> None:
        self._pushes: deque[KeyedRows] = deque()
        self.nbytes = 0

    def append(self, rows: KeyedRows) -> None:
        if len(rows.keys):
            self._pushes.append(rows)
            self.nbytes += rows.nbytes

    def take(self, bound: int) -> list[KeyedRows]:
        """Remove the rows whose key time is below `bound`."""
        taken = []
        while self._pushes:
            rows = self._pushes[0]
            if not (stop := int(np.searchsorted(rows.keys, bound))):
                break
            self._pushes.popleft()
            self.nbytes -= rows.nbytes
            taken.append(rows.slice(0, stop))
            if stop < len(rows.keys):
                rest = rows.slice(stop, len(rows.keys))
                self._pushes.appendleft(rest)
                self.nbytes += rest.nbytes
                break
        return taken

    @property
    def first_key(self) -> int | None:
        return int(self._pushes[0].keys[0]) if self._pushes else None

    @property
    def next_offset(self) -> int | None:
        return self._pushes[0].position(0).offset if self._pushes else None


@dataclass
class PartitionBuffer:
    """State of one partition: buffered rows, and its known event time."""

    kind: Kind
    running_max: int = NO_TIME
    popped_max: int = NO_TIME
    next_position: SourcePosition | None = None
    buffered: int = 0
    idle: bool = False
    ended: bool = False
    accepted: RowQueue = field(default_factory=RowQueue)
    refused: RowQueue = field(default_factory=RowQueue)

    @property
    def first_key(self) -> int | None:
        """Key time of the oldest buffered row."""
        keys = [key for queue in (self.accepted, self.refused) if (key := queue.first_key) is not None]
        return min(keys, default=None)

    @property
    def buffered_bytes(self) -> int:
        return self.accepted.nbytes + self.refused.nbytes

    def push(self, keys: np.ndarray, batch: pa.RecordBatch, refused_keys: np.ndarray, refused: pa.RecordBatch) -> None:
        self.accepted.append(KeyedRows(keys, batch))
        self.refused.append(KeyedRows(refused_keys, refused))
        self.running_max = max(int(part[-1]) for part in (keys, refused_keys) if len(part))
        self.buffered += len(keys) + len(refused_keys)
        self.idle = False

    def take(self, bound: int) -> list[tuple[Destination, KeyedRows]]:
        """Remove every buffered row whose key time is below `bound`, and advance the position past them."""
        accepted, refused = self.accepted.take(bound), self.refused.take(bound)
        ends = [rows[-1] for rows in (accepted, refused) if rows]
        if ends:
            self.popped_max = max(int(rows.keys[-1]) for rows in ends)
            last = max(rows.position(-1) for rows in ends)
            # Messages are pushed whole: the rest of this one, if any, is at the front of a queue.
            rest = last.offset in (self.accepted.next_offset, self.refused.next_offset)
            self.next_position = SourcePosition(last.offset, last.row + 1) if rest else SourcePosition(last.offset + 1)
            self.buffered -= sum(len(rows.keys) for rows in (*accepted, *refused))
        return [*((self.kind, rows) for rows in accepted), *(("dead", rows) for rows in refused)]
