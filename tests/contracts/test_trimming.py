"""The examples topic lets go of what every reader has learned, and everything goes on as before."""

import pytest

from streaming.delivery import BlockPosition, ExamplesPublisher, ExamplesReader, ExamplesTrimmer
from streaming.errors import StreamingError
from streaming.kafka import beginning_offsets, end_offsets, ensure_topics
from streaming.position import Partition
from tests.support.streams.lake_rows import SCHEMA, rows

pytestmark = pytest.mark.broker
ROWS, BLOCKS, PARTITIONS = 40, 8, 2


def block(number):
    return rows(number * ROWS, ROWS, block=number)


@pytest.fixture
def topic(kafka, topic_name, monkeypatch):
    monkeypatch.setattr("streaming.delivery.trimming.LEAST_ROWS", 0)
    name = topic_name("examples")
    ensure_topics(kafka, {name: PARTITIONS})
    publisher = ExamplesPublisher(kafka, name, PARTITIONS, SCHEMA, "lake")
    for number in range(BLOCKS):
        publisher.publish(block(number))
    publisher.close()
    return name


def begins(kafka, topic):
    return set(beginning_offsets(kafka, [Partition(topic, p) for p in range(PARTITIONS)]).values())


def test_blocks_that_every_reader_has_learned_go_and_the_rest_is_read_and_published_on(kafka, topic):
    trimmer = ExamplesTrimmer(kafka, topic, PARTITIONS, keep_rows=ROWS)
    assert trimmer.trim(5 * ROWS + 3) == 4 * PARTITIONS  # block 4 holds rows that are to be kept
    assert begins(kafka, topic) == {4}
    assert not trimmer.due(5 * ROWS + 4)
    reader = ExamplesReader(kafka, topic, PARTITIONS, SCHEMA, "lake")
    reader.open(BlockPosition(4))
    assert next(found for _ in range(100) if (found := reader.next_batch(0.1)) is not None).number == 5
    reader.close()
    publisher = ExamplesPublisher(kafka, topic, PARTITIONS, SCHEMA, "lake")
    assert publisher.published_seq == BLOCKS * ROWS - 1
    publisher.publish(block(BLOCKS))
    publisher.close()


def test_the_last_message_stays_for_the_publisher(kafka, topic):
    ExamplesTrimmer(kafka, topic, PARTITIONS, keep_rows=0).trim(BLOCKS * ROWS - 1)
    assert begins(kafka, topic) == {BLOCKS - 1}
    assert ExamplesPublisher(kafka, topic, PARTITIONS, SCHEMA, "lake").published_seq == BLOCKS * ROWS - 1


def test_a_broker_that_deletes_nothing_is_asked_once_and_said(kafka, topic, monkeypatch):
    def refuse(settings, before):
        raise StreamingError("managing topics failed: TopicAuthorizationFailedError")

    monkeypatch.setattr("streaming.delivery.trimming.delete_records", refuse)
    trimmer = ExamplesTrimmer(kafka, topic, PARTITIONS, keep_rows=ROWS)
    assert trimmer.trim(5 * ROWS) == 0
    assert "the broker deletes none: managing topics failed" in trimmer.trouble
    assert not trimmer.due(BLOCKS * ROWS)
    assert end_offsets(kafka, [Partition(topic, 0)])[Partition(topic, 0)] == BLOCKS
