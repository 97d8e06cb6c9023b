"""A broker in memory, for the clients that `streaming.kafka` connects: consumer, producer, administrator.

Below the product's own reader and writer everything is faked but one piece: fetched batches are unpacked by the
client's own code, since `streaming/kafka/reader.py` looks into it. What the clients answer is held to what a real
broker answers by tests/contracts/test_fake_broker.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import KafkaTimeoutError, LogTruncationError, OffsetOutOfRangeError
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from tests.simulation.log import Log, Record
from tests.simulation.scheduler import Scheduler


class _Batch:
    """One record as the client's code expects a batch."""

    magic = 2

    def __init__(self, record: Record) -> None:
        self._record, self._given = record, False
        self.base_offset = self.last_offset = record.offset
        self.next_offset = record.offset + 1
        self.producer_id = -1 if record.transaction is None else record.transaction
        self.is_transactional = record.transaction is not None
        self.is_control_batch = record.control
        self.leader_epoch = record.epoch

    def validate_crc(self) -> bool:
        return True

    def has_producer_id(self) -> bool:
        return self.is_transactional

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if self._given:
            raise StopIteration
        self._given = True
        return self._record


class _Batches:
    def __init__(self, records: Iterable[Record]) -> None:
        self._batches = deque(_Batch(record) for record in records)

    def next_batch(self) -> _Batch | None:
        return self._batches.popleft() if self._batches else None


@dataclass
class _Aborted:
    producer_id: int
    first_offset: int


class Broker:
    """Topics, and what befalls those who use them."""

    def __init__(self, scheduler: Scheduler, topics: Mapping[str, int], message_bytes: int = 1 << 20) -> None:
        self.message_bytes = message_bytes
        self.scheduler = scheduler
        self.random = scheduler.random
        self.topics = dict(topics)
        self.logs = {TopicPartition(t, p): Log() for t, count in topics.items() for p in range(count)}
        self.away_until = float("-inf")
        self.stalled: dict[TopicPartition, int] = {}
        self.patient = False
        """Fetches bring all that there is."""
        self._producers: list[FakeProducer] = []

    def grow(self, topic: str) -> None:
        """One more partition."""
        self.logs[TopicPartition(topic, self.topics[topic])] = Log()
        self.topics[topic] += 1

    @property
    def away(self) -> bool:
        return self.scheduler.clock() < self.away_until

    def connect(self, settings: Any, client: type, **options: Any) -> Any:
        """As `streaming.kafka.client.connect`."""
        self.scheduler.point(f"connect {client.__name__}")
        if self.away:  # a connection waits for as long as it has; then the process is started again
            self.scheduler.clock.advance(max(0.0, self.away_until - self.scheduler.clock()))
        if client is KafkaConsumer:
            return FakeConsumer(self, **options)
        if client is KafkaProducer:
            self._producers.append(FakeProducer(self))
            return self._producers[-1]
        assert client is KafkaAdminClient
        return FakeAdmin(self)

    def process_dies(self, process: Any) -> None:
        """Of what it had not flushed, some of each partition may have been sent."""
        for producer in [p for p in self._producers if p.process is process]:
            producer.dies()
            self._producers.remove(producer)


class FakeConsumer:
    """`KafkaConsumer` for assigned partitions: no group, no rebalance."""

    def __init__(self, broker: Broker, *, isolation_level: str = "read_uncommitted", **options: Any) -> None:
        self._broker = broker
        self._committed_only = isolation_level == "read_committed"
        self._assigned: list[TopicPartition] = []
        self._positions: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._highwater: dict[TopicPartition, int] = {}
        self._ready: dict[TopicPartition, list[Any]] = {}
        self._fetcher = _FakeFetcher()
        self._subscription = _FakeSubscription(self._positions, self._epochs)

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self._assigned = list(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition], self._epochs[partition] = offset, None

    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        return self._positions[partition]

    def highwater(self, partition: TopicPartition) -> int | None:
        return self._highwater.get(partition)

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused -= set(partitions)

    def paused(self) -> set[TopicPartition]:
        return set(self._paused)

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        self._answer(timeout_ms)
        return {p: self._broker.logs[p].begin for p in partitions}

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        self._answer(timeout_ms)
        logs = self._broker.logs
        return {p: logs[p].stable_end if self._committed_only else logs[p].end for p in partitions}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self._answer(None)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, time_ms in times.items():
            log = self._broker.logs[partition]
            records = (r for r in log.records[log.begin :] if r.timestamp >= time_ms and not r.control)
            first = next(records, None)
            found[partition] = None if first is None else OffsetAndTimestamp(first.offset, first.timestamp, first.epoch)
        return found

    def _answer(self, timeout_ms: int | None) -> None:
        self._broker.scheduler.point("ask the broker")
        if self._broker.away:
            self._broker.scheduler.clock.advance((30_000 if timeout_ms is None else timeout_ms) / 1000)
            if self._broker.away:
                raise KafkaTimeoutError("the broker is away")

    def poll(self, timeout_ms: int = 0, max_records: int = 500) -> dict[TopicPartition, list[Any]]:
        broker = self._broker
        broker.scheduler.point("fetch")
        found: dict[TopicPartition, list[Any]] = {}
        if not broker.away:
            wanted = [p for p in self._assigned if p not in self._paused]
            if not broker.patient:
                broker.random.shuffle(wanted)
            for partition in wanted:
                if records := self._fetch(partition):
                    found[partition] = records
        if not found:
            broker.scheduler.clock.advance(timeout_ms / 1000)
        return found

    def _fetch(self, partition: TopicPartition) -> list[Any]:
        broker, log, at = self._broker, self._broker.logs[partition], self._positions[partition]
        if broker.stalled.get(partition, 0) > 0:
            broker.stalled[partition] -= 1
            return []
        epoch = self._epochs.get(partition)
        if epoch is not None and epoch < log.epoch and log.end_of_epoch(epoch) < at:
            raise LogTruncationError({partition: OffsetAndMetadata(log.end_of_epoch(epoch), "", epoch)})
        if not log.begin <= at <= log.end:
            raise OffsetOutOfRangeError({partition: at})
        self._highwater[partition] = log.end
        end = log.stable_end if self._committed_only else log.end
        if at >= end:
            return []
        if not broker.patient:
            end = min(end, at + broker.random.choice([0, 1, 1, 2, 3, 5, 100]))
        records = log.records[at:end]
        if not records:
            return []
        aborted = [_Aborted(t, first) for t, first in log.aborted.items() if first < end]
        unpacked = self._fetcher.PartitionRecords(
            at,
            partition,
            _Batches(records),
            check_crcs=False,
            isolation_level=IsolationLevel.READ_COMMITTED if self._committed_only else IsolationLevel.READ_UNCOMMITTED,
            aborted_transactions=[a for a in aborted if log.records[a.first_offset].offset <= end],
        )
        taken = unpacked.take()
        self._positions[partition] = unpacked.next_fetch_offset
        self._epochs[partition] = records[-1].epoch
        return list(taken)

    def commit_async(self, offsets: Any) -> _Done:
        return _Done()

    def close(self, **options: Any) -> None:
        pass


