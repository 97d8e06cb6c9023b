"""The broker of the simulation answers as a real one does: one suite, asked of both through the product's own reader,
writer and questions about topics.

Only a real cluster could lose messages in an unclean election: that part of the fake follows the client's code
(KIP-320).
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

import streaming.kafka.reader as reader_module
import streaming.kafka.topics as topics_module
import streaming.kafka.writer as writer_module
from streaming.errors import BadInput, DataLost
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import (
    beginning_offsets,
    cluster_and_topics,
    end_offsets,
    ensure_topics,
    last_message,
    lookup,
    require_topics,
    topic_config,
)
from streaming.kafka.writer import TopicWriter
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition
from tests.simulation.broker import Broker
from tests.simulation.log import Log, Record
from tests.simulation.scheduler import Scheduler
from tests.support.streams.source_contract import SourceContract
from tests.support.waiting import PATIENCE_S


class Bench(ABC):
    """A broker that a test can write to in transactions."""

    settings: KafkaSettings

    @abstractmethod
    def topic(self, partitions: int = 1) -> str:
        """A new topic."""

    @abstractmethod
    def begin(self, topic: str, *values: bytes) -> Any:
        """Send in a transaction, which stays open."""

    @abstractmethod
    def decide(self, transaction: Any, *, commit: bool) -> None: ...

    @abstractmethod
    def delete_before(self, topic: str, offset: int) -> None: ...

    def write(self, topic: str, *values: bytes) -> None:
        with TopicWriter(self.settings, topic) as writer:
            writer.write(0, values)


class Real(Bench):
    def __init__(self, settings: KafkaSettings, name: Any) -> None:
        self.settings, self._name = settings, name
        self._producers: list[KafkaProducer] = []

    def topic(self, partitions: int = 1) -> str:
        name: str = self._name()
        ensure_topics(self.settings, {name: partitions})
        return name

    def begin(self, topic: str, *values: bytes) -> Any:
        producer = KafkaProducer(bootstrap_servers=self.settings.bootstrap_servers, transactional_id=self._name("id"))
        self._producers.append(producer)
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush()
        return producer

    def decide(self, transaction: Any, *, commit: bool) -> None:
        if commit:
            transaction.commit_transaction()
        else:
            transaction.abort_transaction()

    def delete_before(self, topic: str, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.settings.bootstrap_servers)
        admin.delete_records({TopicPartition(topic, 0): offset})
        admin.close()

    def close(self) -> None:
        for producer in self._producers:
            producer.close(timeout=5)


class Simulated(Bench):
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = KafkaSettings(bootstrap_servers="simulated:1")
        self.broker = Broker(Scheduler(0), {})
        self._numbers = itertools.count()
        for module in (reader_module, writer_module, topics_module):
            monkeypatch.setattr(module, "connect", self.broker.connect)

    def topic(self, partitions: int = 1) -> str:
        name = f"topic-{next(self._numbers)}"
        self.broker.topics[name] = partitions
        self.broker.logs |= {TopicPartition(name, p): Log() for p in range(partitions)}
        return name

    def _log(self, topic: str) -> Log:
        return self.broker.logs[TopicPartition(topic, 0)]

    def begin(self, topic: str, *values: bytes) -> Any:
        number = next(self._numbers)
        for value in values:
            self._log(topic).append(Record(value, transaction=number))
        return topic, number

    def decide(self, transaction: Any, *, commit: bool) -> None:
        topic, number = transaction
        self._log(topic).decide(number, commit=commit)

    def delete_before(self, topic: str, offset: int) -> None:
        self._log(topic).begin = offset


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.broker), "simulated"])
def bench(request, monkeypatch, topic_name):
    if request.param == "simulated":
        yield Simulated(monkeypatch)
        return
    real = Real(request.getfixturevalue("kafka"), topic_name)
    yield real
    real.close()


@pytest.fixture
def opened(bench):
    readers = []

    def make(topic: str, partitions: int = 1, position: dict[Partition, SourcePosition] | None = None, **options: Any):
        readers.append(TopicReader(bench.settings, [Partition(topic, p) for p in range(partitions)], **options))
        readers[-1].open(position)
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def read(reader: TopicReader, count: int) -> list[Any]:
    """So many messages, or all up to the end."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        try:
            found += reader.next_batch(0.2) or []
        except EndOfStream:
            break
    return found


