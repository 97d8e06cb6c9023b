"""A writer refuses what a topic cannot take, holds a bounded number of bytes, and leaves no gap."""

import os
import signal
import threading
import time

import pytest
from kafka import KafkaProducer
from kafka.net.compat import KafkaNetClient

from streaming.errors import BrokerAway, StreamingError
from streaming.kafka.topics import ensure_topics, last_message
from streaming.kafka.writer import TopicWriter

pytestmark = pytest.mark.broker


def test_an_oversized_message_is_refused_with_both_numbers(kafka, topic_name):
    name = topic_name()
    ensure_topics(kafka.model_copy(update={"max_message_bytes": 5000}), {name: 1})
    with TopicWriter(kafka, name) as writer:
        with pytest.raises(StreamingError, match=r"6,512 bytes, its max\.message\.bytes allows 5,000"):
            writer.write(0, [b"x" * 6000])
        writer.write(0, [b"x" * 4000])
    assert last_message(kafka, name, 0).offset == 0


def test_a_writer_holds_a_bounded_number_of_bytes_for_a_broker_that_stands_still_and_then_gives_up(
    own_kafka, own_broker, topic_name, monkeypatch
):
    topic, pid = topic_name(), own_broker.status().pid
    ensure_topics(own_kafka, {topic: 1})
    settings = own_kafka.model_copy(
        update={"max_pending_bytes": 5000, "delivery_timeout_s": 2.0, "request_timeout_s": 1.5}
    )
    with TopicWriter(settings, topic) as writer:
        writer.write(0, [b"x" * 1000] * 50)  # a broker that answers takes any number
        writer.flush()
        sent = []
        send = KafkaProducer.send
        monkeypatch.setattr(KafkaProducer, "send", lambda self, *record: sent.append(record) or send(self, *record))
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BrokerAway, match=rf"`{topic}` .* not written within 2 s.*see that the broker runs"):
                writer.write(0, [b"x" * 1000] * 50)
            assert len(sent) == 6
            with pytest.raises(BrokerAway):
                writer.write(0, [b"y"])
        finally:
            os.kill(pid, signal.SIGCONT)


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
        time.sleep(1.5)  # work: the second is older than the third
        writer.write(0, [b"third".ljust(large)])
        if given_up == "by its owner":
            writer.abandon()
        with pytest.raises(StreamingError):
            writer.flush()
    time.sleep(1.0)  # work: the broker is back before the third is given up, too
    assert last_message(kafka, topic, 0).value == b"first"
    with pytest.raises(StreamingError):
        writer.write(0, [b"fourth"])
    writer.abandon()
    assert not any(thread.is_alive() for thread in began)
