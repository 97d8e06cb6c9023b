"""Reads messages from a topic: from the caller's positions, with a confirmed end, and an error for every gap."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from streaming.errors import BadInput, BrokerAway, DataLost, StreamingError
from streaming.kafka import patches
from streaming.kafka.client import (
    AuthorizationError,
    GroupAuthorizationFailedError,
    KafkaConsumer,
    KafkaError,
    LogTruncationError,
    OffsetAndMetadata,
    OffsetOutOfRangeError,
    RetriableError,
    TopicPartition,
    UnsupportedCodecError,
    concerned,
    connect,
    explained,
    from_kafka,
    raw_message,
    sent_nowhere,
    to_kafka,
)
from streaming.kafka.rights import Right
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import require_topics
from streaming.kafka.unpacking import FETCH_BYTES
from streaming.messages.message import RawMessage, is_end_marker
from streaming.messages.source import EndOfStream, MessageSource
from streaming.position import Partition, Positions, SourcePosition
from streaming.program import command

ALL_THAT_WAS_FETCHED = 1 << 30
ALL_THAT_IS_TO_COME = 1 << 63


class TopicReader(MessageSource):
    """Reads partitions of our choice from positions of our choice. One thread at a time.

    While the broker is away `next_batch` returns None and `reachable` is False; after `give_up_s` it raises BrokerAway.
    Offsets that retention or compaction deleted before they were read are an error, never skipped. Of transactions it
    reads what was committed, and ends are last stable offsets: nothing before them is undecided. It reads ahead at most
    32 MiB in one fetch, 4 MiB of each partition (or one message, where that is larger), 256 MiB once they are unpacked,
    and nothing of a paused partition.

    Fetched messages that were not requested yet wait here, not in the client: kafka-python 3.0 stops fetching a
    partition that is paused with some of its messages handed out, for as long as the other partitions are silent.
    """

    CONFIRM_EVERY_S = 1.0
    """A silent broker is asked for its end offsets this often: silence may mean no news, or no broker."""

    def __init__(
        self,
        settings: KafkaSettings,
        partitions: Sequence[Partition],
        *,
        group: str | None = None,
        ends: Mapping[Partition, int] | None = None,
        markers_end: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`group` names the consumer group under which `commit_for_display` shows how far we are; `ends` are offsets at
        which partitions end, for topics without end markers. Without `markers_end` an end marker is a message like
        others, and the partition continues after it.

        Raises BadInput for a topic or partition that does not exist, BrokerAway when no broker answers."""
        self.partitions = tuple(partitions)
        self.reachable = True
        self._settings, self._markers_end, self._clock = settings, markers_end, clock
        self._read = Right("Read", "topic", {partition.topic for partition in partitions})
        self._lag = None if group is None else LagDisplay(settings, group)
        self._given_ends = dict(ends or {})
        self._ended: set[Partition] = set()
        self._marked: set[Partition] = set()
        self._waiting: dict[Partition, deque[RawMessage]] = {}
        self._keys = to_kafka(partitions)
        counts = require_topics(settings, {partition.topic for partition in partitions})
        for topic, number in partitions:
            if number >= counts[topic]:
                raise BadInput(f"topic `{topic}` has no partition {number}, only 0 to {counts[topic] - 1}")
        self._consumer = _consumer(settings)
        self._consumer.assign(self._keys)
        self._transactions = TransactionRecords()
        patches.watch_transactions(self._consumer, self._transactions.add)
        self._fetches = patches.FetchBound(self._consumer, FETCH_BYTES)
        self._epochs: dict[Partition, int] = {}
        self._explained: dict[Partition, int] = {}  # what became of every offset before it is known
        self._undecided: set[Partition] = set()
        self._ends: dict[Partition, int] = {}
        self._ends_at = float("-inf")
        self._answered_at = self._away_since = clock()

    def expect(self, epochs: Mapping[Partition, int]) -> None:
        self._epochs = dict(epochs)

    def open(self, position: Positions | None = None) -> None:
        """Continue reading from `position`; an unnamed partition is read from its beginning.

        Raises DataLost when retention has deleted a position, or the topic ends before it.
        """
        position = position or {}
        with explained(self._settings, "opening topics", self._read):
            begins = from_kafka(self._consumer.beginning_offsets(self._keys))
            self._set_ends(self._consumer.end_offsets(self._keys))
        for partition, begin in begins.items():
            offset = position[partition].offset if partition in position else begin
            _check_range(partition, offset, begin, self._ends[partition])
            self._go_to(partition, offset)
        self._ended.clear()
        self._marked.clear()
        self._waiting.clear()
        self._begin()

    def seek(self, position: Positions) -> None:
        """Move to `position`; other partitions stay where they are. The next batch raises DataLost for a position
        that is gone."""
        for partition, at in position.items():
            self._go_to(partition, at.offset)
            self._ended.discard(partition)
            self._marked.discard(partition)
            self._waiting.pop(partition, None)
        self._begin()

    def _begin(self) -> None:
        for partition in self.partitions[:1]:
            self._asked_offset(partition)  # looks at all, so that no end is believed where messages were replaced
        self._look_for_ends()

    def _go_to(self, partition: Partition, offset: int) -> None:
        key = TopicPartition(*partition)
        self._consumer.seek(key, offset)
        if (epoch := self._epochs.get(partition)) is not None:  # the client then asks where its messages end
            patches.seek(self._consumer, key, offset, epoch)
        self._transactions.forget(partition)
        self._explained[partition] = offset

    def next_batch(
        self, max_wait_s: float = 0.0, *, max_messages: int = 500, only: Collection[Partition] | None = None
    ) -> list[RawMessage] | None:
        """Messages as they come, in order within each partition; while the broker is away the wait is at least 0.1 s.

        Raises DataLost for a gap, BrokerAway once the broker has been away for `give_up_s`, BadInput for a right that
        is missing and for a compression that cannot be read here.
        """
        if len(self._ended) == len(self.partitions):
            raise EndOfStream
        wanted = set(self.partitions if only is None else only) - self._ended
        if not wanted.isdisjoint(self._waiting):
            return self._hand_out(wanted, max_messages) or None
        deadline = self._clock() + max_wait_s
        self._pause_all_but(wanted)
        if self._clock() - self._answered_at > self.CONFIRM_EVERY_S:
            self._ask_ends(max(max_wait_s, 0.1))
        polled = self._poll(max(0.0, deadline - self._clock()))
        if polled:
            self._heard()
        for key, records in polled.items():
            self._waiting[Partition(*key)] = deque(map(raw_message, records))
        return self._hand_out(wanted, max_messages) or None

    def _poll(self, wait_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """Records by partition; none where the broker is away. Raises as `next_batch`."""
        try:
            self._fetches.begin()
            records: Mapping[TopicPartition, Sequence[Any]] = self._consumer.poll(
                timeout_ms=round(1000 * wait_s), max_records=ALL_THAT_WAS_FETCHED
            )
            return records
        except OffsetOutOfRangeError:
            self._explain_range()
        except LogTruncationError as error:
            _check_truncation(error)
        except RetriableError:
            pass
        except AuthorizationError as error:
            raise concerned(self._read, error).missing(self._settings) from error
        except UnsupportedCodecError as error:
            raise BadInput(
                f"a topic of {', '.join(sorted(self._read.names))} is compressed with what cannot be read here "
                f"({error}); install the package that `{command('exfm', 'doctor')}` names under `compression`, or "
                "produce with another compression.type"
            ) from error
        except KafkaError as error:
            raise StreamingError(f"reading from {self._settings.bootstrap_servers} failed: {error!r}") from error
        return {}

    def _hand_out(self, wanted: Collection[Partition], max_messages: int) -> list[RawMessage]:
        """Messages at hand, the partition that was served last coming last; ends and what follows them are left out,
        and the position stays before an end marker, to be found again."""
        batch: list[RawMessage] = []
        for partition in [p for p in self._waiting if p in wanted]:
            messages = self._waiting.pop(partition)
            end = self._given_ends.get(partition, ALL_THAT_IS_TO_COME)
            while messages and len(batch) < max_messages and partition not in self._ended:
                message = messages.popleft()
                self._explain(partition, min(message.offset, end))
                marked = self._markers_end and message.offset < end and is_end_marker(message)
                if marked or message.offset >= end:
                    self._consumer.seek(TopicPartition(*partition), message.offset)
                    self._ended.add(partition)
                    self._marked |= {partition} if marked else set()
                else:
                    self._explained[partition] = message.offset + 1
                    batch.append(message)
            if messages and partition not in self._ended:
                self._waiting[partition] = messages
        self._look_for_ends()
        return batch

    def _look_for_ends(self) -> None:
        """Also past what is no message (a transaction's marker), and where nothing was left to read."""
        if still_open := self._given_ends.keys() - self._ended:
            position = self.position()
            for partition in still_open:
                if position[partition].offset >= (end := self._given_ends[partition]):
                    self._asked_offset(partition)  # raises where messages before it were replaced
                    self._explain(partition, end)
                    self._ended.add(partition)

    def _explain(self, partition: Partition, stop: int) -> None:
        """Raises DataLost for offsets before `stop` that brought no message, and are no records of transactions."""
        self._transactions.explain(partition, self._explained[partition], stop)
        self._explained[partition] = max(self._explained[partition], stop)

    @property
    def ended(self) -> frozenset[Partition]:
        return frozenset(self._ended)

    @property
    def marked(self) -> frozenset[Partition]:
        return frozenset(self._marked)

    def position(self) -> Positions:
        """Offset of the next batch's first message in each partition, or its end."""
        return {partition: SourcePosition(self._offset(partition)) for partition in self.partitions}

    def _offset(self, partition: Partition) -> int:
        if waiting := self._waiting.get(partition):
            return waiting[0].offset
        if (known := patches.offset_of(self._consumer, TopicPartition(*partition))) is not None:
            return known
        return self._asked_offset(partition)

    def _asked_offset(self, partition: Partition) -> int:
        """The offset by the client's own call, which also looks whether messages before it were replaced, in all
        partitions: it takes long where those are many."""
        with explained(self._settings, "asking for a position"):
            try:
                offset: int = self._consumer.position(TopicPartition(*partition), timeout_ms=1000)
            except LogTruncationError as error:
                _check_truncation(error)
                offset = self._consumer.position(TopicPartition(*partition), timeout_ms=1000)
        return offset

    def at_end(self, partition: Partition, max_age_s: float = 0.25) -> bool:
        if not self.reachable or self._clock() - self._ends_at >= max_age_s:
            self._ask_ends(1.0)
        if not self.reachable or (offset := self._offset(partition)) < self._ends[partition]:
            return False
        newest = self._consumer.highwater(TopicPartition(*partition))
        if newest is not None and newest > max(offset, self._ends[partition]):
            self._undecided.add(partition)  # what a transaction has written may yet be committed
            return False
        self._undecided.discard(partition)
        return True

    @property
    def undecided(self) -> frozenset[Partition]:
        return frozenset(self._undecided)

    def behind(self) -> dict[Partition, int]:
        position = self.position()
        ends = {p: self._given_ends.get(p, end) for p, end in self.end_offsets().items()}
        return {p: max(0, ends[p] - position[p].offset) for p in self.partitions if p not in self._ended}

    def end_offsets(self) -> dict[Partition, int]:
        """The current end offsets; the last known ones while the broker is away (see `reachable`)."""
        self._ask_ends(1.0)
        return dict(self._ends)

    def commit_for_display(self, positions: Positions) -> None:
        """Publish the group's positions to lag monitors, asynchronously; never read back, never an error. Nothing
        without a group."""
        if self._lag is not None and self.reachable:
            self._lag.show(positions)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=2000)
        if self._lag is not None:
            self._lag.close()

    def _pause_all_but(self, wanted: set[Partition]) -> None:
        paused = {Partition(*key) for key in self._consumer.paused()}
        if stop := set(self.partitions) - wanted - paused:
            self._consumer.pause(*to_kafka(sorted(stop)))
        if go := paused & wanted:
            self._consumer.resume(*to_kafka(sorted(go)))

    def _ask_ends(self, timeout_s: float) -> None:
        asked_at = self._clock()
        try:
            self._set_ends(self._consumer.end_offsets(self._keys, timeout_ms=round(timeout_s * 1000)))
        except KafkaError as error:
            if self.reachable:  # counted from the first request without an answer
                self.reachable, self._away_since = False, asked_at
            silent_s = self._clock() - self._away_since
            if silent_s > self._settings.give_up_s:
                raise BrokerAway(
                    sent_nowhere(self._settings)
                    or f"the Kafka broker at {self._settings.bootstrap_servers} has not answered for {silent_s:.0f} s; "
                    "see that it runs, then resume: nothing is lost"
                ) from error

    def _set_ends(self, answer: Mapping[TopicPartition, int]) -> None:
        self._ends, self._ends_at = from_kafka(answer), self._clock()
        self._heard()

    def _heard(self) -> None:
        self.reachable = True
        self._answered_at = self._clock()

    def _explain_range(self) -> None:
        with explained(self._settings, "looking for a gap"):
            begins = from_kafka(self._consumer.beginning_offsets(self._keys))
            self._set_ends(self._consumer.end_offsets(self._keys))
        for partition, position in self.position().items():
            _check_range(partition, position.offset, begins[partition], self._ends[partition])


