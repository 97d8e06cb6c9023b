"""Many partitions of two topics, one deterministic order.

The key of a row is (the running maximum of event time in its partition, topic, partition, offset, row). It is a
function of the recorded stream alone, so the merged sequence does not depend on how reads were cut. A row may leave
once no other partition can still bring an earlier key:

    key time  <  min over partitions that are neither ended nor idle of their last running maximum

Refused rows (undecodable, or with an event time beyond the allowed skew) take the key of the row before them and leave
in the same order, so that positions and counts cover them, but never move event time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from streaming.errors import BadInput, StreamingError
from streaming.messages import DeadLetter, Kind
from streaming.position import Partition, Positions, SourcePosition
from streaming.schema import POSITION_FIELDS, RowSchema

NO_TIME = -1
"""Event time before the first row; valid event times are not negative."""

END_OF_TIME = int(np.iinfo(np.int64).max)

MERGE_FIELDS = (pa.field("key_time_ms", pa.int64(), nullable=False), pa.field("order", pa.int64(), nullable=False))

_KINDS: tuple[Kind, Kind] = ("impression", "feedback")


def merged_schema(schema: RowSchema, kind: Kind) -> pa.Schema:
    """Rows of one kind as they leave the merge: as received, with position, key time and place in the merged order."""
    received = schema.impression if kind == "impression" else schema.feedback
    return pa.schema([*received, *POSITION_FIELDS, *MERGE_FIELDS])


def refuse(batch: pa.RecordBatch, kind: Kind, reason: str, details: Sequence[str]) -> list[DeadLetter]:
    """One dead letter per row of `batch` (its positions in POSITION_FIELDS); the payload is the row as JSON."""
    names = [name for name in batch.schema.names if not name.startswith("source_")]
    rows = batch.select(names).to_pylist()
    positions = (batch.column(f.name).to_pylist() for f in POSITION_FIELDS)
    return [
        DeadLetter(kind, reason, topic, partition, offset, row, detail, json.dumps(payload).encode())
        for topic, partition, offset, row, detail, payload in zip(*positions, details, rows, strict=True)
    ]


@dataclass(frozen=True)
class MergedChunk:
    """Consecutive rows of the merged order, by kind (`merged_schema`), each kind sorted by `order`.

    `watermark_ms` is the largest key time popped so far. `dead` are the refused rows among them, in merged order, with
    the key times and places they took.
    """

    impressions: pa.RecordBatch
    feedback: pa.RecordBatch
    watermark_ms: int
    dead: tuple[DeadLetter, ...] = ()
    dead_key_time_ms: tuple[int, ...] = ()
    dead_order: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.impressions.num_rows + self.feedback.num_rows + len(self.dead)


@dataclass
class _Piece:
    """Buffered rows of one push; `alive` is None when none of them is refused, else their mask."""

    keys: np.ndarray
    offsets: np.ndarray
    rows: np.ndarray
    alive: np.ndarray | None
    batch: pa.RecordBatch
    dead: Sequence[DeadLetter]
    start: int = 0

    def take(self, stop: int) -> _Piece:
        """Cut rows [start, stop) off the front."""
        cut = slice(self.start, stop)
        alive = None if self.alive is None else self.alive[cut]
        count = stop - self.start if alive is None else int(alive.sum())
        refused = self.dead[: stop - self.start - count]
        front = _Piece(self.keys[cut], self.offsets[cut], self.rows[cut], alive, self.batch.slice(0, count), refused)
        self.batch, self.dead, self.start = self.batch.slice(count), self.dead[len(refused) :], stop
        return front


@dataclass
class _Feed:
    """One partition: what is buffered, and how far its event time is known."""

    kind: Kind
    running_max: int = NO_TIME
    popped_max: int = NO_TIME
    next_position: SourcePosition | None = None
    buffered: int = 0
    idle: bool = False
    ended: bool = False
    pieces: deque[_Piece] = field(default_factory=deque)

    def take(self, bound: int) -> list[_Piece]:
        """Cut off every buffered row whose key time is below `bound`."""
        taken: list[_Piece] = []
        whole = True
        while self.pieces:
            piece = self.pieces[0]
            stop = int(np.searchsorted(piece.keys, bound))
            if stop <= piece.start:
                break
            # Messages are pushed whole: what follows in a piece tells whether its last one was taken to its end.
            whole = stop == len(piece.keys) or piece.offsets[stop] != piece.offsets[stop - 1]
            taken.append(piece.take(stop))
            if stop < len(piece.keys):
                break
            self.pieces.popleft()
        if taken:
            last = taken[-1]
            self.popped_max = int(last.keys[-1])
            offset, row = int(last.offsets[-1]), int(last.rows[-1])
            self.next_position = SourcePosition(offset + 1) if whole else SourcePosition(offset, row + 1)
            self.buffered -= sum(len(piece.keys) for piece in taken)
        return taken


class Merge:
    """Merges partitions into one order; `push` what was read, `pop` what is safe.

    partitions: every partition that takes part, with the kind of its rows. All are waited for from the start.
    max_future_skew_s: rows whose event time lies further beyond their record's timestamp are refused
    (`future_event_time`), so that one wrong clock cannot close everyone's windows; None lets them pass.
    buffer_rows: rows held for one partition while another is waited for; see `wants`.

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
        buffer_rows: int = 65_536,
    ) -> None:
        self._schemas = {kind: merged_schema(schema, kind) for kind in _KINDS}
        self._received = {k: pa.schema(list(s)[: -len(MERGE_FIELDS)]) for k, s in self._schemas.items()}
        self._feeds = {partition: _Feed(partitions[partition]) for partition in sorted(partitions)}
        self._skew_ms = None if max_future_skew_s is None else round(max_future_skew_s * 1000)
        self._buffer_rows = buffer_rows
        self._next_order = 0
        self.watermark_ms = NO_TIME

    def push(self, partition: Partition, batch: pa.RecordBatch, dead: Sequence[DeadLetter] = ()) -> None:
        """Take rows read from `partition`: the columns of its kind, POSITION_FIELDS and `record_time_ms`, in (offset,
        row) order, and the dead letters found while decoding them.

        Rows before the position restored to are skipped, so a reader may seek to the message and push all of it.
        Raises StreamingError when the partition has ended.
        """
        feed = self._feed(partition)
        offsets, rows = _numpy(batch, "source_offset"), _numpy(batch, "source_row")
        if feed.next_position is not None:
            done = feed.next_position
            new = (offsets > done.offset) | ((offsets == done.offset) & (rows >= done.row))
            if not new.all():
                batch, offsets, rows = batch.filter(pa.array(new)), offsets[new], rows[new]
            dead = [letter for letter in dead if (letter.offset, letter.row) >= done]
        if not batch.num_rows and not dead:
            return
        if feed.ended:
            raise StreamingError(
                f"{partition.topic}/{partition.partition} was declared ended after "
                f"{feed.next_position or 'no rows'}, and brings {batch.num_rows + len(dead)} more rows; "
                "write them to a new topic, or start a run that reads beyond the end marker"
            )
        future = self._beyond_skew(batch)
        if future is not None:
            dead = [*dead, *self._refuse_future(feed.kind, batch.filter(pa.array(future)))]
            batch, offsets, rows = batch.filter(pa.array(~future)), offsets[~future], rows[~future]
        times, alive = _numpy(batch, "event_time_ms"), None
        if dead:
            offsets = np.concatenate([offsets, np.array([letter.offset for letter in dead], np.int64)])
            rows = np.concatenate([rows, np.array([letter.row for letter in dead], np.int64)])
            in_place = np.lexsort((rows, offsets))
            alive = in_place < batch.num_rows
            dead = [dead[i] for i in in_place[~alive] - batch.num_rows]
            times = np.concatenate([times, np.full(len(dead), NO_TIME)])[in_place]
            offsets, rows = offsets[in_place], rows[in_place]
        # A partition that was idle may come back behind the others: its rows are keyed where the merge stands.
        keys = np.maximum(np.maximum.accumulate(times), max(feed.running_max, self.watermark_ms))
        received = self._received[feed.kind]
        batch = pa.RecordBatch.from_arrays([batch.column(name) for name in received.names], schema=received)
        feed.pieces.append(_Piece(keys, offsets, rows, alive, batch, dead))
        feed.running_max, feed.idle = int(keys[-1]), False
        feed.buffered += len(keys)

    def mark_ended(self, partition: Partition) -> None:
        """No row follows: the partition is waited for no longer."""
        self._feed(partition).ended = True

    def mark_idle(self, partition: Partition) -> None:
        """The partition is waited for no longer, until it brings rows. Only for one known to stand at its end."""
        self._feed(partition).idle = True

    def mark_awaited(self, partition: Partition) -> None:
        """The partition is idle no longer, although it brought no rows."""
        self._feed(partition).idle = False

    @property
    def partitions(self) -> list[Partition]:
        return list(self._feeds)

    def pop(self) -> MergedChunk | None:
        """The longest run of rows that no partition can precede any more; None when there is none."""
        bound = self._bound()
        taken = [(feed.kind, piece) for feed in self._feeds.values() for piece in feed.take(bound)]
        if not taken:
            return None
        # Feeds stand in (topic, partition) order and their rows in (offset, row) order: a stable sort does the rest.
        keys = np.concatenate([piece.keys for _, piece in taken])
        in_order = np.argsort(keys, kind="stable")
        order = np.empty(len(keys), np.int64)
        order[in_order] = np.arange(self._next_order, self._next_order + len(keys))
        self._next_order += len(keys)
        self.watermark_ms = max(self.watermark_ms, int(keys[in_order[-1]]))

        parts: dict[Kind, list[tuple[pa.RecordBatch, np.ndarray, np.ndarray]]] = {kind: [] for kind in _KINDS}
        dead: list[tuple[int, int, DeadLetter]] = []
        at = 0
        for kind, piece in taken:
            places = order[at : at + len(piece.keys)]
            at += len(piece.keys)
            if piece.alive is None:
                parts[kind].append((piece.batch, piece.keys, places))
            else:
                parts[kind].append((piece.batch, piece.keys[piece.alive], places[piece.alive]))
                refused = zip(places[~piece.alive].tolist(), piece.keys[~piece.alive].tolist(), piece.dead, strict=True)
                dead.extend(refused)
        dead.sort(key=lambda letter: letter[0])
        return MergedChunk(
            impressions=self._in_order("impression", parts["impression"]),
            feedback=self._in_order("feedback", parts["feedback"]),
            watermark_ms=self.watermark_ms,
            dead=tuple(letter for _, _, letter in dead),
            dead_key_time_ms=tuple(key for _, key, _ in dead),
            dead_order=tuple(place for place, _, _ in dead),
        )

    @property
    def finished(self) -> bool:
        """Every partition has ended and everything was popped."""
        return all(feed.ended and not feed.buffered for feed in self._feeds.values())

    def held_by(self) -> list[Partition]:
        """The partitions that event time waits for: those whose last running maximum is the lowest."""
        bound = self._bound()
        return [p for p, feed in self._feeds.items() if not (feed.ended or feed.idle) and feed.running_max == bound]

    def wants(self, partition: Partition) -> bool:
        """Whether to read more of `partition`: not while its buffer is full and another one holds event time up."""
        return self._feed(partition).buffered < self._buffer_rows or partition in self.held_by()

    @property
    def buffered_rows(self) -> int:
        return sum(feed.buffered for feed in self._feeds.values())

    def begin_at(self, positions: Positions) -> None:
        """Where partitions begin of which nothing is known yet: part of the state from then on, so that rows deleted
        before they were read are missed even in a partition of which none was ever popped."""
        for partition, position in positions.items():
            feed = self._feed(partition)
            feed.next_position = position if feed.next_position is None else feed.next_position

    def positions(self) -> Positions:
        """Where to read on after the last popped row; before the first one, where the partition began."""
        return {p: feed.next_position for p, feed in self._feeds.items() if feed.next_position is not None}

    def state(self) -> dict[str, Any]:
        """All that has to survive, as JSON. Buffered rows are not part of it: they are read again from `positions`."""
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
        """Continue on a new Merge where `state` was taken. Raises BadInput for a partition that is not merged here."""
        self.watermark_ms, self._next_order = state["watermark_ms"], state["next_order"]
        for topic, partition, offset, row, running_max in state["partitions"]:
            feed = self._feed(Partition(topic, partition))
            feed.next_position = SourcePosition(offset, row)
            feed.running_max = feed.popped_max = running_max

    def _feed(self, partition: Partition) -> _Feed:
        if partition not in self._feeds:
            known = ", ".join(f"{topic}/{number}" for topic, number in self._feeds)
            raise BadInput(f"{partition.topic}/{partition.partition} is not merged here; the partitions are {known}")
        return self._feeds[partition]

    def _bound(self) -> int:
        return min((f.running_max for f in self._feeds.values() if not (f.ended or f.idle)), default=END_OF_TIME)

    def _beyond_skew(self, batch: pa.RecordBatch) -> np.ndarray | None:
        if self._skew_ms is None:
            return None
        recorded = _numpy(batch, "record_time_ms")
        future = (_numpy(batch, "event_time_ms") > recorded + self._skew_ms) & (recorded >= 0)  # -1: no timestamp
        return future if future.any() else None

    def _refuse_future(self, kind: Kind, batch: pa.RecordBatch) -> list[DeadLetter]:
        ahead = _numpy(batch, "event_time_ms") - _numpy(batch, "record_time_ms")
        details = [f"event time is {ms} ms ahead of the record's timestamp; allowed: {self._skew_ms}" for ms in ahead]
        return refuse(batch, kind, "future_event_time", details)

    def _in_order(self, kind: Kind, parts: list[tuple[pa.RecordBatch, np.ndarray, np.ndarray]]) -> pa.RecordBatch:
        schema = self._schemas[kind]
        if not parts:
            return _empty(schema)
        batch = pa.concat_batches([part[0] for part in parts])
        keys, order = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        if (np.diff(order) < 0).any():
            in_order = np.argsort(order, kind="stable")
            batch, keys, order = batch.take(pa.array(in_order)), keys[in_order], order[in_order]
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(keys), pa.array(order)], schema=schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _numpy(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
