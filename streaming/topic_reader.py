"""Messages out of a topic: from our own positions, with an end that the broker confirms and gaps that are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from streaming.codecs import RawMessage
from streaming.errors import BadInput, BrokerAway, StreamingError
from streaming.kafka_client import (
    KafkaConsumer,
    KafkaError,
    LogTruncationError,
    OffsetAndMetadata,
    OffsetOutOfRangeError,
    RetriableError,
    TopicPartition,
    connect,
    explained,
    from_kafka,
    raw_message,
    to_kafka,
)
from streaming.kafka_settings import KafkaSettings
from streaming.position import Partition, Positions, SourcePosition
from streaming.topics import require_topics


class TopicReader:
    """Reads partitions of our choice from positions of our choice. One thread at a time.

    While the broker is away `poll` returns nothing and `broker_reachable` is False; after `give_up_s` it raises.
    Offsets that retention deleted before they were read are an error, never skipped.
    """

    CONFIRM_EVERY_S = 1.0
    """A silent broker is asked for its end offsets this often: silence may mean no news, or no broker."""

    def __init__(
        self,
        settings: KafkaSettings,
        partitions: Sequence[Partition],
        *,
        group: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`group` names the consumer group under which `commit_for_display` shows how far we are.

        Raises BadInput for a topic or partition that does not exist, BrokerAway when no broker answers."""
        self.partitions = tuple(partitions)
        self.broker_reachable = True
        self._settings, self._group, self._clock = settings, group, clock
        self._keys = to_kafka(partitions)
        counts = require_topics(settings, {partition.topic for partition in partitions})
        for topic, number in partitions:
            if number >= counts[topic]:
                raise BadInput(f"topic `{topic}` has no partition {number}, only 0 to {counts[topic] - 1}")
        self._consumer: Any = connect(
            settings,
            KafkaConsumer,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            fetch_max_wait_ms=200,
            fetch_max_bytes=32 * 2**20,
            max_partition_fetch_bytes=4 * 2**20,
            receive_message_max_bytes=max(100_000_000, 2 * settings.max_message_bytes),
        )
        self._consumer.assign(self._keys)
        self._ends: dict[Partition, int] = {}
        self._ends_at = float("-inf")
        self._answered_at = clock()

    def open(self, positions: Positions) -> None:
        """Read on from `positions`; a partition that is not named is read from its beginning.

        A row inside a message is the caller's to find: reading starts with the whole message. Raises StreamingError
        when retention has deleted a position, or the topic ends before it.
        """
        with explained(self._settings, "opening topics"):
            begins = from_kafka(self._consumer.beginning_offsets(self._keys))
            self._set_ends(self._consumer.end_offsets(self._keys))
        for partition, begin in begins.items():
            offset = positions[partition].offset if partition in positions else begin
            _check_range(partition, offset, begin, self._ends[partition])
            self._consumer.seek(TopicPartition(*partition), offset)

    def seek(self, partition: Partition, position: SourcePosition) -> None:
        self._consumer.seek(TopicPartition(*partition), position.offset)

    def poll(
        self, max_wait_s: float, max_messages: int = 500, only: Collection[Partition] | None = None
    ) -> list[RawMessage]:
        """Messages as they come, in order within each partition; [] after `max_wait_s` (at least 0.1 s while the broker
        is away). `only` leaves the other partitions alone for this call.

        Raises StreamingError for a retention gap, BrokerAway once the broker has been away for `give_up_s`.
        """
        deadline = self._clock() + max_wait_s
        self._pause_all_but(only)
        if self._clock() - self._answered_at > self.CONFIRM_EVERY_S:
            self._ask_ends(max(max_wait_s, 0.1))
        try:
            wait_ms = max(0, round(1000 * (deadline - self._clock())))
            found = self._consumer.poll(timeout_ms=wait_ms, max_records=max_messages)
        except OffsetOutOfRangeError:
            found = {}
            self._explain_range()
        except LogTruncationError as error:
            raise StreamingError(f"the broker lost messages that were already read: {error}") from error
        except RetriableError:
            found = {}
        except KafkaError as error:
            raise StreamingError(f"reading from {self._settings.bootstrap_servers} failed: {error!r}") from error
        if found:
            self._heard()
        return [raw_message(record) for records in found.values() for record in records]

    @property
    def position(self) -> Positions:
        """For each partition the message that the next poll begins with."""
        return {
            partition: SourcePosition(self._consumer.position(key, timeout_ms=1000))
            for partition, key in zip(self.partitions, self._keys, strict=True)
        }

    def at_end(self, partition: Partition, max_age_s: float = 0.25) -> bool:
        """True when the broker says, now (at most `max_age_s` ago), that nothing follows what was read.

        An answer that does not come means False: an absent broker is not the end of a topic.
        """
        if not self.broker_reachable or self._clock() - self._ends_at > max_age_s:
            self._ask_ends(1.0)
        position: int = self._consumer.position(TopicPartition(*partition), timeout_ms=1000)
        return self.broker_reachable and position >= self._ends[partition]

    def end_offsets(self) -> dict[Partition, int]:
        """The end offsets, asked for now; those last known while the broker is away (`broker_reachable` tells)."""
        self._ask_ends(1.0)
        return dict(self._ends)

    def commit_for_display(self, positions: Positions) -> None:
        """Show the group's positions to lag monitors; not waited for, and never read back. Nothing without a group."""
        if self._group is not None:
            offsets = {
                TopicPartition(*p): OffsetAndMetadata(position.offset, "", -1) for p, position in positions.items()
            }
            self._consumer.commit_async(offsets)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=2000)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pause_all_but(self, only: Collection[Partition] | None) -> None:
        wanted = set(self.partitions if only is None else only)
        paused = {Partition(*key) for key in self._consumer.paused()}
        if stop := set(self.partitions) - wanted - paused:
            self._consumer.pause(*to_kafka(sorted(stop)))
        if go := paused & wanted:
            self._consumer.resume(*to_kafka(sorted(go)))

    def _ask_ends(self, timeout_s: float) -> None:
        try:
            self._set_ends(self._consumer.end_offsets(self._keys, timeout_ms=round(timeout_s * 1000)))
        except KafkaError as error:
            self.broker_reachable = False
            silent_s = self._clock() - self._answered_at
            if silent_s > self._settings.give_up_s:
                raise BrokerAway(
                    f"the Kafka broker at {self._settings.bootstrap_servers} has not answered for {silent_s:.0f} s; "
                    "see that it runs (`exfm broker status`, `exfm broker start`), then resume: nothing is lost"
                ) from error

    def _set_ends(self, answer: Mapping[TopicPartition, int]) -> None:
        self._ends, self._ends_at = from_kafka(answer), self._clock()
        self._heard()

    def _heard(self) -> None:
        self.broker_reachable = True
        self._answered_at = self._clock()

    def _explain_range(self) -> None:
        with explained(self._settings, "looking for a gap"):
            begins = from_kafka(self._consumer.beginning_offsets(self._keys))
            self._set_ends(self._consumer.end_offsets(self._keys))
        for partition, position in self.position.items():
            _check_range(partition, position.offset, begins[partition], self._ends[partition])


def _check_range(partition: Partition, offset: int, begin: int, end: int) -> None:
    where = f"topic `{partition.topic}`, partition {partition.partition}"
    if offset < begin:
        raise StreamingError(
            f"{where}: offset {offset:,} was to be read next, but retention has deleted all before {begin:,}: "
            f"{begin - offset:,} messages are lost; raise the topic's retention.ms, and start a new run"
        )
    if offset > end:
        raise StreamingError(
            f"{where}: offset {offset:,} was to be read next, but the topic ends at {end:,}: it was deleted and made "
            "anew, or this is another broker; point the run at the broker it began with, or start a new run"
        )