def _consumer(settings: KafkaSettings) -> Any:
    """A client whose positions are ours alone: it commits nothing, and a position that is gone is an error."""
    return connect(
        settings,
        KafkaConsumer,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        allow_auto_create_topics=False,
        fetch_max_wait_ms=200,
        fetch_max_bytes=32 * 2**20,
        max_partition_fetch_bytes=4 * 2**20,
        receive_message_max_bytes=max(100_000_000, 2 * settings.max_message_bytes),
    )


def _check_truncation(error: LogTruncationError) -> None:
    """Raises DataLost, unless the broker only knows nothing (any more) of the leader under which was read."""
    if lost := {f"{key.topic}/{key.partition}": at.offset for key, at in error.divergent_offsets.items() if at}:
        where = ", ".join(f"{name} from offset {offset:,} on" for name, offset in sorted(lost.items()))
        raise DataLost(
            f"the broker lost messages that were already read: {where}. A leader took over that did not have them (an "
            "unclean election); start a new run, and keep unclean.leader.election.enable at false"
        ) from error


def _check_range(partition: Partition, offset: int, begin: int, end: int) -> None:
    where = f"topic `{partition.topic}`, partition {partition.partition}"
    if offset < begin:
        raise DataLost(
            f"{where}: offset {offset:,} was to be read next, but retention has deleted all before {begin:,}: "
            f"{begin - offset:,} messages are lost; raise the topic's retention.ms, and start a new run"
        )
    if offset > end:
        raise DataLost(
            f"{where}: offset {offset:,} was to be read next, but the topic ends at {end:,}: it was deleted and "
            "created anew, or this is another broker; point the run at the broker it began with, or start a new run"
        )


