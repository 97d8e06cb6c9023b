"""Messages of topics that others feed, looked at: no group is joined and nothing is committed, so nobody notices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import beginning_offsets, end_offsets
from streaming.messages.message import RawMessage
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition

PATIENCE_S = 30.0
"""A topic is read for no longer, where nothing else is said."""

Offsets = Mapping[Partition, range]
"""Offsets to read, by partition."""


def offsets_of(kafka: KafkaSettings, topic: str, partitions: int) -> dict[Partition, range]:
    """All offsets that a topic holds."""
    all_ = [Partition(topic, number) for number in range(partitions)]
    begins, ends = beginning_offsets(kafka, all_), end_offsets(kafka, all_)
    return {partition: range(begins[partition], ends[partition]) for partition in all_}


def newest(offsets: Offsets, most: int) -> dict[Partition, range]:
    """The last `most` offsets of each partition.

    >>> newest({Partition("ads", 0): range(5, 9), Partition("ads", 1): range(2)}, 3)
    {Partition(topic='ads', partition=0): range(6, 9), Partition(topic='ads', partition=1): range(0, 2)}
    """
    return {partition: of[-most:] for partition, of in offsets.items()}


def messages_at(kafka: KafkaSettings, offsets: Offsets, deadline: float | None = None) -> Iterator[list[RawMessage]]:
    """The messages at these offsets, some at a time. `deadline`, of the monotonic clock: no longer than until then."""
    deadline = time.monotonic() + PATIENCE_S if deadline is None else deadline
    ends = {partition: of.stop for partition, of in offsets.items()}
    with TopicReader(kafka, list(offsets), ends=ends, markers_end=False) as reader:
        reader.open({partition: SourcePosition(of.start) for partition, of in offsets.items()})
        while time.monotonic() < deadline:
            try:
                messages = reader.next_batch(0.5, max_messages=2000)
            except EndOfStream:
                return
            if messages:
                yield messages
