"""Kafka producer: idempotent, acknowledged, bounded in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from streaming.errors import BrokerAway, StreamingError
from streaming.kafka.client import (
    AuthorizationError,
    KafkaError,
    KafkaProducer,
    OutOfOrderSequenceNumberError,
    connect,
    explained,
    no_answer,
    sent_nowhere,
)
from streaming.kafka.patches import continue_as, stop_sending
from streaming.kafka.rights import Right
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import require_topics, topic_config
from streaming.messages.message import END_HEADER

RECORD_OVERHEAD_BYTES = 512
"""Room for a record's framing, in addition to its key, value and headers."""


class TopicWriter:
    """Writes one topic: idempotent, acknowledged by all replicas, in order within a partition.

    Messages are stored only once `flush` has returned. After a failure every further call raises, and
    nothing more is sent: no message is there without all those before it in its partition. Make a new writer, and write
    again from the last message that is known to be there (`last_message`).

    What the client sends again, because the broker died before it answered, is there once, unless timestamps are a day
    old: a broker that starts again forgets producers whose last one is (`producer.id.expiration.ms`).
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        """Raise BadInput if the topic does not exist, BrokerAway if no broker answers."""
        self._settings, self.topic = settings, topic
        self.partitions = require_topics(settings, [topic])[topic]
        self._limit = min(settings.max_message_bytes, int(topic_config(settings, topic)["max.message.bytes"]))
        self._pending: deque[tuple[Any, int]] = deque()
        self._pending_bytes = 0
        self._failure: Exception | None = None
        self._producer = connect(
            settings,
            KafkaProducer,
            enable_idempotence=True,
            acks="all",
            compression_type=None if settings.compression == "none" else settings.compression,
            linger_ms=20,
            batch_size=min(512 * 1024, self._limit // 2),
            max_request_size=self._limit + RECORD_OVERHEAD_BYTES,
            delivery_timeout_ms=settings.delivery_timeout_s * 1000,
            max_block_ms=settings.delivery_timeout_s * 1000,
        )

    def continue_as(self, producer: int, numbers: Sequence[int]) -> None:
        """Take over a producer's id and, for each partition, the number of its next message; call before the first
        `write`.

        Brokers take the messages of a producer in the order of their numbers, and each number once. So where a request
        of a killed predecessor is taken up late, it is the one that its successor sends, too, and is there once, or who
        comes second is refused. An id that is not of the broker's giving is taken like any other.
        """
        wait_s = self._settings.delivery_timeout_s
        self._failure = continue_as(self._producer, self.topic, producer, numbers, wait_s)
        self._raise_failure()

    @property
    def payload_bytes(self) -> int:
        """Largest message value, with room left for headers."""
        return self._limit - 2 * RECORD_OVERHEAD_BYTES

    def write(
        self,
        partition: int,
        payloads: Sequence[bytes],
        *,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp_ms: int | Sequence[int] | None = None,
        key: bytes | None = None,
    ) -> None:
        """Send messages to a partition, all with the same headers and key; `timestamp_ms` is one for all, or one each;
        None means now.

        Waits while more than `max_pending_bytes` are on their way. Raises StreamingError for a message that is larger
        than the topic takes (before any is sent) or was refused, BrokerAway when an earlier one found no broker.
        """
        self._raise_failure()
        if (words := self.too_large(payloads, headers, key)) is not None:
            raise StreamingError(words)
        times = (
            [timestamp_ms] * len(payloads) if timestamp_ms is None or isinstance(timestamp_ms, int) else timestamp_ms
        )
        each = list(headers)
        with explained(self._settings, "writing"):
            for value, time_ms in zip(payloads, times, strict=True):
                future = self._producer.send(self.topic, value, key, each, partition, time_ms)
                future.add_errback(self._failed)
                self._pending.append((future, len(value)))
                self._pending_bytes += len(value)
                self._hold_back()

    def too_large(
        self, payloads: Sequence[bytes], headers: Sequence[tuple[str, bytes]] = (), key: bytes | None = None
    ) -> str | None:
        """Reason why `write` would refuse these for their size; None if it would not."""
        extra = len(key or b"") + sum(len(name) + len(value) for name, value in headers) + RECORD_OVERHEAD_BYTES
        largest = max(map(len, payloads), default=0)
        if largest + extra <= self._limit:
            return None
        return (
            f"a message for topic `{self.topic}` has {largest + extra:,} bytes, its max.message.bytes allows "
            f"{self._limit:,}; put fewer rows in a message, or raise max.message.bytes of topic and config"
        )

    def end_marker(self, partitions: Iterable[int] | None = None) -> None:
        """Write end markers, which tell readers that nothing follows, to the partitions (default: all)."""
        for partition in range(self.partitions) if partitions is None else partitions:
            self.write(partition, [b""], headers=[(END_HEADER, b"1")])

    def flush(self) -> None:
        """Block until everything is acknowledged. Raises BrokerAway or StreamingError if anything could not be."""
        with explained(self._settings, "writing"):
            self._producer.flush(self._settings.delivery_timeout_s + 5)
        self._pending.clear()
        self._pending_bytes = 0
        self._raise_failure()

    def close(self) -> None:
        """Flush and close the connection; after a failure, unsent messages are dropped."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            if self._failure is not None:  # else the client waits for what is on its way
                stop_sending(self._producer, wait_s=5)
            self._producer.close(timeout=5)

    def abandon(self) -> None:
        """Close like a crash: waiting messages are never sent."""
        self._failure = self._failure or StreamingError("the writer was abandoned")
        with suppress(KafkaError):
            self.close()

    def __enter__(self) -> TopicWriter:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            self._failure = self._failure or StreamingError("the writer was left by an exception")
        self.close()

    def _failed(self, error: Exception) -> None:
        """Runs mostly in the client's thread, which would otherwise send the messages after the failed one."""
        if self._failure is None:
            self._failure = error
            stop_sending(self._producer)

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        if isinstance(self._failure, AuthorizationError):
            raise Right("Write", "topic", {self.topic}).missing(self._settings) from self._failure
        what = f"a message for topic `{self.topic}` at {self._settings.bootstrap_servers}"
        if isinstance(self._failure, OutOfOrderSequenceNumberError):
            raise StreamingError(
                f"{what} was refused: another writer of this stream has written meanwhile (the last request of one "
                "that was killed, or the same command elsewhere); nothing is there twice, the same command goes on"
            ) from self._failure
        if no_answer(self._failure):
            why = sent_nowhere(self._settings) or f"{self._failure!r}; see that the broker runs, then resume"
            raise BrokerAway(
                f"{what} was not written within {self._settings.delivery_timeout_s:g} s: {why}"
            ) from self._failure
        raise StreamingError(
            f"{what} was refused: {self._failure!r}; see what the topic allows, then resume"
        ) from self._failure

    def _hold_back(self) -> None:
        """Let go of what has arrived; wait for the oldest while too much is on its way."""
        while self._pending:
            future, size = self._pending[0]
            if not future.is_done:
                if self._pending_bytes <= self._settings.max_pending_bytes:
                    return
                try:
                    future.get(timeout=self._settings.delivery_timeout_s + 5)
                except KafkaError as error:
                    self._failed(error)
                    self._raise_failure()
            self._pending.popleft()
            self._pending_bytes -= size