class TransactionRecords:
    """Offsets without messages: transaction markers and aborted records, which the client passes over without a word,
    as it does what compaction has deleted. `patches.watch_transactions` reports them.

    >>> ads = Partition("ads", 0)
    >>> records = TransactionRecords()
    >>> records.add(ads, 3, 5)
    >>> records.explain(ads, 3, 5)
    >>> records.explain(ads, 5, 7)
    Traceback (most recent call last):
    streaming.errors.DataLost: topic `ads`, partition 0: offsets 5 to 6 did not come, ...
    """

    def __init__(self) -> None:
        self._stops: dict[Partition, dict[int, int]] = {}

    def add(self, partition: Partition, first: int, stop: int) -> None:
        """Record that the offsets [first, stop) are taken by transactions."""
        self._stops.setdefault(partition, {})[first] = stop

    def explain(self, partition: Partition, first: int, stop: int) -> None:
        """Raise DataLost unless all of [first, stop) are taken by transactions. What lies before `stop` is
        forgotten."""
        if first >= stop:
            return
        stops = self._stops.get(partition, {})
        at = first
        for begin in sorted(stops):
            if begin > at or at >= stop:
                break
            at = max(at, stops[begin])
        if at < stop:
            missing = f"offsets {at:,} to {stop - 1:,}" if stop - at > 1 else f"offset {at:,}"
            raise DataLost(
                f"topic `{partition.topic}`, partition {partition.partition}: {missing} did not come, and no "
                f"transaction explains it: compaction has deleted {stop - at:,} messages that were not read, or they "
                "were deleted by hand; set the topic's cleanup.policy to delete, and start a new run on a topic that "
                "has no holes"
            )
        self._stops[partition] = {begin: end for begin, end in stops.items() if end > stop}

    def forget(self, partition: Partition) -> None:
        self._stops.pop(partition, None)


