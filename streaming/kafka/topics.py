"""Topics and their offsets: create, require, look up; checks that topics of others keep their messages."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from streaming.errors import BadInput, BrokerAway, StreamingError
from streaming.kafka.client import (
    AuthorizationError,
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
from streaming.kafka.rights import Right
from streaming.kafka.settings import KafkaSettings
from streaming.messages.message import RawMessage
from streaming.position import Partition

NOT_ALLOWED = 29
"""The broker's word for a topic that the client may not see, whether or not it exists."""
NOT_THERE = {3, 17}
"""Its words for a topic that does not exist, and for a name that no topic can have."""


def ensure_topics(settings: KafkaSettings, topics: Mapping[str, int], *, retention_ms: int = -1) -> set[str]:
    """Create missing topics (name -> partitions); returns their names.

    `retention_ms` -1 keeps everything: record timestamps may be event times, which may lie years back.
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
            with suppress(TopicAlreadyExistsError):  # another process created it meanwhile
                try:
                    admin.create_topics(new)
                except AuthorizationError as error:
                    raise Right("Create", "topic", set(new)).missing(settings) from error
            admin.wait_for_topics(list(new))
        return set(new)


def require_topics(settings: KafkaSettings, topics: Iterable[str]) -> dict[str, int]:
    """Topic -> number of partitions. Raises BadInput for absent ones, naming those that exist."""
    names = list(topics)
    with _admin(settings) as admin:
        existing = _partitions_of(admin)
        absent = [name for name in names if name not in existing]
        hidden = {t["name"] for t in admin.describe_topics(absent) if t["error_code"] == NOT_ALLOWED} if absent else ()
    if hidden:
        raise Right("Describe", "topic", hidden).missing(settings)
    if absent:
        there = ", ".join(sorted(name for name in existing if not name.startswith("__"))) or "none"
        raise BadInput(
            f"no topic {', '.join(f'`{name}`' for name in absent)} at {settings.bootstrap_servers}; topics: {there}; "
            "create it, or set the topic's name in the config"
        )
    return {name: existing[name] for name in names}


def cluster_and_topics(
    settings: KafkaSettings, topics: Sequence[str]
) -> tuple[str | None, dict[str, tuple[str | None, int]]]:
    """The cluster's id, and for each existing topic its id (None if the broker has none) and its number of
    partitions. Raises BadInput where a topic may not be seen, StreamingError where the broker does not describe one
    for another reason than that it is not there."""
    with _admin(settings) as admin:
        cluster_id = admin.describe_cluster()["cluster_id"]
        described = {topic["name"]: topic for topic in admin.describe_topics(list(topics))}
    if hidden := {name for name, topic in described.items() if topic["error_code"] == NOT_ALLOWED}:
        raise Right("Describe", "topic", hidden).missing(settings)
    if unclear := {n: t["error_code"] for n, t in described.items() if t["error_code"] not in NOT_THERE | {0}}:
        raise StreamingError(
            f"{settings.bootstrap_servers} does not describe "
            f"{', '.join(f'topic `{name}` (error {code})' for name, code in unclear.items())}; try again"
        )
    return cluster_id, {
        name: (str(topic["topic_id"]) if topic.get("topic_id") else None, len(topic["partitions"]))
        for name, topic in described.items()
        if topic["partitions"]
    }


def topic_config(settings: KafkaSettings, topic: str) -> dict[str, str]:
    """The broker's settings of a topic (`retention.ms`, `max.message.bytes`, …).

    Raises BadInput where they may not be read: the broker then names none.
    """
    with _admin(settings) as admin:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    entries = described["topic"][topic]
    if not entries:
        raise Right("DescribeConfigs", "topic", {topic}).missing(settings)
    return {name: entry["value"] for name, entry in entries.items()}


class TopicLookup:
    """Offsets and single messages of topics, through one connection (`lookup`)."""

    def __init__(self, settings: KafkaSettings, consumer: Any) -> None:
        self._settings, self._consumer = settings, consumer

    def begins(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """First retained offset of each partition."""
        return from_kafka(self._consumer.beginning_offsets(to_kafka(partitions)))

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Last stable offset of each partition: everything before it is committed or aborted. Without an open
        transaction, the offset that its next message will get."""
        return from_kafka(self._consumer.end_offsets(to_kafka(partitions)))

    def at_times(self, times_ms: Mapping[Partition, int]) -> dict[Partition, int]:
        """First offset of each partition whose message has this timestamp or a later one; the end where none has."""
        asked = {TopicPartition(*partition): max(0, time_ms) for partition, time_ms in times_ms.items()}
        found = self._consumer.offsets_for_times(asked)
        ends = self.ends(list(times_ms))
        return {p: ends[p] if (at := found[TopicPartition(*p)]) is None else at.offset for p in times_ms}

    def messages(self, partition: Partition, offsets: Iterable[int]) -> dict[int, RawMessage]:
        """Read the messages at these offsets of a partition, omitting those that the topic does not hold. Raises
        BrokerAway where they do not come within `request_timeout_s` each."""
        begin, end = self.begins([partition])[partition], self.ends([partition])[partition]
        self._consumer.assign(to_kafka([partition]))
        messages = {}
        for offset in sorted(offset for offset in set(offsets) if begin <= offset < end):
            for record in self._records(partition, offset, offset + 1, f"message {offset}", max_records=1):
                if record.offset == offset:
                    messages[offset] = raw_message(record)
        return messages

    def last(self, partition: Partition) -> RawMessage | None:
        """The newest message of a partition, None for an empty one. Raises as `messages`."""
        begin, end = self.begins([partition])[partition], self.ends([partition])[partition]
        self._consumer.assign(to_kafka([partition]))
        for start in range(end - 1, begin - 1, -1):  # more than once only past transaction markers
            for record in self._records(partition, start, end, f"the last message (offset {end - 1})"):
                return raw_message(record)
        return None

    def _records(
        self, partition: Partition, start: int, stop: int, what: str, max_records: int | None = None
    ) -> Iterator[Any]:
        """Records of the assigned partition as they come, from the offset `start` until the client stands at `stop`."""
        key, consumer = TopicPartition(*partition), self._consumer
        consumer.seek(key, start)
        deadline = time.monotonic() + self._settings.request_timeout_s
        while consumer.position(key) < stop:
            for records in consumer.poll(timeout_ms=200, max_records=max_records).values():
                yield from records
            if time.monotonic() > deadline:
                raise BrokerAway(
                    f"{what} of topic `{partition.topic}`, partition {partition.partition}, did not come from "
                    f"{self._settings.bootstrap_servers} within {self._settings.request_timeout_s:g} s; try again"
                )


