"""Topics and their offsets: made, required, asked about."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from streaming.errors import BadInput, BrokerAway
from streaming.kafka.client import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    KafkaConsumer,
    TopicAlreadyExistsError,
    TopicPartition,
    connect,
    explained,
    from_kafka,
    raw_message,
    to_kafka,
)
from streaming.kafka.settings import KafkaSettings
from streaming.messages import RawMessage
from streaming.position import Partition


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
        return from_kafka(consumer.end_offsets(to_kafka(partitions)))


def beginning_offsets(settings: KafkaSettings, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """For each partition the first offset that retention has left."""
    with _consumer(settings) as consumer:
        return from_kafka(consumer.beginning_offsets(to_kafka(partitions)))


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
                    return raw_message(records[-1])
                if time.monotonic() > deadline:
                    raise BrokerAway(
                        f"the last message of topic `{topic}`, partition {partition} (offset {end - 1}) did not come "
                        f"from {settings.bootstrap_servers} within {settings.request_timeout_s:g} s; try again"
                    )
    return None


def _partitions_of(admin: Any) -> dict[str, int]:
    return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}


@contextmanager
def _admin(settings: KafkaSettings) -> Iterator[Any]:
    admin: Any = connect(settings, KafkaAdminClient)
    try:
        with explained(settings, "managing topics"):
            yield admin
    finally:
        admin.close()


@contextmanager
def _consumer(settings: KafkaSettings) -> Iterator[Any]:
    consumer: Any = connect(settings, KafkaConsumer, enable_auto_commit=False, auto_offset_reset="none")
    try:
        with explained(settings, "reading offsets"):
            yield consumer
    finally:
        consumer.close(autocommit=False)
