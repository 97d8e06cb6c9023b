"""Every source, asked the same questions (source_contract.py), and a few that only some can answer."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaAdminClient, TopicPartition

from pipelines.live.feeds.table import TableSource
from streaming.delivery.publisher import ExamplesPublisher
from streaming.delivery.reader import ExamplesReader
from streaming.intake.intake import InputTopic, Intake
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.lake import retention
from streaming.lake.delta.files import TableFiles
from streaming.lake.source import LakeSource
from streaming.lake.writer import LakeTable
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition
from streaming.schema import RowSchema, Task
from streaming.sources.recorded import LabelColumn, RecordedConfig, RecordedStream
from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.world_config import GeneratorConfig
from streaming.sources.timed_parquet import TimedParquet
from tests.support.streams import lake_rows
from tests.support.streams.scripted import EOF, PAUSE, HandClock, ScriptedTopics
from tests.support.streams.source_contract import SourceContract

ADS, CLICKS = Partition("ads", 0), Partition("clicks", 0)
SCHEMA = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=60),))


def delete_before(servers: str, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


class TestScripted(SourceContract):
    VALUES = (b"a", b"b", b"c", b"d", b"e")

    @pytest.fixture(autouse=True)
    def _topics(self):
        clock = HandClock()
        script = [self.VALUES[0], PAUSE(5), *self.VALUES[1:4], PAUSE(0.0), self.VALUES[4], EOF, b"not read"]
        self.topics = ScriptedTopics({ADS: script}, clock=clock, at_a_time=2)

    def source(self):
        self.topics.clock.advance(10)
        return self.topics.reader()

    def batch(self, source):
        """With the clock running on."""
        for _ in range(20):
            self.topics.clock.advance(1)
            with suppress(EndOfStream):
                if (found := source.next_batch()) is not None:
                    return found
        return None

    def rows(self, batch):
        return [message.value for message in batch]

    def all_rows(self):
        return list(self.VALUES)

    def lose(self, rows):
        self.topics.delete_before(ADS, 6)

    def test_a_broker_that_is_away_is_neither_the_end_nor_the_confirmation_of_one(self):
        source = self.topics.reader()
        source.open()
        assert self.rows(source.next_batch()) == [b"a"]
        for _ in range(3):
            assert source.next_batch() is None
            assert not source.reachable
            assert not source.at_end(ADS, max_age_s=0)
            self.topics.clock.advance(1.5)
        self.topics.clock.advance(1)
        assert self.rows(source.next_batch()) == [b"b", b"c"]
        assert source.reachable


@pytest.mark.broker
class TestKafka(SourceContract):
    VALUES = tuple(b"%d" % n for n in range(11))

    @pytest.fixture(autouse=True)
    def _topic(self, kafka, topic_name):
        self.settings, self.topic = kafka, topic_name()
        ensure_topics(kafka, {self.topic: 1})
        with TopicWriter(kafka, self.topic) as writer:
            writer.write(0, self.VALUES)
            writer.end_marker()
            writer.write(0, [b"not read"])

    def source(self):
        return Few(self.settings, [Partition(self.topic, 0)])

    def rows(self, batch):
        return [message.value for message in batch]

    def all_rows(self):
        return list(self.VALUES)

    def lose(self, rows):
        delete_before(self.settings.bootstrap_servers, self.topic, rows)


class Few(TopicReader):
    """A few messages at a time, so that there are batches to speak of."""

    def next_batch(self, max_wait_s=0.0, *, max_messages=3, only=None):
        return super().next_batch(max_wait_s, max_messages=max_messages, only=only)


@pytest.mark.broker
class TestKafkaWithGivenEnds(TestKafka):
    def source(self):
        return Few(self.settings, [Partition(self.topic, 0)], ends={Partition(self.topic, 0): 7})

    def all_rows(self):
        return list(self.VALUES[:7])


def records() -> tuple[list[bytes], list[bytes]]:
    shown = [{"impression_id": n, "event_time_ms": 10 * n, "vertical": "a"} for n in range(12)]
    clicked = [{"impression_id": n, "event_time_ms": 10 * n + 5, "task": "ctr"} for n in range(0, 12, 3)]
    return [json.dumps(row).encode() for row in shown], [json.dumps(row).encode() for row in clicked]


class TestIntake(SourceContract):
    """Both topics merged: its rows are (event time, id)."""

    @pytest.fixture(autouse=True)
    def _topics(self):
        shown, clicked = records()
        self.topics = ScriptedTopics({ADS: [*shown, EOF], CLICKS: [*clicked, EOF]})

    def source(self):
        return self.intake(self.topics.reader())

    def intake(self, source):
        topics = [InputTopic(p.topic, 1, "json", kind) for p, kind in self.kinds(source.partitions)]
        return Intake(SCHEMA, source, topics, buffer_rows=3, idle_s=None)

    def kinds(self, partitions):
        return zip(partitions, ("impression", "feedback"), strict=True)

    def rows(self, batch):
        both = [row for part in (batch.impressions, batch.feedback) for row in part.to_pylist()]
        return [(row["event_time_ms"], row["impression_id"]) for row in sorted(both, key=lambda row: row["order"])]

    def all_rows(self):
        return sorted([(10 * n, n) for n in range(12)] + [(10 * n + 5, n) for n in range(0, 12, 3)])

    def lose(self, rows):
        self.topics.delete_before(ADS, 12)


@pytest.mark.broker
class TestIntakeOnKafka(TestIntake):
    @pytest.fixture(autouse=True)
    def _topics(self, kafka, topic_name):
        self.settings = kafka
        self.partitions = [Partition(topic_name(kind), 0) for kind in ("ads", "clicks")]
        ensure_topics(kafka, {topic: 1 for topic, _ in self.partitions})
        for (topic, _), values in zip(self.partitions, records(), strict=True):
            with TopicWriter(kafka, topic) as writer:
                writer.write(0, values)
                writer.end_marker()

    def source(self):
        return self.intake(Few(self.settings, self.partitions))

    def lose(self, rows):
        delete_before(self.settings.bootstrap_servers, self.partitions[0].topic, 12)


class TestLake(SourceContract):
    ROWS = 100
    end: int | None = ROWS - 1

    @pytest.fixture(autouse=True)
    def _lake(self, tmp_path):
        self.lake = LakeTable(tmp_path / "lake", lake_rows.SCHEMA)
        writer = self.lake.open_writer()
        for block, first in enumerate(range(0, self.ROWS, 20)):
            writer.commit(lake_rows.rows(first, 20, block=block), state=block, metadata={})

    def source(self, **asked: Any):
        source = LakeSource(self.lake.open_reader(), batch_rows=7, columns=["lake_seq", "user_id"], **asked)
        source.end_seq = self.end
        return source

    def rows(self, batch):
        return batch["lake_seq"].to_pylist() if isinstance(batch, pa.Table) else batch

    def all_rows(self):
        return list(range(self.ROWS))

    def lose(self, rows):
        self.delete_before(self.ROWS - 1)

    def delete_before(self, first_seq):
        assert retention.delete_before(TableFiles(self.lake.path), first_seq)

    def test_what_retention_has_left_is_read_from_its_first_row(self):
        self.delete_before(33)
        assert self.rest(self.open()) == [seq for seq in self.all_rows() if seq >= 33]

    def test_a_lake_made_anew_is_not_taken_for_the_one_that_was_read(self):
        with pytest.raises(Exception, match="ends at lake_seq 99, and was read up to 150"):
            self.open(150)

    def test_seek_into_the_middle_of_a_file(self):
        assert self.rest(self.open(33)) == list(range(34, self.ROWS))


class TestTable(SourceContract):
    """Of a table that a sweep holds in memory; none of its rows can be lost."""

    def source(self):
        table = pa.table({"lake_seq": range(5, 40, 2), "block": [0] * 18})
        return TableSource(table, batch_rows=4)

    def rows(self, batch):
        return batch["lake_seq"].to_pylist()

    def all_rows(self):
        return list(range(5, 40, 2))


class TestLakeWithoutEnd(TestLake):
    bounded, end = False, None

    def test_what_is_committed_later_follows(self):
        source = self.open(self.ROWS - 1)
        assert source.next_batch() is None
        writer = self.lake.open_writer()
        writer.commit(lake_rows.rows(self.ROWS, 5, block=5), state=9, metadata={})
        assert self.rest(source) == list(range(self.ROWS, self.ROWS + 5))


class TestLakeOfOneVertical(TestLake):
    """Positions pass over what is not asked for."""

    def source(self):
        return super().source(verticals={"travel"})

    def all_rows(self):
        return self.lake.open_reader().read(verticals={"travel"}).table["lake_seq"].to_pylist()

    def test_seek_into_the_middle_of_a_file(self):
        assert self.rest(self.open(33)) == [seq for seq in self.all_rows() if seq > 33]


@pytest.mark.broker
class TestExamples(SourceContract):
    """Blocks of two partitions; without an end of its own."""

    bounded = False

    @pytest.fixture(autouse=True)
    def _topic(self, kafka, topic_name):
        self.settings, self.topic = kafka, topic_name("examples")
        ensure_topics(kafka, {self.topic: 2})
        publisher = ExamplesPublisher(kafka, self.topic, 2, lake_rows.SCHEMA, "lake")
        for number in range(5):
            publisher.publish(lake_rows.rows(number * 20, 20, block=number))
        publisher.close()

    def source(self):
        return ExamplesReader(self.settings, self.topic, 2, lake_rows.SCHEMA, "lake")

    def batch(self, source):
        return None if source.position().after_block == 4 else super().batch(source)

    def rows(self, batch):
        return batch.rows["lake_seq"].to_pylist() if batch else []

    def all_rows(self):
        return list(range(100))

    def test_a_position_that_is_gone_is_an_error_that_names_the_gap(self):
        """Not here: the lake has the rows, and the next block says how many are to be taken from there."""
        source = self.open()
        first = self.batch(source)
        delete_before(self.settings.bootstrap_servers, self.topic, 3)
        following = self.batch(self.open(source.position()))
        assert (first.last_seq, following.first_seq) == (19, 60)


@pytest.mark.parametrize("row", [0, 3, 8, 11, 40, 47, 49, 50])
def test_a_file_is_read_from_any_row_also_inside_a_row_group(tmp_path, row):
    table = pa.table({"at": np.arange(50) // 2, "id": np.arange(50)})
    pq.write_table(table, tmp_path / "timed.parquet", row_group_size=8)
    pieces = list(TimedParquet(tmp_path / "timed.parquet", ["id", "at"], "at", "s", 0.0).read(12, row))
    rows = [each for table, time_N in pieces for each in zip(table["id"].to_pylist(), time_N.tolist(), strict=True)]
    assert rows == [(n, n // 2 * 1000) for n in range(row, 50)]


class TestRecorded(SourceContract):
    """Impressions of a file and the feedback in its columns, as they arrive."""

    ROWS = 50

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "recorded.parquet"
        self.write(self.ROWS)

    def write(self, rows):
        at = np.arange(rows)
        columns = {"event_time_ms": at * 1000, "vertical": ["a"] * rows, "clicked": at % 3 == 0, "delay": at % 7 * 900}
        pq.write_table(pa.table(columns), self.path, row_group_size=8)

    def source(self):
        label = LabelColumn(column="clicked", delay_column="delay", delay_unit="ms")
        stream = RecordedStream(self.path, RecordedConfig(labels={"ctr": label}), SCHEMA)
        stream.chunk_rows = 6
        return stream

    def rows(self, batch):
        return [tuple(row.values()) for part in batch[:2] for row in part.to_pylist()] if batch else []

    def all_rows(self):
        return [row for chunk in self.source().chunks(6) for row in self.rows(chunk)]

    def lose(self, rows):
        self.write(2)
        self.short = True

    def test_a_position_that_is_gone_is_an_error_that_names_the_gap(self):
        source = self.open()
        for _ in range(4):
            self.batch(source)
        self.write(2)
        with pytest.raises(Exception, match=r"was played for 4 chunks of 6 rows before, and has 1"):
            self.open(source.position())


class TestGenerated(TestRecorded):
    @pytest.fixture(autouse=True)
    def _file(self):
        pass

    def source(self):
        config = GeneratorConfig(impressions=60, users=20, ads=5, duration_s=600, malformed_rate=0.0)
        stream = GeneratedStream(config, {"ctr": 60.0})
        stream.chunk_rows = 6
        return stream

    def test_a_position_that_is_gone_is_an_error_that_names_the_gap(self):
        with pytest.raises(Exception, match=r"was played for 999 chunks"):
            self.open(999)


@pytest.mark.broker
def test_kafka_seeks_into_the_middle_of_a_message_and_leaves_its_rows_to_the_caller(kafka, topic_name):
    partition = Partition(topic_name(), 0)
    ensure_topics(kafka, {partition.topic: 1})
    with TopicWriter(kafka, partition.topic) as writer:
        writer.write(0, [b"three rows", b"more"])
        writer.end_marker()
    with TopicReader(kafka, [partition]) as source:
        source.open({partition: SourcePosition(0, 2)})
        found = []
        while not source.ended:
            found += source.next_batch(0.5) or []
    assert [message.value for message in found] == [b"three rows", b"more"]
