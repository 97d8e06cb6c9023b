"""Topics in and out. The only place that speaks to Kafka.

Partitions are assigned by us, positions come from our own commits: no consumer groups, no automatic offsets. Works with
the embedded broker and with any other (`bootstrap_servers`, `security`).
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    BrokerResponseError,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    RetriableError,
    TopicAlreadyExistsError,
)
from kafka.structs import OffsetAndMetadata

from streaming.codecs import END_HEADER, RawMessage
from streaming.errors import BadInput, StreamingError
from streaming.kafka_settings import KafkaSettings
from streaming.position import Partition, Positions, SourcePosition

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an absent broker is reported by what is raised here

RECORD_OVERHEAD_BYTES = 512
"""Room for a record's own framing beside its key, value and headers."""

Client = TypeVar("Client")


def ensure_topics(settings: KafkaSettings, topics: Mapping[str, int], *, retention_ms: int = -1) -> set[str]:
    """Create those of the topics (name -> partitions) that do not exist; returns their names.

    `retention_ms` -1 keeps everything: record timestamps are event times, which may lie years back.
    Raises BadInput where a topic exists with another number of partitions.
    """
    with _admin(settings) as admin:
        existing = _partitions_of(admin)
        for name, wanted in topics.items():
            if existing.get(name, wanted) != wanted:
                raise BadInput(
                    f"topic `{name}` has {existing[name]} partitions, {wanted} are configured; set its `partitions` to "
                    f"{existing[name]}, or use a topic of another name"
                )
        configs = {"retention.ms": str(retention_ms), "max.message.bytes": str(settings.max_message_bytes)}
        new = {
            name: {"num_partitions": count, "configs": configs}
            for name, count in topics.items()
            if name not in existing
        }
        if new:
            with suppress(TopicAlreadyExistsError):  # somebody else created it meanwhile
                admin.create_topics(new)
            admin.wait_for_topics(list(new))
        return set(new)


def require_topics(settings: KafkaSettings, topics: Iterable[str]) -> dict[str, int]:
    """Topic -> number of partitions. Raises BadInput for absent ones, naming those that exist."""
    with _admin(settings) as admin:
        existing = _partitions_of(admin)
    names = list(topics)
    absent = [name for name in names if name not in existing]
    if absent:
        there = ", ".join(sorted(name for name in existing if not name.startswith("__"))) or "none"
        raise BadInput(
            f"no topic {', '.join(f'`{name}`' for name in absent)} at {settings.bootstrap_servers}; topics: {there}; "
            "create it, or set the topic's name in the config"
        )
    return {name: existing[name] for name in names}


def topic_config(settings: KafkaSettings, topic: str) -> dict[str, str]:
    """A topic's settings as the broker has them (`retention.ms`, `max.message.bytes`, …)."""
    with _admin(settings) as admin:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: entry["value"] for name, entry in described["topic"][topic].items()}