log = logging.getLogger(__name__)


class LagDisplay:
    """Commits a group's offsets for lag monitors, best effort: failures are ignored. After a refusal, the next try is a
    minute later.

    It has a client of its own, so that a right that the group lacks cannot stop what is read.
    """

    AGAIN_AFTER_S = 60.0

    def __init__(self, settings: KafkaSettings, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._group, self._clock = settings, group, clock
        self._client: Any = None
        self._not_before = float("-inf")
        self._logged: str | None = None

    def show(self, positions: Positions) -> None:
        """Send the positions without waiting."""
        if self._clock() < self._not_before:
            return
        try:
            if self._client is None:
                self._client = connect(self._settings, KafkaConsumer, group_id=self._group, enable_auto_commit=False)
            offsets = {TopicPartition(*p): OffsetAndMetadata(at.offset, "", -1) for p, at in positions.items()}
            self._client.commit_async(offsets).add_errback(self._failed)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Runs in the client's thread too."""
        if isinstance(error, RetriableError):
            return  # the next commit shows where we are then
        self._not_before = self._clock() + self.AGAIN_AFTER_S
        missing = isinstance(error, GroupAuthorizationFailedError)
        words = str(Right("Read", "group", {self._group}).missing(self._settings)) if missing else repr(error)
        if words != self._logged:
            self._logged = words
            log.warning("lag monitors see no position of group `%s`: %s", self._group, words)

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(autocommit=False, timeout_ms=2000)
