"""Messages are read as written, from where one likes, up to the end; gaps and silence are named."""

import os
import signal
import time
from contextlib import suppress

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import RetriableError

from streaming.errors import BrokerAway, StreamingError
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import beginning_offsets, end_offsets, ensure_topics, last_message
from streaming.kafka.writer import TopicWriter
from streaming.messages.message import END_HEADER, RawMessage, is_end_marker
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.broker


def filled(kafka, topic, values, partition=0):
    with TopicWriter(kafka, topic) as writer:
        writer.write(partition, values, timestamp_ms=[1000 + n for n in range(len(values))])


def read(reader, count):
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += reader.next_batch(0.5) or []
    return found


def delete_before(kafka, topic, offset):
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_messages_are_read_as_written(kafka, topic):
    with TopicWriter(kafka, topic) as writer:
        writer.write(1, [b"a", b"b"], headers=[("block", b"7")], timestamp_ms=123, key=b"k")
    with TopicReader(kafka, [Partition(topic, 1)]) as reader:
        reader.open({})
        first, second = read(reader, 2)
    assert first == RawMessage(topic, 1, 0, 123, b"k", b"a", (("block", b"7"),), leader_epoch=0)
    assert (second.offset, second.value) == (1, b"b")


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_a_topic_of_any_compression_is_read(kafka, topic, compression):
    values = [bytes([n % 251]) * n for n in range(1, 30_000, 997)]
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=compression)
    for value in values:
        producer.send(topic, value, partition=0)
    producer.close(timeout=20)
    with TopicReader(kafka, [Partition(topic, 0)]) as reader:
        reader.open({})
        assert [message.value for message in read(reader, len(values))] == values


def test_a_live_stream_continues_after_an_end_marker(kafka, topic):
    with TopicWriter(kafka, topic) as writer:
        writer.write(0, [b"a"])
        writer.end_marker([0])
        writer.write(0, [b"b"])
    partition = Partition(topic, 0)
    with TopicReader(kafka, [partition], markers_end=False) as reader:
        reader.open({})
        found = read(reader, 3)
        assert [message.value for message in found if not is_end_marker(message)] == [b"a", b"b"]
        assert reader.position() == {partition: SourcePosition(3)}
        assert not reader.ended


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_every_compression_brings_the_bytes_back(kafka, topic, compression):
    values = [bytes([n % 251]) * n for n in range(1, 3000, 37)]
    filled(kafka.model_copy(update={"compression": compression}), topic, values)
    with TopicReader(kafka, [Partition(topic, 0)]) as reader:
        reader.open({})
        assert [message.value for message in read(reader, len(values))] == values


def test_a_reader_resumes_where_it_is_told_to(kafka, topic):
    filled(kafka, topic, [b"a", b"b", b"c"])
    partition = Partition(topic, 0)
    with TopicReader(kafka, [partition]) as reader:
        reader.open({partition: SourcePosition(1)})
        assert [m.value for m in read(reader, 2)] == [b"b", b"c"]
        assert reader.position() == {partition: SourcePosition(3)}
        reader.seek({partition: SourcePosition(2)})
        assert [m.value for m in read(reader, 1)] == [b"c"]


def test_only_the_partitions_asked_for_are_polled(kafka, topic):
    filled(kafka, topic, [b"a"], 0)
    filled(kafka, topic, [b"b"], 1)
    zero, one = Partition(topic, 0), Partition(topic, 1)
    with TopicReader(kafka, [zero, one]) as reader:
        reader.open({})
        assert {m.partition for m in reader.next_batch(1.0, only=[one]) or []} <= {1}
        reader.next_batch(0.3, only=[one])
        assert reader.position()[zero] == SourcePosition(0)
        assert [m.value for m in read(reader, 1)] == [b"a"]


def test_a_partition_left_alone_half_read_goes_on_while_the_others_are_silent(kafka, topic):
    filled(kafka, topic, [b"%d" % n for n in range(10)], 0)
    filled(kafka, topic, [b"x", b"y"], 1)
    zero, one = Partition(topic, 0), Partition(topic, 1)
    with TopicReader(kafka, [zero, one]) as reader:
        reader.open({})
        assert [m.value for m in reader.next_batch(20.0, max_messages=3, only=[zero])] == [b"0", b"1", b"2"]
        assert reader.position()[zero] == SourcePosition(3)
        found = []
        while len(found) < 2:
            found += reader.next_batch(1.0, max_messages=1, only=[one]) or []
        assert reader.next_batch(0.5, only=[one]) is None
        assert [m.value for m in read(reader, 7)] == [b"%d" % n for n in range(3, 10)]


def test_the_end_is_confirmed_by_the_broker(kafka, topic):
    zero, one = Partition(topic, 0), Partition(topic, 1)
    filled(kafka, topic, [b"a"])
    with TopicReader(kafka, [zero, one]) as reader:
        reader.open({})
        assert not reader.at_end(zero)
        eventually(lambda: reader.at_end(one))  # the broker has a second to answer
        read(reader, 1)
        eventually(lambda: reader.at_end(zero))
        filled(kafka, topic, [b"b"])
        assert not reader.at_end(zero, max_age_s=0)


