"""Topics in and out, against a real broker."""

import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import RetriableError
from kafka.net.compat import KafkaNetClient

from streaming.errors import BadInput, BrokerAway, StreamingError
from streaming.kafka import (
    KafkaSettings,
    TopicReader,
    TopicWriter,
    beginning_offsets,
    end_offsets,
    ensure_topics,
    last_message,
    require_topics,
    topic_config,
)
from streaming.messages import END_HEADER, EndOfStream, RawMessage, is_end_marker
from streaming.position import Partition, SourcePosition

pytestmark = pytest.mark.broker


@pytest.fixture
def topic(kafka, topic_name):
    """A new topic of two partitions."""
    name = topic_name()
    ensure_topics(kafka, {name: 2})
    return name


def filled(kafka, topic, values, partition=0):
    with TopicWriter(kafka, topic) as writer:
        writer.write(partition, values, timestamp_ms=[1000 + n for n in range(len(values))])


def read(reader, count):
    found = []
    deadline = time.monotonic() + 20
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
    assert first == RawMessage(topic, 1, 0, 123, b"k", b"a", (("block", b"7"),))
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
        assert reader.at_end(one)
        read(reader, 1)
        assert reader.at_end(zero)
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
        deadline = time.monotonic() + 20
        while not reader.ended and time.monotonic() < deadline:
            reader.next_batch(0.5)
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


def test_topics_are_made_once_and_keep_everything(kafka, topic_name):
    name = topic_name()
    assert ensure_topics(kafka, {name: 3}) == {name}
    assert ensure_topics(kafka, {name: 3}) == set()
    assert require_topics(kafka, [name]) == {name: 3}
    config = topic_config(kafka, name)
    assert (config["retention.ms"], config["max.message.bytes"]) == ("-1", str(kafka.max_message_bytes))


def test_other_numbers_of_partitions_are_the_callers_mistake(kafka, topic):
    with pytest.raises(BadInput, match="has 2 partitions, 3 are configured"):
        ensure_topics(kafka, {topic: 3})


def test_an_absent_topic_is_named_with_those_that_exist(kafka, topic):
    with pytest.raises(BadInput, match=f"no topic `nothing`.*{topic}"):
        require_topics(kafka, ["nothing", topic])
    with pytest.raises(BadInput, match="no topic `nothing`"):
        TopicWriter(kafka, "nothing")
    with pytest.raises(BadInput, match="only 0 to 1"):
        TopicReader(kafka, [Partition(topic, 2)])


def test_an_oversized_message_is_refused_with_both_numbers(kafka, topic_name):
    name = topic_name()
    ensure_topics(kafka.model_copy(update={"max_message_bytes": 5000}), {name: 1})
    with TopicWriter(kafka, name) as writer:
        with pytest.raises(StreamingError, match=r"6,512 bytes, its max\.message\.bytes allows 5,000"):
            writer.write(0, [b"x" * 6000])
        writer.write(0, [b"x" * 4000])
    assert last_message(kafka, name, 0).offset == 0


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
        deadline = time.monotonic() + 15
        shown = {}
        while not shown and time.monotonic() < deadline:
            reader.commit_for_display({partition: SourcePosition(2)})
            time.sleep(0.1)
            with suppress(RetriableError):  # the first group of a broker: its coordinator loads
                shown = _committed(admin, topic)
        admin.close()
    assert shown == {TopicPartition(topic, 0): 2}


def _committed(admin, group):
    offsets = admin.list_group_offsets([group])[group]
    return {key: value.offset for key, value in offsets.items() if value.offset >= 0}


def test_a_broker_that_stands_still_is_noticed_and_not_taken_for_the_end(kafka, broker, topic):
    now = [0.0]
    partition = Partition(topic, 0)
    with TopicReader(kafka, [partition], clock=lambda: time.monotonic() + now[0]) as reader:
        reader.open({})
        assert reader.at_end(partition)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            now[0] += 2 * kafka.give_up_s  # nobody asked for so long, which is no reason to give up
            started = time.monotonic()
            assert reader.next_batch(0.5) is None
            assert time.monotonic() - started < 1.5
            assert not reader.reachable
            assert not reader.at_end(partition)
            assert reader.end_offsets() == {partition: 0}
            now[0] += kafka.give_up_s
            with pytest.raises(BrokerAway, match=r"has not answered for 30\d s"):
                reader.next_batch(0.2)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        filled(kafka, topic, [b"back"])
        assert [m.value for m in read(reader, 1)] == [b"back"]
        assert reader.reachable