class _FakeSubscription:
    """Where the client keeps positions, and takes one with the leader under which it was read; `KafkaConsumer.seek`
    comes first."""

    def __init__(self, positions: dict[TopicPartition, int], epochs: dict[TopicPartition, int | None]) -> None:
        self._positions, self._epochs = positions, epochs

    @property
    def assignment(self) -> dict[TopicPartition, SimpleNamespace]:
        """Positions by partition."""
        return {
            each: SimpleNamespace(position=SimpleNamespace(offset=at), awaiting_validation=False)
            for each, at in self._positions.items()
        }

    def seek(self, partition: TopicPartition, position: OffsetAndMetadata) -> None:
        self._epochs[partition] = position.leader_epoch


class _FakeFetcher:
    PartitionRecords = Fetcher.PartitionRecords


class _Done:
    is_done = True

    def add_errback(self, _: Any) -> None:
        pass

    def get(self, timeout: float | None = None) -> None:
        pass


class _Sender:
    def __init__(self, producer: FakeProducer) -> None:
        self._producer = producer

    def force_close(self) -> None:
        self._producer.waiting.clear()

    def join(self, timeout: float) -> None:
        pass


class FakeProducer:
    """An idempotent `KafkaProducer`: in order within a partition, each message once, stored when it is flushed."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self.process = broker, broker.scheduler.process
        self.waiting: dict[TopicPartition, deque[Record]] = {}
        self._sender = _Sender(self)

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: list[tuple[str, bytes]],
        partition: int,
        timestamp_ms: int | None,
    ) -> _Done:
        self._broker.scheduler.point(f"send to {topic}")
        stamp = self._broker.scheduler.clock.now_ms() if timestamp_ms is None else timestamp_ms
        record = Record(value, key, stamp, list(headers))
        self.waiting.setdefault(TopicPartition(topic, partition), deque()).append(record)
        return _Done()

    def flush(self, timeout: float | None = None) -> None:
        if not self.waiting:  # there is nothing that a broker would have to answer
            return
        self._broker.scheduler.point("flush messages")
        if self._broker.away:
            self._broker.scheduler.clock.advance(max(0.0, self._broker.away_until - self._broker.scheduler.clock()))
        for partition, records in self.waiting.items():
            self._store(partition, len(records))
        self.waiting.clear()
        self._broker.scheduler.point("messages are flushed")

    def dies(self) -> None:
        for partition, records in sorted(self.waiting.items()):
            self._store(partition, self._broker.random.randint(0, len(records)))
        self.waiting.clear()

    def _store(self, partition: TopicPartition, count: int) -> None:
        for _ in range(count):
            self._broker.logs[partition].append(self.waiting[partition].popleft())

    def close(self, timeout: float | None = None) -> None:
        pass


class FakeAdmin:
    """`KafkaAdminClient`, as far as the product asks it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe_topics(self, topics: Collection[str] | None = None) -> list[dict[str, Any]]:
        return [
            {"name": name, "error_code": 0, "topic_id": f"id-of-{name}", "partitions": list(range(count))}
            for name, count in self._broker.topics.items()
            if topics is None or name in topics
        ]

    def describe_cluster(self) -> dict[str, Any]:
        return {"cluster_id": "simulated"}

    def describe_configs(self, resources: list[Any], config_filter: str = "all") -> dict[str, Any]:
        entries = {"max.message.bytes": {"value": str(self._broker.message_bytes)}}
        return {"topic": {resource.name: entries for resource in resources}}

    def close(self) -> None:
        pass
