"""Connections to Kafka: the only file that imports its client. Its errors are explained here."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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

from streaming.errors import BrokerAway, StreamingError
from streaming.kafka.settings import KafkaSettings
from streaming.messages import RawMessage
from streaming.position import Partition

__all__ = [
    "ConfigResource",
    "ConfigResourceType",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaError",
    "KafkaProducer",
    "LogTruncationError",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "RetriableError",
    "TopicAlreadyExistsError",
    "TopicPartition",
    "connect",
    "explained",
    "from_kafka",
    "no_answer",
    "raw_message",
    "require_answer",
    "to_kafka",
]

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an absent broker is reported by what is raised here

Client = TypeVar("Client")


def require_answer(settings: KafkaSettings) -> None:
    """Wait until a broker answers, for the time that a new connection has.

    Raises BrokerAway naming the address, how long it was tried and what to try.
    """
    started = time.monotonic()
    while not any(_open(address) for address in settings.addresses):
        if time.monotonic() - started > settings.connect_timeout_s:
            raise BrokerAway(
                f"no Kafka broker answers at {settings.bootstrap_servers} (tried {settings.connect_timeout_s:g} s); "
                "start it, set `kafka.bootstrap_servers` to the HOST:PORT of one that runs, or leave that out: a run "
                "then starts a broker of its own"
            )
        time.sleep(0.1)


def connect(settings: KafkaSettings, client: Callable[..., Client], **options: Any) -> Client:
    """A client of a broker that answers. Its port is waited for first: a client made while the broker is still starting
    can sit in one call for its whole time-out.

    Raises BrokerAway as `require_answer` does; StreamingError where a broker answered and accepts no connection.
    """
    require_answer(settings)
    try:
        return client(
            bootstrap_servers=[f"{host}:{port}" for host, port in settings.addresses],
            bootstrap_timeout_ms=round(settings.connect_timeout_s * 1000),
            request_timeout_ms=round(settings.request_timeout_s * 1000),
            reconnect_backoff_max_ms=1000,
            **settings.security,
            **options,
        )
    except KafkaError as error:
        raise (BrokerAway if no_answer(error) else StreamingError)(
            f"{settings.bootstrap_servers} is open, but no Kafka client gets through ({error!r}); see that it is a "
            "Kafka broker, and that `security` (TLS, SASL) is what it asks for"
        ) from error


@contextmanager
def explained(settings: KafkaSettings, doing: str) -> Iterator[None]:
    """What the client raises inside becomes a BrokerAway, or a StreamingError where the broker answered and refused,
    that says what was being done, where, and what to try."""
    try:
        yield
    except KafkaError as error:
        failed = f"{doing} at {settings.bootstrap_servers} failed: {error!r}"
        if no_answer(error):
            raise BrokerAway(f"{failed}; see that it runs, then try again") from error
        raise StreamingError(f"{failed}; it answered, and refused") from error


def no_answer(error: BaseException) -> bool:
    """Whether the client gave up waiting, as far as `error` tells; a refusal is an answer.

    >>> no_answer(RetriableError()), no_answer(OffsetOutOfRangeError())
    (True, False)
    """
    return isinstance(error, RetriableError) or not isinstance(error, BrokerResponseError | LogTruncationError)


def raw_message(record: Any) -> RawMessage:
    """A record of the client's as a message of ours."""
    return RawMessage(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value or b"",
        tuple(record.headers),
    )


def to_kafka(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Our partitions as the client names them.

    >>> to_kafka([Partition("ads", 1)])
    [TopicPartition(topic='ads', partition=1)]
    """
    return [TopicPartition(*partition) for partition in partitions]


def from_kafka(offsets: Mapping[TopicPartition, int]) -> dict[Partition, int]:
    """The client's answer about offsets, by our partitions.

    >>> from_kafka({TopicPartition("ads", 1): 7})
    {Partition(topic='ads', partition=1): 7}
    """
    return {Partition(*key): offset for key, offset in offsets.items()}


def _open(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False