def silent(reader: TopicReader) -> bool:
    return all(not reader.next_batch(0.1) for _ in range(4))


def test_messages_come_as_they_were_sent(bench, opened):
    topic = bench.topic()
    with TopicWriter(bench.settings, topic) as writer:
        writer.write(0, [b"a", b"b"], headers=[("h", b"1")], timestamp_ms=[7, 8], key=b"k")
        writer.write(0, [b""])
        writer.end_marker()
    reader = opened(topic)
    found = read(reader, 4)
    assert [(m.offset, m.value, m.timestamp_ms, m.key, m.headers) for m in found[:2]] == [
        (0, b"a", 7, b"k", (("h", b"1"),)),
        (1, b"b", 8, b"k", (("h", b"1"),)),
    ]
    assert [(m.offset, m.value, m.key, m.headers) for m in found[2:]] == [(2, b"", None, ())]
    assert reader.marked == {Partition(topic, 0)}
    assert reader.position() == {Partition(topic, 0): SourcePosition(3)}


def test_offsets_are_found_by_time(bench):
    topic = bench.topic()
    with TopicWriter(bench.settings, topic) as writer:
        writer.write(0, [b"a", b"b", b"c"], timestamp_ms=[100, 300, 200])
    partition = Partition(topic, 0)
    with lookup(bench.settings, {topic}) as look:
        assert [look.at_times({partition: ms})[partition] for ms in (-1, 100, 101, 300, 301)] == [0, 0, 1, 1, 3]


def test_what_was_aborted_is_passed_over_and_explained(bench, opened):
    topic = bench.topic()
    bench.decide(bench.begin(topic, b"never", b"nor this"), commit=False)
    bench.decide(bench.begin(topic, b"a"), commit=True)
    bench.write(topic, b"b")
    bench.decide(bench.begin(topic, b"nor that"), commit=False)
    partition = Partition(topic, 0)
    end = end_offsets(bench.settings, [partition])[partition]
    reader = opened(topic, ends={partition: end})
    assert [(m.offset, m.value) for m in read(reader, 9)] == [(3, b"a"), (5, b"b")]
    assert (end, reader.position()[partition].offset) == (8, 8)


def test_an_answer_of_before_a_message_is_not_taken_for_one_of_after_it_however_coarse_the_clock(bench, opened):
    topic = bench.topic()
    bench.write(topic, b"a")
    reader, partition = opened(topic, clock=lambda: 7.0), Partition(topic, 0)
    read(reader, 1)
    assert reader.at_end(partition, 0.0)
    bench.write(topic, b"b")
    assert not reader.at_end(partition, 0.0)


def test_an_open_transaction_holds_back_what_follows_it(bench, opened):
    topic = bench.topic()
    bench.write(topic, b"a")
    transaction = bench.begin(topic, b"b")
    bench.write(topic, b"c")
    reader, partition = opened(topic), Partition(topic, 0)
    assert [m.value for m in read(reader, 1)] == [b"a"]
    assert silent(reader)
    assert reader.end_offsets() == {partition: 1}
    assert not reader.at_end(partition, 0.0)
    assert reader.undecided == {partition}
    bench.decide(transaction, commit=True)
    assert [m.value for m in read(reader, 2)] == [b"b", b"c"]
    assert silent(reader)
    assert reader.at_end(partition, 0.0)
    assert reader.undecided == frozenset()


