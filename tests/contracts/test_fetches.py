"""What is fetched is unpacked in bounded parts, and every message comes once all the same."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kafka import KafkaConsumer

import streaming.kafka.reader as reader_module
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import end_offsets, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.messages.source import EndOfStream
from streaming.position import Partition

pytestmark = pytest.mark.broker

MOST, PARTITIONS = 1_000_000, 3


@pytest.fixture
def places(kafka, topic_name):
    """Three partitions with batches that unpack to a hundred times their size, 20 in each, of two messages."""
    name = topic_name()
    ensure_topics(kafka, {name: PARTITIONS})
    for number in range(PARTITIONS):
        with TopicWriter(kafka, name) as writer:
            for batch in range(20):
                values = [b"%d-%d" % (batch, part) + bytes(200_000) for part in (0, 1)]
                writer.write(number, values)
                writer.flush()
    return [Partition(name, number) for number in range(PARTITIONS)]


def messages_of(reader, places):
    """All of them; now and then some partitions are paused."""
    with suppress(EndOfStream):
        for turn in range(10_000):
            only = None if turn % 3 else places[turn // 3 % PARTITIONS :][:2]
            yield from reader.next_batch(0.2, only=only) or []


def test_a_fetch_that_unpacks_to_more_than_its_bound_is_read_in_parts(kafka, places, monkeypatch):
    monkeypatch.setattr(reader_module, "FETCH_BYTES", MOST)
    at_once, found, plainly = [], {place: [] for place in places}, KafkaConsumer.poll

    def poll(*args, **options):
        records = plainly(*args, **options)
        at_once.append(sum(len(record.value) for each in records.values() for record in each))
        return records

    monkeypatch.setattr(KafkaConsumer, "poll", poll)
    with TopicReader(kafka, places, ends=end_offsets(kafka, places)) as reader:
        reader.open()
        for message in messages_of(reader, places):
            found[Partition(message.topic, message.partition)].append(message.value[:8].split(b"\0")[0])
    assert max(at_once) < MOST + 300_000
    expected = [b"%d-%d" % (batch, part) for batch in range(20) for part in (0, 1)]
    assert found == dict.fromkeys(places, expected)
