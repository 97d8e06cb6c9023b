"""Intake of both input topics: read, decode and merge into one deterministic order.

    partitions --poll--> messages --codec--> rows and dead letters --merge--> chunks

Event time is held up by the slowest partition; the others are read ahead no further than their buffers allow. A
partition is idle, and waited for no longer, only while the broker confirms that we stand at its end:

    it does so for `idle_s`, and then again each time that others have brought rows, after those were read:
    whatever was written before those rows is then seen before they move event time
    while the broker does not answer, no partition becomes idle, and those that were are waited for again for `idle_s`
    from its return: that is how long producers have to send what they held back
    an outage that begins and ends while nothing is read, because a block is published, is not met here: a caller that
    was busy for `UNSEEN_S` has all partitions waited for again (`await_all`)

Otherwise windows would close before feedback that is already there, or on its way, and their labels would become 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from streaming.errors import DataLost
from streaming.intake.account import OffsetAccounts
from streaming.intake.merge import BUFFER_BYTES, END_OF_TIME, Front, Merge, MergedChunk
from streaming.messages.codecs import CodecName, make_codec
from streaming.messages.dead_letters import Kind
from streaming.messages.ipc import MAX_MESSAGE_BYTES
from streaming.messages.limits import Limits
from streaming.messages.message import Envelope, RawMessage, by_partition
from streaming.messages.source import EndOfStream, MessageSource, Source
from streaming.position import Partition, Positions, SourcePosition, names_of
from streaming.schema import RowSchema

Watch = Callable[[str], AbstractContextManager[None]]

LAG_EVERY_S = 1.0
LOOK_EVERY_S = 0.1  # for idle partitions
HELD_S = 5.0  # rows that wait for a partition for less are no news
UNSEEN_S = 2.0
"""A caller that waited for so long between two reads may have waited for a broker that was away."""


@dataclass(frozen=True)
class InputTopic:
    topic: str
    partitions: int
    codec: CodecName
    kind: Kind
    avro_schemas: Mapping[int, Mapping[str, Any]] | None = None
    unwrap: Envelope | None = None
    id_of_key: bool = False
    only: range | None = None
    """Numbers of the partitions that are read here; None: all."""

    @property
    def all(self) -> list[Partition]:
        numbers = range(self.partitions) if self.only is None else self.only
        return [Partition(self.topic, number) for number in numbers]


class AwaitedRows(NamedTuple):
    """Rows that were read and wait for partitions.

    >>> print(AwaitedRows(70, 9.0, ["clicks/0 (empty)"], idle_s=None).words)
    70 rows were read and wait for the next of clicks/0 (empty). In lockstep every partition is waited for until it ...
    """

    rows: int
    waited_s: float
    names: list[str]
    idle_s: float | None

    @property
    def words(self) -> str | None:
        """A sentence about them; None if none wait."""
        if not self.rows or not self.names:
            return None
        passed = (
            "In lockstep every partition is waited for until it ends: send to it, write its end marker, or use "
            "pace.mode=free"
            if self.idle_s is None
            else f"One that stands at its end is passed over after {self.idle_s:g} s (augmentation.idle_s)"
        )
        return f"{self.rows:,} rows were read and wait for the next of {', '.join(self.names)}. {passed}"

    @property
    def note(self) -> str | None:
        """`words`, once they are news."""
        return self.words if self.waited_s >= HELD_S else None


class Intake(Source[dict[str, Any], MergedChunk]):
    """Merged chunks of the input topics. Its position is a small JSON object: after the last row handed out.

    source  reads every partition of `topics`
    idle_s  None: no partition is ever idle, and the sequence of rows is a function of the topics alone (lockstep)
    now_ms  wall time, where it bounds event times (Merge)
    watch   is called with the name of each phase: merge, poll and in it `wait for messages`, decode
    """

    def __init__(
        self,
        schema: RowSchema,
        source: MessageSource,
        topics: list[InputTopic],
        *,
        buffer_rows: int,
        buffer_bytes: int = BUFFER_BYTES,
        idle_s: float | None,
        max_future_skew_s: float | None = None,
        now_ms: Callable[[], int] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        limits: Limits = Limits(),
        watch: Watch = lambda phase: nullcontext(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._codecs = {
            t.topic: make_codec(
                t.codec,
                t.kind,
                schema,
                max_message_bytes=max_message_bytes,
                limits=limits,
                grows=True,
                avro_schemas=t.avro_schemas,
                unwrap=t.unwrap,
                id_of_key=t.id_of_key,
            )
            for t in topics
        }
        kinds = {partition: t.kind for t in topics for partition in t.all}
        self._new_merge = partial(
            Merge,
            schema,
            kinds,
            max_future_skew_s=max_future_skew_s,
            now_ms=now_ms,
            buffer_rows=buffer_rows,
            buffer_bytes=buffer_bytes,
        )
        self._merge = self._new_merge()
        self._accounts, self._accounts_ended = OffsetAccounts(kinds), False
        self._source, self._epochs = source, LeaderEpochs()
        self._idle_s = idle_s
        self._idle: set[Partition] = set()
        self._at_end_since: dict[Partition, float] = {}
        self._looked_at = -LOOK_EVERY_S
        self._held_since: float | None = None  # rows were read, and wait for a partition
        self._watch, self._clock = watch, clock
        self._rows_per_message = 1.0
        self._lag: tuple[float, dict[str, int]] = (-LAG_EVERY_S, {})

    def open(self, position: dict[str, Any] | None = None, *, rows_before: Mapping[Kind, int] | None = None) -> None:
        """Start from the beginning, or from `position`. `rows_before`: how many rows of each kind lie before a
        position of a release that kept no accounts."""
        if position is not None:
            self._restore(position)
        self._source.open(self._messages())
        self._merge.begin_at(self._source.position())
        self._accounts.open((position or {}).get("accounts"), self._merge.positions(), rows_before)
        self._look_for_ends()

    def seek(self, position: dict[str, Any]) -> None:
        self._merge = self._new_merge()
        self._accounts_ended = False
        self._idle.clear()
        self._at_end_since.clear()
        self._restore(position)
        self._accounts.open(position["accounts"], self._merge.positions())
        self._source.seek(self._messages())
        self._look_for_ends()

    def _restore(self, position: dict[str, Any]) -> None:
        self._merge.restore(position)
        self._epochs.restore(position["epochs"], self._merge.positions())
        self._source.expect(self._epochs.newest)

    def _messages(self) -> Positions:
        return {p: SourcePosition(position.offset) for p, position in self._merge.positions().items()}

    def position(self) -> dict[str, Any]:
        self._account()
        return self._merge.state() | {"accounts": self._accounts.state(), "epochs": self._epochs.state()}

    def offsets(self, kind: Kind) -> dict[str, int]:
        """Counts of a kind's offsets up to the position; see `OffsetAccounts`."""
        self._account()
        return self._accounts.counts(kind)

    def check_accounts(self, rows_read: Mapping[Kind, int]) -> None:
        """Raise DataLost unless the messages up to the position hold exactly the counted rows."""
        self._account()
        self._accounts.check(rows_read)

    def _account(self) -> None:
        self._accounts.move_to(self._merge.positions())
        if self._merge.finished and not self._accounts_ended:
            self._accounts_ended = True
            for partition, at in self._source.position().items():
                self._accounts.end(partition, at.offset, marked=partition in self._source.marked)

    @property
    def watermark_ms(self) -> int:
        return self._merge.watermark_ms

    @property
    def warnings(self) -> dict[str, str]:
        """Warnings about rows that were accepted nevertheless, a sentence for each kind."""
        return self._merge.warnings

    @property
    def note(self) -> str | None:
        """Reason why no rows arrive; None if simply none were sent."""
        if not self._source.reachable:
            return "the broker does not answer; event time stands still"
        if undecided := self._source.undecided:
            return f"event time waits for the end of open transactions on {names_of(undecided)}"
        return None

    @property
    def held(self) -> AwaitedRows:
        """The buffered rows, and what they wait for."""
        waited_for, empty = sorted(self._merge.held_by()), set(self._merge.empty())
        names = [f"{names_of([p])}{' (empty)' if p in empty else ''}" for p in waited_for]
        since = 0.0 if self._held_since is None else self._clock() - self._held_since
        return AwaitedRows(self._merge.buffered_rows, since, names, self._idle_s)

    def next_batch(self, max_wait_s: float = 0.05) -> MergedChunk | None:
        """The next rows of the merged order, from the buffer or else by reading. Raises NewColumns where what was
        read has columns that are to be kept: nothing goes on from here, open another intake for them."""
        deadline, wait_s = self._clock() + max_wait_s, max_wait_s
        while True:  # a read at least, however long the merge has taken
            with self._watch("merge"):
                chunk = self._merge.pop()
            if chunk is not None:
                self._held_since = None
                return chunk
            if self._merge.finished:
                raise EndOfStream
            if wait_s < 0 or not self.read(wait_s):
                with self._watch("merge"):
                    chunk = self._merge.pop()
                held = chunk is None and self._merge.buffered_rows > 0
                self._held_since = (self._held_since or self._clock()) if held else None
                return chunk
            wait_s = deadline - self._clock()

    @property
    def front(self) -> Front:
        """Place that the partitions have reached."""
        return self._merge.front

    @property
    def finished(self) -> bool:
        """True if every partition has ended and every row was handed out."""
        return self._merge.finished

    def pop_to(self, cut: int) -> MergedChunk:
        """`Merge.pop_to`."""
        with self._watch("merge"):
            return self._merge.pop_to(cut)

    def confirm_idle(self) -> None:
        """Look again whether idle partitions stand at their end: others have brought rows elsewhere."""
        for partition in self._idle - self._at_end(self._idle, max_age_s=0.0):
            self._await(partition)

    def read(self, max_wait_s: float, slowest: int = END_OF_TIME) -> bool:
        """Take what the source has, as far as the buffers allow; False when there was nothing. `slowest`: the key time
        that the slowest partition has reached, of those too that others read."""
        self._merge.slowest = slowest
        wanted = {p for p in self._source.partitions if p not in self._source.ended and self._merge.wants(p)}
        if not wanted:
            return False
        with self._watch("poll"), self._watch("wait for messages"):
            by_source = by_partition(self._source.next_batch(max_wait_s, only=wanted) or [])
        for partition, messages in by_source.items():
            with self._watch("decode"):
                self._push(partition, messages)
        with self._watch("poll"):
            self._look_for_ends()
            self._look_for_idle(wanted.difference(by_source), rows_came=bool(by_source))
        return bool(by_source)

    def _push(self, partition: Partition, messages: list[RawMessage]) -> None:
        self._epochs.read(partition, messages)
        decoded = self._codecs[partition.topic].decode(messages)
        rows = decoded.batch.num_rows + len(decoded.dead)
        self._rows_per_message += 0.1 * (rows / len(messages) - self._rows_per_message)
        self._accounts.read(partition, messages, decoded)
        self._merge.push(partition, decoded.batch, decoded.dead)
        self._await(partition)

    def _look_for_ends(self) -> None:
        for partition in self._source.ended:
            self._merge.mark_ended(partition)

    def _look_for_idle(self, silent: set[Partition], *, rows_came: bool) -> None:
        """All silent partitions at once: those behind one another in event time do not wait for one another."""
        if self._idle_s is None:
            return
        if rows_came and self._idle:
            self.confirm_idle()
        now = self._clock()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            silent = silent - self._idle - set(self._source.ended)
            due = {p for p in silent if now - self._at_end_since.get(p, now) >= self._idle_s}
            # To become idle takes a new answer: rows of other partitions were read since the last, and wait.
            at_end = self._at_end(silent, max_age_s=0.0) if due else self._at_end(silent)
            now = self._clock()  # the answer may have taken its time, and the broker may have been away until then
            for partition in silent:
                if partition not in at_end:
                    self._at_end_since.pop(partition, None)
                elif partition in due:
                    self._merge.mark_idle(partition)
                    self._idle.add(partition)
                else:
                    self._at_end_since.setdefault(partition, now)
        if not self._source.reachable:
            self.await_all()

    def await_all(self) -> None:
        """Wait for every partition again: the broker was away, or may have been, and producers hold rows back."""
        for partition in self._merge.partitions:
            self._await(partition)

    def _at_end(self, partitions: set[Partition], max_age_s: float = 0.25) -> set[Partition]:
        """Partitions at their end, according to one answer of the broker for all of them."""
        ended = set()
        for partition in partitions:
            if self._source.at_end(partition, max_age_s):
                ended.add(partition)
            if not self._source.reachable:
                return set()
            max_age_s = float("inf")
        return ended

    def _await(self, partition: Partition) -> None:
        """Event time waits for the partition, which may become idle `idle_s` from its next confirmed end."""
        self._merge.mark_awaited(partition)
        self._idle.discard(partition)
        self._at_end_since.pop(partition, None)

    def lag(self) -> dict[str, int] | None:
        """Approximate number of rows still to be read of each partition, from end offsets at most a second old; None
        while the broker does not answer."""
        rows = self._known_lag
        return dict(rows) if self._source.reachable else None

    @property
    def reached_ms(self) -> dict[str, int]:
        """The latest event time of each partition that has brought a row."""
        return {names_of([partition]): at for partition, at in self._merge.reached_ms.items()}

    @property
    def known_lag_rows(self) -> int:
        """All rows still to be read, or their last known number while the broker does not answer."""
        return sum(self._known_lag.values())

    @property
    def _known_lag(self) -> dict[str, int]:
        now = self._clock()
        if now - self._lag[0] >= LAG_EVERY_S:
            behind, buffered = self._source.behind(), self._merge.buffered
            rows = {p: round(behind.get(p, 0) * self._rows_per_message) + buffered[p] for p in buffered}
            self._lag = (now, {names_of([partition]): count for partition, count in rows.items()})
        return self._lag[1]

    def show_lag(self) -> None:
        """Commit offsets for lag displays only; never read back."""
        self._source.commit_for_display(self._merge.positions())

    def close(self) -> None:
        self._source.close()
        self._accounts_ended = True
        self._lag = (math.inf, self._lag[1])  # no broker to ask any more: the last report keeps the last known value