def test_a_writer_holds_a_bounded_number_of_bytes_for_a_broker_that_stands_still_and_then_gives_up(
    kafka, broker, topic, monkeypatch
):
    settings = kafka.model_copy(update={"max_pending_bytes": 5000, "delivery_timeout_s": 2.0, "request_timeout_s": 1.5})
    with TopicWriter(settings, topic) as writer:
        writer.write(0, [b"x" * 1000] * 50)  # a broker that answers takes any number
        writer.flush()
        sent = []
        send = KafkaProducer.send
        monkeypatch.setattr(KafkaProducer, "send", lambda self, *record: sent.append(record) or send(self, *record))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerAway, match=rf"`{topic}` .* not written within 2 s.*see that the broker runs"):
                writer.write(0, [b"x" * 1000] * 50)
            assert len(sent) == 6
            with pytest.raises(BrokerAway):
                writer.write(0, [b"y"])
        finally:
            os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("given_up", ["by its time", "by its owner"])
def test_no_message_comes_after_one_that_was_given_up(kafka, topic, monkeypatch, given_up):
    settings = kafka.model_copy(update={"delivery_timeout_s": 4.0, "request_timeout_s": 1.5})
    threads = set(threading.enumerate())
    writer = TopicWriter(settings, topic)
    writer.write(0, [b"first"])
    writer.flush()
    began = set(threading.enumerate()) - threads
    assert began
    with monkeypatch.context() as away:
        away.setattr(KafkaNetClient, "is_ready", lambda *_, **__: False)
        large = len(b"second") + 512 * 1024  # each is a batch of its own
        writer.write(0, [b"second".ljust(large)])
        time.sleep(2.5)
        writer.write(0, [b"third".ljust(large)])
        if given_up == "by its owner":
            writer.abandon()
        with pytest.raises(StreamingError):
            writer.flush()
    time.sleep(1.0)  # the broker is back before the third is given up, too
    assert last_message(kafka, topic, 0).value == b"first"
    with pytest.raises(StreamingError):
        writer.write(0, [b"fourth"])
    writer.abandon()
    assert not any(thread.is_alive() for thread in began)


def test_no_broker_is_named_with_what_to_do():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = KafkaSettings(bootstrap_servers=nobody, connect_timeout_s=0.3)
    with pytest.raises(
        BrokerAway,
        match=rf"no Kafka broker answers at {nobody} \(tried 0\.3 s\); start it, set `kafka.bootstrap_servers`",
    ):
        require_topics(settings, ["any"])


def test_a_port_that_is_not_kafka_is_told(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{other.getsockname()[1]}", connect_timeout_s=1)
        with pytest.raises(StreamingError, match="no Kafka client gets through"):
            require_topics(settings, ["any"])


def test_no_address_at_all_is_the_callers_mistake():
    with pytest.raises(BadInput, match="exfm broker start"):
        require_topics(KafkaSettings(), ["any"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"security": {"ssl_cafille": "x"}}, "unknown: ssl_cafille; known: .*ssl_cafile"),
        ({"bootstrap_servers": "localhost"}, "`localhost` is not HOST:PORT"),
        ({"servers": "x:1"}, "Extra inputs"),
    ],
)
def test_settings_refuse_what_they_do_not_know(changes, message):
    with pytest.raises(ValueError, match=message):
        KafkaSettings(**changes)


def test_the_client_knows_every_security_setting_that_we_let_through():
    from kafka import KafkaConsumer

    from streaming.kafka.settings import SECURITY_KEYS

    assert set(KafkaConsumer.DEFAULT_CONFIG) >= SECURITY_KEYS


@pytest.mark.parametrize(
    "security",
    [
        {"security_protocol": "SSL"},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "me",
            "sasl_plain_password": "x",
        },
    ],
)
def test_security_that_the_broker_does_not_speak_is_told(kafka, security):
    settings = kafka.model_copy(update={"security": security, "connect_timeout_s": 2})
    with pytest.raises(StreamingError, match="what it asks for"):
        require_topics(settings, ["any"])


@pytest.mark.parametrize("arguments", [(), ("no error",), ({"a": 1},)])
def test_the_client_may_log_of_a_connection_whatever_it_likes(arguments):
    logging.getLogger("kafka.net.connection").error("closed" + " %s" * len(arguments), *arguments)