@contextmanager
def lookup(settings: KafkaSettings, topics: Collection[str]) -> Iterator[TopicLookup]:
    """Open one connection for several look-ups. What the client raises inside is explained, as by the functions
    below."""
    consumer: Any = connect(
        settings,
        KafkaConsumer,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
    )
    try:
        with explained(settings, "reading offsets", Right("Read", "topic", topics)):
            yield TopicLookup(settings, consumer)
    finally:
        consumer.close(autocommit=False)


def end_offsets(settings: KafkaSettings, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """Last stable offsets, see `TopicLookup.ends`."""
    with lookup(settings, {partition.topic for partition in partitions}) as look:
        return look.ends(partitions)


def beginning_offsets(settings: KafkaSettings, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """First retained offsets, see `TopicLookup.begins`."""
    with lookup(settings, {partition.topic for partition in partitions}) as look:
        return look.begins(partitions)


def last_message(settings: KafkaSettings, topic: str, partition: int) -> RawMessage | None:
    """The newest message of a partition, None for an empty one."""
    with lookup(settings, {topic}) as look:
        return look.last(Partition(topic, partition))


def delete_records(settings: KafkaSettings, before: Mapping[Partition, int]) -> None:
    """Delete the messages of partitions below these offsets. Raises StreamingError where the broker refuses."""
    with _admin(settings) as admin:
        admin.delete_records({TopicPartition(*partition): offset for partition, offset in before.items()})


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


def check_retention(
    settings: KafkaSettings, topics: Iterable[str], *, needed_s: float, max_future_skew_s: float | None = None
) -> list[str]:
    """List warnings about the topics.

    needed_s: the longest window, with its lateness, and the downtime that is to be survived. Raises BadInput, and
    BrokerAway when no broker answers.
    """
    warnings: list[str] = []
    for topic in topics:
        warnings += retention_warnings(topic, topic_config(settings, topic), needed_s, max_future_skew_s)
    return warnings


def retention_warnings(
    topic: str, config: Mapping[str, str], needed_s: float, max_future_skew_s: float | None
) -> list[str]:
    """List the retention problems of a topic with these settings, under the broker's names.

    Raises BadInput where messages would be deleted before they are needed no longer.

    >>> config = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    >>> retention_warnings("ads", config, 90_000, None)
    []
    >>> retention_warnings("ads", config | {"retention.ms": "3600000"}, 90_000, None)
    Traceback (most recent call last):
    streaming.errors.BadInput: topic `ads` keeps its messages for 3,600 s (retention.ms), and 90,000 s are needed: ...
    """
    if "compact" in config["cleanup.policy"]:
        raise BadInput(
            f"topic `{topic}` is compacted (cleanup.policy is {config['cleanup.policy']}): of messages with one key "
            "all but the last are deleted, read or not; set it to delete"
        )
    retention_ms = int(config["retention.ms"])
    if 0 <= retention_ms < needed_s * 1000:
        raise BadInput(
            f"topic `{topic}` keeps its messages for {retention_ms / 1000:,.0f} s (retention.ms), and {needed_s:,.0f} "
            "s are needed: the longest window, its lateness and kafka.downtime_s; raise retention.ms to "
            f"{round(needed_s * 1000)} or more, or lower kafka.downtime_s or the window"
        )
    warnings = []
    if int(config["retention.bytes"]) >= 0:
        warnings.append(
            f"topic `{topic}` keeps {int(config['retention.bytes']):,} bytes of each partition (retention.bytes), "
            f"which may be less than the {needed_s:,.0f} s that are needed; a gap will end the run; -1 sets no limit"
        )
    if max_future_skew_s is not None and config.get("message.timestamp.type", "CreateTime") == "CreateTime":
        ahead_s = int(config["message.timestamp.after.max.ms"]) / 1000
        if ahead_s > max_future_skew_s:
            warnings.append(
                f"topic `{topic}` believes its producers' clocks (message.timestamp.type is CreateTime), up to "
                f"{ahead_s:,.0f} s ahead: one that jumps takes its records' timestamps along, and "
                f"settlement.max_future_skew_s = {max_future_skew_s:g} cannot tell; set message.timestamp.after.max.ms "
                f"to {round(max_future_skew_s * 1000)}, or the type to LogAppendTime"
            )
    return warnings
