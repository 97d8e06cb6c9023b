"""Copy of a live topic whose partitions follow `impression_id`, each message once, for `settlement.by: partition`.

    python examples/repartition_topic.py ads ads-by-id --bootstrap-servers kafka-1:9092

Messages are JSON objects, one each. Key, value, headers and timestamp stay; the partition is the one in which a run
looks for the id. What has no id goes to partition 0, where the run refuses it in words; end markers, and messages with
neither key nor value, are left out. Messages are copied in the order of their timestamps over all partitions, so event
time is no more out of order than it was.

The copies and how far they go, in all partitions, are one transaction, under the group `repartition-SOURCE-TARGET`: end
the program in any way, start it again, and it goes on. A second one of the same topics ends the first. It runs until
Ctrl-C; with `--until-end`, until all is copied. Partitions that the source gets meanwhile are seen at the next start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, OffsetOutOfRangeError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from streaming.partitioner import Partitioner

AHEAD = 10_000
"""Messages that wait of one partition, while another one is behind."""
SAID_EVERY_S = 3600.0
"""How often a silent topic's offsets are committed again: a broker lets go of those that are a week old."""
LARGEST = 16 << 20
"""Bytes of a message; the target's `max.message.bytes` may be less."""


class TimeOrder:
    """Messages of all partitions of a topic, by their timestamps, from where the consumer's group stands."""

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._partitions = [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(self._partitions)
        committed = {partition: consumer.committed(partition) for partition in self._partitions}
        self.begins_anew = all(offset is None for offset in committed.values())
        begins = consumer.beginning_offsets(self._partitions)
        self.done = {p: begins[p] if offset is None else offset for p, offset in committed.items()}
        """The first offset of each partition that was not handed on."""
        for partition, offset in self.done.items():
            consumer.seek(partition, offset)
        self._waiting: dict[TopicPartition, deque[Any]] = {partition: deque() for partition in self._partitions}
        self._behind = set(self._partitions)

    @property
    def at_end(self) -> bool:
        return not self._behind and not any(self._waiting.values())

    def next(self) -> list[Any]:
        """Messages that none can come before: every partition has a later one, or is at its end."""
        for partition, waiting in self._waiting.items():
            (self._consumer.pause if len(waiting) > AHEAD else self._consumer.resume)(partition)
        for partition, messages in self._consumer.poll(timeout_ms=200, max_records=AHEAD).items():
            self._waiting[partition].extend(messages)
        ends = self._consumer.end_offsets(self._partitions)
        self._behind = {p for p in self._partitions if self._consumer.position(p) < ends[p]}
        ready: list[Any] = []
        while not any(not self._waiting[partition] for partition in self._behind):
            heads = [(waiting[0].timestamp, partition) for partition, waiting in self._waiting.items() if waiting]
            if not heads or len(ready) == AHEAD:
                break
            partition = min(heads)[1]
            ready.append(self._waiting[partition].popleft())
            self.done[partition] = ready[-1].offset + 1
        return ready


class Copier:
    """Copies of messages into the partitions of their ids, with the group's offsets, in transactions."""

    def __init__(self, producer: KafkaProducer, target: str, group: str, owner: Partitioner) -> None:
        self._producer, self._target, self._group, self._owner = producer, target, group, owner
        producer.init_transactions()

    def copy(self, messages: list[Any], done: dict[TopicPartition, int]) -> None:
        """Copy these, or none of them, with the offsets behind them in all partitions."""
        self.last_s = time.monotonic()
        self._producer.begin_transaction()
        sent = [
            self._producer.send(
                self._target,
                m.value,
                m.key,
                [(name, value or b"") for name, value in m.headers],
                place_of(m.value, self._owner),
                timestamp_ms=m.timestamp,
            )
            for m in messages
            if (m.value or m.key) and (m.value or ("exfm-end", b"1") not in m.headers)
        ]
        self._producer.flush()
        for each in sent:
            each.get(timeout=0)  # raises what kept it from being written
        offsets = {p: OffsetAndMetadata(offset, "", -1) for p, offset in done.items()}  # -1: of no leader's epoch
        self._producer.send_offsets_to_transaction(offsets, self._group)
        self._producer.commit_transaction()


def place_of(value: bytes | None, owner: Partitioner) -> int:
    """The partition of a message's id; 0 where it has none.

    >>> place_of(b'{"impression_id": 9}', Partitioner("exfm", 4)), place_of(b"?", Partitioner("exfm", 4))
    (3, 0)
    >>> place_of(b'{"impression_id": 18446744073709551615}', Partitioner("exfm", 4))
    0
    """
    try:
        return int(owner(pa.array([json.loads(value or b"")["impression_id"]]))[0])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, pa.ArrowException):
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target", help="is there, with as many partitions as the other input topic")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--partitioner", choices=["exfm", "kafka"], default="exfm", help="settlement.partitioner")
    parser.add_argument("--until-end", action="store_true", help="end when all is copied")
    asked = parser.parse_args()
    servers, group = asked.bootstrap_servers, f"repartition-{asked.source}-{asked.target}"
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        max_partition_fetch_bytes=LARGEST,
    )
    for topic in (asked.source, asked.target):
        if not consumer.partitions_for_topic(topic):
            sys.exit(f"no topic `{topic}` at {servers}; make it first")
    producer = KafkaProducer(
        bootstrap_servers=servers,
        transactional_id=group,
        acks="all",
        compression_type="lz4",
        max_request_size=LARGEST,
    )
    target = [TopicPartition(asked.target, n) for n in sorted(consumer.partitions_for_topic(asked.target))]
    # First of all, since it ends an earlier copier, and what that had begun.
    copier = Copier(producer, asked.target, group, Partitioner(asked.partitioner, len(target)))
    order, copied = TimeOrder(consumer, asked.source), 0
    if order.begins_anew and consumer.end_offsets(target) != consumer.beginning_offsets(target):
        sys.exit(
            f"`{asked.target}` holds messages, and group {group} has no offsets (a broker lets go of them after a "
            "while): what was copied would be copied again. Make another target, or delete what it holds"
        )
    copier.copy([], order.done)  # so a later start knows that it is one
    print(f"copying {asked.source} to {asked.target}; Ctrl-C ends it", file=sys.stderr, flush=True)
    while not (asked.until_end and order.at_end):
        messages = order.next()
        if messages or time.monotonic() - copier.last_s > SAID_EVERY_S:
            copier.copy(messages, order.done)
            copied += len(messages)
            print(f"\r{copied:,} messages copied", end="", file=sys.stderr)
    print(f"\n{asked.target} has all of {asked.source}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nended; the same command goes on", file=sys.stderr)
    except (InvalidProducerEpochError, ProducerFencedError):
        sys.exit("\nended: another copier of these topics has begun")
    except OffsetOutOfRangeError as error:
        sys.exit(f"\nmessages were deleted from the source before they were copied: {error}")
