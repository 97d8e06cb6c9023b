"""Topics written in transactions: what was committed is read, once; what was aborted is no row."""

from __future__ import annotations

import json
import random
import time

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource

from streaming.errors import DataLost
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import end_offsets, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition
from tests.support.pipelines.small_runs import small, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, make_inputs
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def topic(kafka, topic_name):
    name = topic_name()
    ensure_topics(kafka, {name: 1})
    return name


@pytest.fixture
def producer(kafka, topic_name):
    """Makes transactional producers."""
    made = []

    def make() -> KafkaProducer:
        made.append(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic_name("producer")))
        made[-1].init_transactions()
        return made[-1]

    yield make
    for each in made:
        each.close(timeout=5)


def begin(producer, topic, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush()


def committed(producer, topic, *values: bytes) -> None:
    begin(producer, topic, *values)
    producer.commit_transaction()


def aborted(producer, topic, *values: bytes) -> None:
    begin(producer, topic, *values)
    producer.abort_transaction()


def all_of(reader) -> list[bytes]:
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            found += [message.value for message in reader.next_batch(0.2) or []]
        except EndOfStream:
            return found
    raise AssertionError(f"no end after {found}")


def test_what_was_aborted_is_no_message(kafka, topic, producer):
    write = producer()
    committed(write, topic, b"a", b"b")
    aborted(write, topic, b"never", b"nor this")
    committed(write, topic, b"c")
    aborted(write, topic, b"nor that")
    partition = Partition(topic, 0)
    ends = end_offsets(kafka, [partition])
    assert ends == {partition: 10}  # six values, four markers
    with TopicReader(kafka, [partition], ends=ends) as reader:
        reader.open({})
        assert all_of(reader) == [b"a", b"b", b"c"]
        assert reader.position() == {partition: SourcePosition(10)}
        for offset in range(11):
            reader.open({partition: SourcePosition(offset)})
            assert all_of(reader) == [b"a", b"b", b"c"][min(offset, 2) + (offset > 6) :]


def test_an_open_transaction_is_neither_read_nor_an_end(kafka, topic, producer):
    partition = Partition(topic, 0)
    slow, quick = producer(), producer()
    begin(slow, topic, b"late")
    committed(quick, topic, b"soon")
    assert end_offsets(kafka, [partition]) == {partition: 0}
    with TopicReader(kafka, [partition]) as reader:
        reader.open({})
        assert reader.next_batch(0.5) is None
        assert not reader.at_end(partition, max_age_s=0)
        assert reader.undecided == {partition}
        slow.commit_transaction()
        found = []
        while len(found) < 2:
            found += reader.next_batch(1.0) or []
        assert [message.value for message in found] == [b"late", b"soon"]
        while not reader.at_end(partition, max_age_s=0):
            reader.next_batch(0.2)
        assert not reader.undecided


def test_transactions_of_several_producers_may_cross(kafka, topic, producer):
    draw = random.Random(7)
    writers = [producer() for _ in range(3)]
    values: dict[int, list[bytes]] = {}
    expected: set[bytes] = set()
    for number in range(60):
        who = draw.randrange(3)
        if who not in values:
            writers[who].begin_transaction()
            values[who] = []
        elif draw.random() < 0.4:
            if draw.random() < 0.5:
                writers[who].commit_transaction()
                expected |= set(values.pop(who))
            else:
                writers[who].abort_transaction()
                values.pop(who)
            continue
        values[who].append(b"%d" % number)
        writers[who].send(topic, values[who][-1], partition=0)
        writers[who].flush()
    for who in values:
        writers[who].abort_transaction()
    partition = Partition(topic, 0)
    with TopicReader(kafka, [partition], ends=end_offsets(kafka, [partition])) as reader:
        reader.open({})
        found = all_of(reader)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_offsets_that_compaction_deleted_are_an_error(kafka, topic_name):
    name, partition = topic_name(), Partition(topic_name("none"), 0)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    configs = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    configs |= {"max.compaction.lag.ms": "100", "min.compaction.lag.ms": "0"}
    admin.create_topics({name: {"num_partitions": 1, "configs": configs}})
    admin.alter_configs([ConfigResource("broker", "1", {"log.cleaner.backoff.ms": "200"})])  # else 15 s
    admin.close()
    partition = Partition(name, 0)

    def refusal() -> str:
        with TopicWriter(kafka, name) as writer:
            writer.write(0, [b"first", b"again"], key=b"same")
        with TopicReader(kafka, [partition], ends=end_offsets(kafka, [partition])) as reader:
            reader.open({})
            try:
                all_of(reader)
            except DataLost as error:
                return str(error)
        return ""

    words = eventually(refusal, lambda: "nothing was compacted", look_s=0.2)
    assert f"topic `{name}`, partition 0: offset" in words
    assert "did not come" in words


def test_a_run_has_a_row_of_everything_committed_and_of_nothing_aborted(broker, tmp_path, producer):
    codecs = {f"kafka__{topic}__codec": "json" for topic in ("impressions", "feedback")}
    config = small(broker.bootstrap_servers, source=None, students=[], **codecs)
    make_inputs(config)
    write, dropped = producer(), 0
    shown, clicked = by_hand(config, 1200)
    for topic, rows in ((config.kafka.impressions, shown), (config.kafka.feedback, clicked)):
        for first in range(0, len(rows), 100):
            for abort in (True, False) if first % 200 == 0 else (False,):
                write.begin_transaction()
                for row in rows[first : first + 100]:
                    value = json.dumps(row | ({"event_time_ms": row["event_time_ms"] + 1} if abort else {})).encode()
                    write.send(topic.topic, value, partition=row["impression_id"] % 2)
                write.flush()
                write.abort_transaction() if abort else write.commit_transaction()
                dropped += len(rows[first : first + 100]) if abort and rows is shown else 0
    finished = to_the_end(config, tmp_path)
    counts = finished.summary["counts"]
    distinct = {row["impression_id"] for row in shown}
    assert counts["impressions_read"] == len(shown)
    assert counts["duplicates_dropped"] == len(shown) - len(distinct)
    assert set(finished.lake["impression_id"].to_pylist()) == distinct
    ads = counts["offsets"]["impression"]
    partitions = [Partition(config.kafka.impressions.topic, number) for number in range(2)]
    assert ads["offsets"] == sum(end_offsets(config.kafka, partitions).values())
    assert (ads["messages"], ads["end_markers"]) == (len(shown), 0)
    assert ads["transaction_records"] > dropped  # and markers, in one partition or in both
    assert counts_hold(counts)
