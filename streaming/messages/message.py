"""A message of a topic, as it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streaming.position import Partition

END_HEADER = "exfm-end"


class RawMessage(NamedTuple):
    """One Kafka message. `timestamp_ms` is the record's, from its producer or broker; an absent value is b""."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    refused: str | None = None  # why its value was not taken: what holds it is too large
    leader_epoch: int = -1  # of the broker that took it, as the cluster counts them; -1: not known


def is_end_marker(message: RawMessage) -> bool:
    """True for the message a producer writes after its last one: the end of a bounded stream."""
    return not message.value and any(name == END_HEADER for name, _ in message.headers)


def by_partition(messages: Sequence[RawMessage]) -> dict[Partition, list[RawMessage]]:
    """Messages of each partition, in the order given."""
    groups: dict[Partition, list[RawMessage]] = {}
    for message in messages:
        groups.setdefault(Partition(message.topic, message.partition), []).append(message)
    return groups
