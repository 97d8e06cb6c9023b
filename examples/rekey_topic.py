"""Copy of a live topic whose partitions follow `impression_id`, each message once, for `settlement.by: partition`.

    python examples/rekey_topic.py ads ads-by-id --bootstrap-servers kafka-1:9092

Messages are JSON objects, one each. Key, value, headers and timestamp stay; the partition is the one in which a run
looks for the id. What has no id goes to partition 0, where the run refuses it in words; end markers are left out.
Messages are copied in the order of their timestamps over all partitions, so event time is no more out of order than
it was.

The copies and how far they go are one transaction, under the consumer group `rekey-SOURCE-TARGET`: end the program in
any way, start it again, and it goes on. A second one of the same topics ends the first. It runs until Ctrl-C; with
`--until-end`, until all is copied.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from streaming.partitioner import Partitioner

AHEAD = 10_000
"""Messages that wait of one partition, while another one is behind."""


class TimeOrder:
    """Messages of all partitions of a topic, by their timestamps."""

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._partitions = [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(self._partitions)
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
            ready.append(self._waiting[min(heads)[1]].popleft())
        return ready


def place_of(value: bytes, owner: Partitioner) -> int:
    """The partition of a message's id; 0 where it has none.

    >>> place_of(b'{"impression_id": 9}', Partitioner("exfm", 4)), place_of(b"?", Partitioner("exfm", 4))
    (3, 0)
    """
    try:
        return int(owner(pa.array([json.loads(value)["impression_id"]]))[0])
    except (ValueError, KeyError, TypeError, pa.ArrowException):
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target", help="is there, with as many partitions as the other input topic")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--partitioner", choices=["exfm", "kafka"], default="exfm", help="settlement.partitioner")
    parser.add_argument("--until-end", action="store_true", help="end when all is copied")
    asked = parser.parse_args()
    group = f"rekey-{asked.source}-{asked.target}"
    consumer = KafkaConsumer(
        bootstrap_servers=asked.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    producer = KafkaProducer(
        bootstrap_servers=asked.bootstrap_servers, transactional_id=group, acks="all", compression_type="lz4"
    )
    for topic in (asked.source, asked.target):
        if not consumer.partitions_for_topic(topic):
            sys.exit(f"no topic `{topic}` at {asked.bootstrap_servers}; make it first")
    producer.init_transactions()
    order, copied = TimeOrder(consumer, asked.source), 0
    owner = Partitioner(asked.partitioner, len(consumer.partitions_for_topic(asked.target)))
    print(f"copying {asked.source} to {asked.target}; Ctrl-C ends it", file=sys.stderr, flush=True)
    while not (asked.until_end and order.at_end):
        if not (messages := order.next()):
            continue
        producer.begin_transaction()
        for m in messages:
            if m.value or ("exfm-end", b"1") not in m.headers:
                place = place_of(m.value, owner)
                producer.send(asked.target, m.value, m.key, list(m.headers), place, timestamp_ms=m.timestamp)
        producer.send_offsets_to_transaction(_behind(messages), group)
        producer.commit_transaction()
        copied += len(messages)
        print(f"\r{copied:,} messages copied", end="", file=sys.stderr)
    print(f"\n{asked.target} has all of {asked.source}", file=sys.stderr)
    return 0


def _behind(messages: Sequence[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offset behind the last message of each partition; -1: its leader's epoch, which a message does not say."""
    return {TopicPartition(m.topic, m.partition): OffsetAndMetadata(m.offset + 1, "", -1) for m in messages}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nended; the same command goes on", file=sys.stderr)