def end_offsets(settings: KafkaSettings, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """For each partition the offset that its next message will get."""
    with _consumer(settings) as consumer:
        return _answers(consumer.end_offsets(_keys(partitions)))


def beginning_offsets(settings: KafkaSettings, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """For each partition the first offset that retention has left."""
    with _consumer(settings) as consumer:
        return _answers(consumer.beginning_offsets(_keys(partitions)))


def last_message(settings: KafkaSettings, topic: str, partition: int) -> RawMessage | None:
    """The newest message of a partition, None for an empty one."""
    key = TopicPartition(topic, partition)
    with _consumer(settings) as consumer:
        begin, end = consumer.beginning_offsets([key])[key], consumer.end_offsets([key])[key]
        consumer.assign([key])
        deadline = time.monotonic() + settings.request_timeout_s
        for start in range(end - 1, begin - 1, -1):  # more than once only past transaction markers
            consumer.seek(key, start)
            while consumer.position(key) < end:
                for records in consumer.poll(timeout_ms=200).values():
                    return _raw(records[-1])
                if time.monotonic() > deadline:
                    raise StreamingError(
                        f"the last message of topic `{topic}`, partition {partition} (offset {end - 1}) did not come "
                        f"from {settings.bootstrap_servers} within {settings.request_timeout_s:g} s; try again"
                    )
    return None


class TopicWriter:
    """Writes one topic: idempotent, acknowledged by all replicas, in order within a partition.

    What is written is on its way, not there, until `flush` returns. After a failure every further call raises: make a
    new writer, and write again from the last message that is known to be there (`last_message`).
    """

    MAX_PENDING_BYTES = 64 * 2**20

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raises BadInput when the topic does not exist, StreamingError when no broker answers."""
        self._settings, self._topic = settings, topic
        self.partitions = require_topics(settings, [topic])[topic]
        self._limit = min(settings.max_message_bytes, int(topic_config(settings, topic)["max.message.bytes"]))
        self._pending: deque[tuple[Any, int]] = deque()
        self._pending_bytes = 0
        self._failure: Exception | None = None
        self._producer = _connect(
            settings,
            KafkaProducer,
            enable_idempotence=True,
            acks="all",
            compression_type=None if settings.compression == "none" else settings.compression,
            linger_ms=20,
            batch_size=min(512 * 1024, self._limit // 2),
            max_request_size=self._limit + RECORD_OVERHEAD_BYTES,
            delivery_timeout_ms=settings.delivery_timeout_s * 1000,
        )

    def write(
        self,
        partition: int,
        payloads: Sequence[bytes],
        *,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp_ms: int | Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> None:
        """Send messages to a partition, all with the same headers and key; `timestamp_ms` is one for all, or one each.

        Waits while more than 64 MiB are on their way. Raises StreamingError for a message that is larger than the topic
        takes (before any is sent), or when an earlier one failed.
        """
        self._raise_failure()
        extra = len(key or b"") + sum(len(name) + len(value) for name, value in headers) + RECORD_OVERHEAD_BYTES
        largest = max(map(len, payloads), default=0)
        if largest + extra > self._limit:
            raise StreamingError(
                f"a message for topic `{self._topic}` has {largest + extra:,} bytes, its max.message.bytes allows "
                f"{self._limit:,}; put fewer rows in a message, or raise max.message.bytes of topic and config"
            )
        times = (
            [timestamp_ms] * len(payloads) if timestamp_ms is None or isinstance(timestamp_ms, int) else timestamp_ms
        )
        each = list(headers)
        for value, time_ms in zip(payloads, times, strict=True):
            future = self._producer.send(self._topic, value, key, each, partition, time_ms)
            future.add_errback(self._failed)
        if payloads:
            self._pending.append((future, sum(map(len, payloads))))
            self._pending_bytes += self._pending[-1][1]
            self._hold_back()

    def end_marker(self, partitions: Iterable[int] | None = None) -> None:
        """Tell readers that nothing will follow, in each of the partitions (all of them)."""
        for partition in range(self.partitions) if partitions is None else partitions:
            self.write(partition, [b""], headers=[(END_HEADER, b"1")])

    def flush(self) -> None:
        """Return when all is written. Raises StreamingError if anything could not be."""
        with _explained(self._settings, "writing"):
            self._producer.flush(self._settings.delivery_timeout_s + 5)
        self._pending.clear()
        self._pending_bytes = 0
        self._raise_failure()

    def close(self) -> None:
        """Flush and let go of the connection; after a failure what is left is given up."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._producer.close(timeout=0 if self._failure else 5)

    def __enter__(self) -> TopicWriter:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            self._failure = self._failure or StreamingError("the writer was left by an exception")
        self.close()

    def _failed(self, error: Exception) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise StreamingError(
                f"a message for topic `{self._topic}` at {self._settings.bootstrap_servers} was not written within "
                f"{self._settings.delivery_timeout_s:g} s: {self._failure}; see that the broker runs (`exfm broker "
                "status`), then resume"
            ) from self._failure

    def _hold_back(self) -> None:
        while self._pending_bytes > self.MAX_PENDING_BYTES:
            future, size = self._pending.popleft()
            self._pending_bytes -= size
            try:
                future.get(timeout=self._settings.delivery_timeout_s + 5)
            except KafkaError as error:
                self._failed(error)
                self._raise_failure()


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

        Raises BadInput for a topic or partition that does not exist, StreamingError when no broker answers."""
        self.partitions = tuple(partitions)
        self.broker_reachable = True
        self._settings, self._group, self._clock = settings, group, clock
        self._keys = _keys(partitions)
        counts = require_topics(settings, {partition.topic for partition in partitions})
        for topic, number in partitions:
            if number >= counts[topic]:
                raise BadInput(f"topic `{topic}` has no partition {number}, only 0 to {counts[topic] - 1}")
        self._consumer: Any = _connect(
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
        with _explained(self._settings, "opening topics"):
            begins = _answers(self._consumer.beginning_offsets(self._keys))
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

        Raises StreamingError for a retention gap, or once the broker has been away for `give_up_s`.
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
        return [_raw(record) for records in found.values() for record in records]

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
        """The end offsets, asked for now. Raises StreamingError when the broker does not answer."""
        with _explained(self._settings, "asking for end offsets"):
            self._set_ends(self._consumer.end_offsets(self._keys))
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
            self._consumer.pause(*_keys(sorted(stop)))
        if go := paused & wanted:
            self._consumer.resume(*_keys(sorted(go)))

    def _ask_ends(self, timeout_s: float) -> None:
        try:
            self._set_ends(self._consumer.end_offsets(self._keys, timeout_ms=round(timeout_s * 1000)))
        except KafkaError as error:
            self.broker_reachable = False
            silent_s = self._clock() - self._answered_at
            if silent_s > self._settings.give_up_s:
                raise StreamingError(
                    f"the Kafka broker at {self._settings.bootstrap_servers} has not answered for {silent_s:.0f} s; "
                    "see that it runs (`exfm broker status`, `exfm broker start`), then resume: nothing is lost"
                ) from error

    def _set_ends(self, answer: Mapping[TopicPartition, int]) -> None:
        self._ends, self._ends_at = _answers(answer), self._clock()
        self._heard()

    def _heard(self) -> None:
        self.broker_reachable = True
        self._answered_at = self._clock()

    def _explain_range(self) -> None:
        with _explained(self._settings, "looking for a gap"):
            begins = _answers(self._consumer.beginning_offsets(self._keys))
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


def _raw(record: Any) -> RawMessage:
    return RawMessage(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value or b"",
        tuple(record.headers),
    )


def _keys(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


def _answers(offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
    return {Partition(*key): offset for key, offset in offsets.items()}


def _partitions_of(admin: Any) -> dict[str, int]:
    return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}


@contextmanager
def _admin(settings: KafkaSettings) -> Iterator[Any]:
    admin: Any = _connect(settings, KafkaAdminClient)
    try:
        with _explained(settings, "managing topics"):
            yield admin
    finally:
        admin.close()


@contextmanager
def _consumer(settings: KafkaSettings) -> Iterator[Any]:
    consumer: Any = _connect(settings, KafkaConsumer, enable_auto_commit=False, auto_offset_reset="none")
    try:
        with _explained(settings, "reading offsets"):
            yield consumer
    finally:
        consumer.close(autocommit=False)


@contextmanager
def _explained(settings: KafkaSettings, doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        refused = isinstance(error, BrokerResponseError) and not isinstance(error, RetriableError)
        advice = "it answered, and refused" if refused else "see that it runs (`exfm broker status`), then try again"
        raise StreamingError(f"{doing} at {settings.bootstrap_servers} failed: {error!r}; {advice}") from error


def _connect(settings: KafkaSettings, client: Callable[..., Client], **options: Any) -> Client:
    """A client of a broker that answers. Its port is waited for first: a client made while the broker is still starting
    can sit in one call for its whole time-out.

    Raises StreamingError naming the address, how long it was tried and what to try.
    """
    started = time.monotonic()
    addresses = settings.addresses
    while not any(_open(address) for address in addresses):
        if time.monotonic() - started > settings.connect_timeout_s:
            raise StreamingError(
                f"no Kafka broker answers at {settings.bootstrap_servers} (tried {settings.connect_timeout_s:g} s); "
                "start the embedded one with `exfm broker start`, or set `bootstrap_servers` to the HOST:PORT of yours"
            )
        time.sleep(0.1)
    try:
        return client(
            bootstrap_servers=[f"{host}:{port}" for host, port in addresses],
            bootstrap_timeout_ms=round(settings.connect_timeout_s * 1000),
            request_timeout_ms=round(settings.request_timeout_s * 1000),
            reconnect_backoff_max_ms=1000,
            **settings.security,
            **options,
        )
    except KafkaError as error:
        raise StreamingError(
            f"{settings.bootstrap_servers} is open, but no Kafka client gets through ({error!r}); see that it is a "
            "Kafka broker, and that `security` (TLS, SASL) is what it asks for"
        ) from error


def _open(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False