@pytest.mark.parametrize("opened_before", [True, False])
def test_messages_that_were_deleted_unread_are_an_error(bench, opened, opened_before):
    topic = bench.topic()
    bench.write(topic, *(b"%d" % n for n in range(6)))
    third = {Partition(topic, 0): SourcePosition(2)}
    reader = opened(topic, position=third) if opened_before else None
    bench.delete_before(topic, 4)
    with pytest.raises(DataLost, match="retention has deleted all before 4: 2 messages"):
        read(reader or opened(topic, position=third), 6)
    assert [m.value for m in read(opened(topic), 2)] == [b"4", b"5"]
    assert beginning_offsets(bench.settings, [Partition(topic, 0)]) == {Partition(topic, 0): 4}


def test_a_position_beyond_the_end_is_an_error(bench, opened):
    topic = bench.topic()
    bench.write(topic, b"a")
    with pytest.raises(DataLost, match="the topic ends at 1"):
        opened(topic, position={Partition(topic, 0): SourcePosition(5)})


def test_the_last_message_is_found_past_the_records_of_transactions(bench):
    topic = bench.topic()
    assert last_message(bench.settings, topic, 0) is None
    bench.decide(bench.begin(topic, b"a", b"b"), commit=True)
    bench.decide(bench.begin(topic, b"never"), commit=False)
    newest = last_message(bench.settings, topic, 0)
    assert newest is not None
    assert (newest.offset, newest.value) == (1, b"b")


def test_a_partition_that_is_not_asked_gives_nothing_and_loses_nothing(bench, opened):
    topic = bench.topic(2)
    with TopicWriter(bench.settings, topic) as writer:
        for partition in range(2):
            writer.write(partition, [b"%d" % n for n in range(4)])
            writer.end_marker([partition])
    reader, left, right = opened(topic, 2), Partition(topic, 0), Partition(topic, 1)
    found: list[Any] = []
    while left not in reader.ended:
        found += reader.next_batch(0.2, max_messages=3, only=[left]) or []
    assert [(m.partition, m.offset) for m in found] == [(0, n) for n in range(4)]
    assert [(m.partition, m.offset) for m in read(reader, 9)] == [(1, n) for n in range(4)]
    reader.seek({right: SourcePosition(2)})
    assert [(m.partition, m.offset) for m in read(reader, 9)] == [(1, 2), (1, 3)]


def test_what_is_written_and_not_flushed_is_never_there_after_a_crash(bench, opened):
    topic = bench.topic()
    writer = TopicWriter(bench.settings, topic)
    writer.write(0, [b"a"])
    writer.flush()
    writer.abandon()
    assert [m.value for m in read(opened(topic), 1)] == [b"a"]


def test_questions_about_topics(bench):
    topic = bench.topic(3)
    assert require_topics(bench.settings, [topic]) == {topic: 3}
    assert int(topic_config(bench.settings, topic)["max.message.bytes"]) >= 1 << 20
    cluster, topics = cluster_and_topics(bench.settings, [topic])
    assert (cluster is not None, topics[topic][0] is not None, topics[topic][1]) == (True, True, 3)
    with pytest.raises(BadInput, match="no topic `absent`"):
        require_topics(bench.settings, ["absent"])


class Few(TopicReader):
    """A few messages at a time, so that there are batches to speak of."""

    def next_batch(self, max_wait_s=0.0, *, max_messages=3, only=None):
        return super().next_batch(max_wait_s, max_messages=max_messages, only=only)


class TestSimulatedSource(SourceContract):
    """What tests/contracts/test_sources.py asks of a real topic."""

    VALUES = tuple(b"%d" % n for n in range(11))

    @pytest.fixture(autouse=True)
    def _topic(self, monkeypatch):
        self.bench = Simulated(monkeypatch)
        self.topic = self.bench.topic()
        with TopicWriter(self.bench.settings, self.topic) as writer:
            writer.write(0, self.VALUES)
            writer.end_marker()
            writer.write(0, [b"not read"])

    def source(self):
        return Few(self.bench.settings, [Partition(self.topic, 0)])

    def rows(self, batch):
        return [message.value for message in batch]

    def all_rows(self):
        return list(self.VALUES)

    def lose(self, rows):
        self.bench.delete_before(self.topic, rows)