class LeaderEpochs:
    """The highest leader epoch read of each partition, by which a restart notices replaced messages.

    After an unclean election a partition may end before what was read of it, and grow past that again: other messages
    then lie at the same offsets. Brokers count leaders (KIP-320) and know where the messages of each end. The epoch
    that was read last is stored with the positions, and the source asks for its end before it reads on.

    >>> from streaming.position import SourcePosition
    >>> epochs = LeaderEpochs()
    >>> epochs.restore([["ads", 0, 3]], {Partition("ads", 0): SourcePosition(7, 2)})
    >>> epochs.read(Partition("ads", 0), [RawMessage("ads", 0, 7, 0, None, b"x", leader_epoch=2)])
    >>> epochs.state()
    [['ads', 0, 3]]
    >>> epochs.restore([["ads", 0, 3]], {Partition("ads", 0): SourcePosition(7, 2)})
    >>> epochs.read(Partition("ads", 0), [RawMessage("ads", 0, 7, 0, None, b"y", leader_epoch=4)])
    Traceback (most recent call last):
    ...
    streaming.errors.DataLost: topic `ads`, partition 0: of the message at offset 7 the first 2 rows were read, ...
    """

    def __init__(self) -> None:
        self._newest: dict[Partition, int] = {}
        self._begun: Positions = {}

    def restore(self, state: Iterable[Sequence[Any]], positions: Positions) -> None:
        """Restore `state` at these positions."""
        self._newest = {Partition(topic, number): epoch for topic, number, epoch in state}
        self._begun = {p: at for p, at in positions.items() if at.row and p in self._newest}

    def state(self) -> list[list[Any]]:
        """The state as JSON."""
        return [[*partition, epoch] for partition, epoch in self._newest.items()]

    @property
    def newest(self) -> dict[Partition, int]:
        return dict(self._newest)

    def read(self, partition: Partition, messages: Sequence[RawMessage]) -> None:
        """Record the epoch of messages. Raises DataLost where one that was read in part before is another now: the
        broker is only asked for what lies before it."""
        begun, first = self._begun.pop(partition, None), messages[0]
        if begun and begun.offset == first.offset and first.leader_epoch > self._newest[partition]:
            raise DataLost(
                f"topic `{partition.topic}`, partition {partition.partition}: of the message at offset {begun.offset:,}"
                f" the first {begun.row:,} rows were read, and the broker has another one there now (an unclean "
                "election); start a new run"
            )
        epoch = messages[-1].leader_epoch
        if epoch >= 0:
            self._newest[partition] = max(epoch, self._newest.get(partition, epoch))