def test_messages_that_came_do_not_make_an_old_end_new(kafka, topic):
    partition = Partition(topic, 0)
    with TopicReader(kafka, [partition], clock=(now := iter(range(1000))).__next__) as reader:
        reader.open({})
        filled(kafka, topic, [b"a", b"b"])
        assert [m.value for m in reader.next_batch(20.0, max_messages=1)] == [b"a"]
        assert not reader.at_end(partition, max_age_s=0.25)
        assert next(now) > 0


def test_an_end_marker_reaches_every_partition(kafka, topic):
    with TopicWriter(kafka, topic) as writer:
        writer.end_marker()
    with TopicReader(kafka, [Partition(topic, 0), Partition(topic, 1)]) as reader:
        reader.open({})
        eventually(lambda: reader.next_batch(0.5) or reader.ended)
        with pytest.raises(EndOfStream):
            read(reader, 1)
    assert reader.ended == {(topic, 0), (topic, 1)}
    last = last_message(kafka, topic, 1)
    assert is_end_marker(last)
    assert last.headers == ((END_HEADER, b"1"),)


def test_the_last_message_is_found(kafka, topic):
    assert last_message(kafka, topic, 0) is None
    filled(kafka, topic, [b"a", b"z"])
    assert last_message(kafka, topic, 0).value == b"z"
    assert end_offsets(kafka, [Partition(topic, 0), Partition(topic, 1)]) == {(topic, 0): 2, (topic, 1): 0}


def test_a_message_of_many_megabytes_passes(kafka, topic):
    big = os.urandom(12 * 2**20)
    filled(kafka, topic, [big, b"after"])
    with TopicReader(kafka, [Partition(topic, 0)]) as reader:
        reader.open({})
        assert [m.value for m in read(reader, 2)] == [big, b"after"]


def test_a_gap_made_by_retention_is_an_error_that_counts_what_is_lost(kafka, topic):
    filled(kafka, topic, [b"%d" % n for n in range(10)])
    delete_before(kafka, topic, 6)
    partition = Partition(topic, 0)
    assert beginning_offsets(kafka, [partition]) == {partition: 6}
    with TopicReader(kafka, [partition]) as reader:
        with pytest.raises(StreamingError, match=rf"`{topic}`, partition 0: offset 2 .* before 6: 4 messages"):
            reader.open({partition: SourcePosition(2)})
        reader.open({})
        assert [m.offset for m in read(reader, 4)] == [6, 7, 8, 9]


def test_a_gap_made_while_reading_is_an_error_too(kafka, topic):
    filled(kafka, topic, [b"%d" % n for n in range(10)])
    partition = Partition(topic, 0)
    with TopicReader(kafka, [partition]) as reader:
        reader.open({})
        delete_before(kafka, topic, 6)
        reader.seek({partition: SourcePosition(3)})
        with pytest.raises(StreamingError, match="before 6: 3 messages are lost"):
            read(reader, 1)


def test_a_position_beyond_the_end_means_another_topic(kafka, topic):
    with TopicReader(kafka, [Partition(topic, 0)]) as reader, pytest.raises(StreamingError, match="ends at 0"):
        reader.open({Partition(topic, 0): SourcePosition(5)})


def test_positions_are_shown_to_lag_monitors(kafka, topic):
    partition = Partition(topic, 0)
    filled(kafka, topic, [b"a", b"b"])
    with TopicReader(kafka, [partition], group=topic) as reader:
        reader.open({})
        read(reader, 2)
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

        def committed():
            reader.commit_for_display({partition: SourcePosition(2)})
            with suppress(RetriableError):  # the first group of a broker: its coordinator loads
                return _committed(admin, topic)

        shown = eventually(committed, look_s=0.1)
        admin.close()
    assert shown == {TopicPartition(topic, 0): 2}


def _committed(admin, group):
    offsets = admin.list_group_offsets([group])[group]
    return {key: value.offset for key, value in offsets.items() if value.offset >= 0}


def test_a_broker_that_stands_still_is_noticed_and_not_taken_for_the_end(own_kafka, own_broker, topic_name):
    now = [0.0]
    kafka, topic = own_kafka, topic_name()
    ensure_topics(kafka, {topic: 1})
    partition, pid = Partition(topic, 0), own_broker.status().pid
    with TopicReader(kafka, [partition], clock=lambda: time.monotonic() + now[0]) as reader:
        reader.open({})
        eventually(lambda: reader.at_end(partition))
        os.kill(pid, signal.SIGSTOP)
        try:
            now[0] += 2 * kafka.give_up_s  # nobody asked for so long, which is no reason to give up
            started = time.monotonic()
            assert reader.next_batch(0.5) is None
            assert time.monotonic() - started < kafka.request_timeout_s / 2  # the half second, and one for the end
            eventually(lambda: reader.next_batch(0.1) is None and not reader.reachable)  # an answer was on its way
            assert not reader.at_end(partition)
            assert reader.end_offsets() == {partition: 0}
            now[0] += kafka.give_up_s
            with pytest.raises(BrokerAway, match=r"has not answered for 3\d\d s"):
                reader.next_batch(0.2)
        finally:
            os.kill(pid, signal.SIGCONT)
        filled(kafka, topic, [b"back"])
        assert [m.value for m in read(reader, 1)] == [b"back"]
        assert reader.reachable
