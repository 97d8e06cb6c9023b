"""The examples topic lets go of what every reader has learned, and everything goes on as before."""

import pytest
from kafka import KafkaAdminClient, KafkaConsumer

from streaming.delivery.publisher import ExamplesPublisher
from streaming.delivery.reader import BlockPosition, ExamplesReader
from streaming.delivery.trimming import ExamplesTrimmer
from streaming.errors import BrokerAway, StreamingError
from streaming.kafka import topics
from streaming.kafka.topics import beginning_offsets, end_offsets, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.lake.readers import Readers
from streaming.position import Partition
from tests.support.pipelines.live_topic import ROWS as ROWS_SENT
from tests.support.pipelines.live_topic import Live
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
    assert "none can be deleted: managing topics failed" in trimmer.trouble
    assert not trimmer.due(BLOCKS * ROWS)
    assert end_offsets(kafka, [Partition(topic, 0)])[Partition(topic, 0)] == BLOCKS


def test_a_message_of_others_on_the_topic_ends_the_trimming_and_not_the_worker(kafka, topic):
    with TopicWriter(kafka, topic) as writer:
        writer.write(0, [b"what is this?"] * (BLOCKS + 1))
    trimmer = ExamplesTrimmer(kafka, topic, PARTITIONS, keep_rows=ROWS)
    assert trimmer.trim(5 * ROWS) == 0
    assert "none can be deleted" in trimmer.trouble
    assert begins(kafka, topic) == {0}


@pytest.mark.parametrize("step", ["lookup", "delete_records"])
def test_while_the_broker_is_away_nothing_goes_and_the_next_call_tries_again(kafka, topic, monkeypatch, step):
    def away(*_):
        raise BrokerAway("no answer")

    trimmer = ExamplesTrimmer(kafka, topic, PARTITIONS, keep_rows=ROWS)
    with monkeypatch.context() as gone:
        gone.setattr(f"streaming.delivery.trimming.{step}", away)
        assert trimmer.trim(5 * ROWS) == 0
    assert trimmer.trouble is None
    assert trimmer.trim(5 * ROWS) == 4 * PARTITIONS


def test_one_connection_finds_all_that_may_go(kafka, topic, monkeypatch):
    made, connect = [], topics.connect
    monkeypatch.setattr(topics, "connect", lambda *args, **given: made.append(args[1]) or connect(*args, **given))
    assert ExamplesTrimmer(kafka, topic, PARTITIONS, keep_rows=ROWS).trim(5 * ROWS) == 4 * PARTITIONS
    assert made == [KafkaConsumer, KafkaAdminClient]


@pytest.fixture
def live(broker, tmp_path, monkeypatch):
    """A live run whose readers have all learned whatever will come."""
    monkeypatch.setattr("streaming.delivery.trimming.LEAST_ROWS", 0)
    given = {"kafka__examples_keep_rows": 40, "pace__block_rows": 40, "pace__first_block_rows": 40}
    made = Live(broker.bootstrap_servers, tmp_path, **given)
    for name in made.config.reader_names:
        Readers(made.run_dir.readers).register(name, 10**6)
    return made


def test_the_topic_keeps_what_the_teacher_has_not_learned_and_nothing_for_students(live):
    for name in live.config.reader_names:
        Readers(live.run_dir.readers).register(name, 10**6 if name == "teacher" else -1)
    readers, examples = Readers(live.run_dir.readers), live.config.kafka.examples.topic
    with live.opened() as read:
        live.send(live.shown[: ROWS_SENT // 2], [])
        read()
        (before,) = beginning_offsets(live.config.kafka, [Partition(examples, 0)]).values()
        assert before > 0
        readers.register("teacher", -1)
        live.send(live.shown[ROWS_SENT // 2 :], [])
        read()
        assert beginning_offsets(live.config.kafka, [Partition(examples, 0)])[Partition(examples, 0)] == before


def test_a_topic_that_cannot_be_trimmed_is_in_the_report(live, monkeypatch):
    def refuse(settings, before):
        raise StreamingError("managing topics failed: TopicAuthorizationFailedError")

    monkeypatch.setattr("streaming.delivery.trimming.delete_records", refuse)
    live.send(live.shown, [])
    with live.reading() as report:
        assert "the examples topic keeps all its messages from now on" in report.note
