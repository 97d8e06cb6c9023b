"""The examples topic: blocks out, blocks in, whatever became of the topic in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, TopicPartition

from streaming.delivery.header import Header
from streaming.delivery.publisher import ExamplesPublisher, ExamplesWriter
from streaming.delivery.reader import Block, BlockPosition, ExamplesReader
from streaming.errors import BadInput, StreamingError
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import end_offsets, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.position import NOTHING_YET, Partition, Positions
from tests.support.pipelines.topics import messages_of
from tests.support.streams.lake_rows import SCHEMA, rows

pytestmark = pytest.mark.broker

BLOCK_ROWS = 40
BOTH = 2


def block(number: int, count: int = BLOCK_ROWS) -> pa.RecordBatch:
    return rows(number * BLOCK_ROWS, count, block=number)


@pytest.fixture
def topic(kafka, topic_name) -> str:
    name = topic_name("examples")
    ensure_topics(kafka, {name: BOTH})
    return name


@pytest.fixture
def publisher(kafka, topic):
    opened = []

    def start(settings: KafkaSettings = kafka) -> ExamplesPublisher:
        opened.append(ExamplesPublisher(settings, topic, BOTH, SCHEMA, "lake"))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def read(kafka, topic):
    def blocks(count: int, positions: Positions | None = None, after_block: int = NOTHING_YET) -> list[Block]:
        reader = ExamplesReader(kafka, topic, BOTH, SCHEMA, "lake")
        reader.open(BlockPosition(after_block, positions or {}))
        found: list[Block] = []
        for _ in range(200):
            if len(found) == count:
                break
            if (next_block := reader.next_batch(0.1)) is not None:
                found.append(next_block)
        reader.close()
        return found

    return blocks


def ends(kafka, topic) -> list[int]:
    return list(end_offsets(kafka, [Partition(topic, 0), Partition(topic, 1)]).values())


def delete_before(kafka, topic: str, offsets: dict[int, int]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, partition): offset for partition, offset in offsets.items()})
    admin.close()


def test_blocks_arrive_whole_and_in_order_from_all_partitions(publisher, read):
    out = publisher()
    for number in range(3):
        out.publish(block(number))
    found = read(3)
    assert [b.number for b in found] == [0, 1, 2]
    assert [(b.first_seq, b.last_seq) for b in found] == [(0, 39), (40, 79), (80, 119)]
    for each in found:
        assert each.rows.equals(pa.Table.from_batches([block(each.number)]))


def test_messages_are_of_the_present_lest_a_broker_that_starts_again_forgets_their_producer(kafka, publisher, topic):
    before_ms = int(time.time() * 1000)
    publisher().publish(block(0))
    stamps = [message.timestamp for message in messages_of(kafka.bootstrap_servers, topic)]
    assert len(stamps) == BOTH
    assert min(stamps) >= before_ms


def test_a_block_without_rows_for_a_partition_is_whole_all_the_same(publisher, read):
    publisher().publish(block(0, count=1))
    assert [b.rows.num_rows for b in read(1)] == [1]


def test_a_block_too_large_for_a_message_comes_in_parts(kafka, publisher, read, topic):
    publisher(kafka.model_copy(update={"max_message_bytes": 8000})).publish(block(0))
    assert sum(ends(kafka, topic)) > BOTH
    assert read(1)[0].rows.equals(pa.Table.from_batches([block(0)]))


def test_a_topic_that_takes_less_than_the_config_says_gets_smaller_parts(kafka, topic_name):
    name = topic_name("narrow")
    ensure_topics(kafka.model_copy(update={"max_message_bytes": 8000}), {name: 1})
    out = ExamplesPublisher(kafka, name, 1, SCHEMA, "lake")
    out.publish(block(0))
    out.close()
    assert end_offsets(kafka, [Partition(name, 0)])[Partition(name, 0)] > 1


def test_reading_goes_on_at_a_blocks_positions(publisher, read):
    out = publisher()
    for number in range(4):
        out.publish(block(number))
    second = read(2)[1]
    assert [b.number for b in read(2, second.positions, after_block=1)] == [2, 3]


def test_blocks_learned_already_are_passed_over_when_positions_lag(publisher, read):
    out = publisher()
    for number in range(3):
        out.publish(block(number))
    assert [b.number for b in read(1, {}, after_block=1)] == [2]


def test_a_restarted_publisher_knows_what_every_partition_holds(kafka, publisher, topic):
    assert publisher().published_seq == NOTHING_YET
    publisher().publish(block(0))
    again = publisher()
    assert again.published_seq == 39
    again.publish(block(1))
    assert publisher().published_seq == 79
    assert ends(kafka, topic) == [2, 2]


class Killed(Exception):
    """The process is gone."""


def kill_after(monkeypatch, messages: int) -> None:
    """The publisher dies once so many messages of its block are out."""
    write = TopicWriter.write
    sent: list[Any] = []

    def dying(self: TopicWriter, *args: Any, **kwargs: Any) -> None:
        if len(sent) == messages:
            raise Killed
        write(self, *args, **kwargs)
        self.flush()
        sent.append(args)

    monkeypatch.setattr(TopicWriter, "write", dying)


@pytest.mark.parametrize("messages", [1, 3])
def test_a_block_published_in_part_is_completed(kafka, publisher, read, monkeypatch, messages):
    small_parts = kafka.model_copy(update={"max_message_bytes": 8000})
    publisher(small_parts).publish(block(0))
    with monkeypatch.context() as patch:
        kill_after(patch, messages)
        with pytest.raises(Killed):
            publisher(small_parts).publish(block(1))
    again = publisher(small_parts)
    assert again.published_seq == 39
    again.publish(block(1))
    again.publish(block(2))
    assert [b.rows for b in read(3)] == [pa.Table.from_batches([block(n)]) for n in range(3)]


def test_a_block_cut_into_other_parts_after_a_crash_is_whole(kafka, publisher, read, monkeypatch):
    with monkeypatch.context() as patch:
        kill_after(patch, 1)
        with pytest.raises(Killed):
            publisher(kafka.model_copy(update={"max_message_bytes": 8000})).publish(block(0))
    publisher().publish(block(0))
    assert read(1)[0].rows.equals(pa.Table.from_batches([block(0)]))


@pytest.fixture
def in_parts(kafka, topic):
    """Publish a block whose rows two processes hold, the second `late`: after the last part of all, or never."""
    writers = [ExamplesWriter(kafka, topic, BOTH, SCHEMA) for _ in range(2)]

    def publish(out: ExamplesPublisher, rows: pa.RecordBatch, first_rows: int, *, second: bool = True) -> None:
        halves = rows.slice(0, first_rows), rows.slice(first_rows)
        values = [dict(w.encoded(half, range(BOTH))) for w, half in zip(writers, halves, strict=True)]
        parts = [len(values[0][p]) + len(values[1][p]) for p in range(BOTH)]

        def write(headers: Sequence[Header]) -> None:
            for n in (1, 0):
                for partition, header in enumerate(headers):
                    first = replace(header, part=n * len(values[0][partition]))
                    if n == 0 or second:
                        writers[n].write(partition, values[n][partition], first)
                writers[n].flush()
            if not second:
                raise Killed

        number, seqs = rows["block"][0].as_py(), rows["lake_seq"].to_pylist()
        out.publish_in_parts(number, seqs[0], seqs[-1], "2 ranks", parts, write)

    yield publish
    for writer in writers:
        writer.close()


def test_a_block_that_several_processes_publish_is_whole_in_whatever_order(publisher, read, in_parts):
    out = publisher()
    for number, first_rows in enumerate((25, BLOCK_ROWS, 1)):  # of the second one none have rows
        in_parts(out, block(number), first_rows)
    assert publisher().published_seq == 3 * BLOCK_ROWS - 1
    assert [b.rows for b in read(3)] == [pa.Table.from_batches([block(n)]) for n in range(3)]


def test_a_block_that_was_published_in_part_by_several_processes_is_published_whole(
    kafka, publisher, read, topic, in_parts
):
    out = publisher()
    out.publish(block(0))
    with pytest.raises(Killed):
        in_parts(out, block(1), BLOCK_ROWS, second=False)  # all rows, in the first of two parts
    again = publisher(kafka.model_copy(update={"max_message_bytes": 10_000}))  # into two parts, too
    assert again.published_seq == BLOCK_ROWS - 1
    again.publish(block(1))
    assert ends(kafka, topic) == [4, 4]
    again.publish(block(2))
    assert [b.rows for b in read(3)] == [pa.Table.from_batches([block(n)]) for n in range(3)]


def test_a_block_written_twice_by_a_publisher_not_yet_dead_is_read_once(publisher, read):
    slow, new = publisher(), publisher()
    for out in (new, slow):
        out.publish(block(0))
        out.publish(block(1))
    new.publish(block(2))
    assert [b.number for b in read(3)] == [0, 1, 2]


def test_a_position_that_retention_deleted_becomes_the_topics_beginning(kafka, publisher, read, topic):
    out = publisher()
    for number in range(5):
        out.publish(block(number))
    first = read(1)[0]
    delete_before(kafka, topic, {0: 3, 1: 3})
    assert [b.number for b in read(2, first.positions, after_block=0)] == [3, 4]


def test_retention_that_overtakes_a_reader_leaves_the_rows_to_the_lake(kafka, publisher, topic):
    out = publisher()
    for number in range(5):
        out.publish(block(number))
    with ExamplesReader(kafka, topic, BOTH, SCHEMA, "lake") as reader:
        reader.open()
        delete_before(kafka, topic, {0: 3, 1: 3})
        found = [reader.next_batch(0.1) for _ in range(30)]
    assert [b.number for b in found if b is not None] == [3, 4]


def test_a_block_that_one_partition_has_lost_is_left_to_the_lake(kafka, publisher, read, topic):
    out = publisher()
    for number in range(5):
        out.publish(block(number))
    delete_before(kafka, topic, {1: 3})
    assert [b.number for b in read(2)] == [3, 4]


def test_a_topic_made_anew_is_read_from_its_beginning(kafka, publisher, read):
    out = publisher()
    for number in range(2):
        out.publish(block(number))
    beyond = {p: at._replace(offset=at.offset + 7) for p, at in read(2)[1].positions.items()}
    out.publish(block(2))
    assert [b.number for b in read(1, beyond, after_block=1)] == [2]


def test_another_runs_topic_is_refused(publisher):
    theirs = publisher()
    theirs.publish(block(0))
    theirs.publish(block(1))
    said = r"up to lake_seq 79 of this lake, which was published up to -1 only: .* or the other one is a copy"
    with pytest.raises(BadInput, match=said):
        publisher().publish(block(0))


def test_a_strangers_message_is_named(kafka, read, topic):
    with TopicWriter(kafka, topic) as stranger:
        stranger.write(0, [b"hello"])
    with pytest.raises(StreamingError, match=f"message 0 of topic `{topic}`, partition 0, is no part of a block"):
        read(1)


def test_a_block_with_rows_missing_is_an_error(kafka, publisher, read, topic):
    broken = block(0).take(pa.array([0, 1, 39]))
    publisher().publish(broken)
    with pytest.raises(StreamingError, match="block 0 has 3 rows on the examples topic, lake_seq 0 to 39 make 40"):
        read(1)


def test_rows_of_another_lake_are_never_learned(kafka: KafkaSettings, topic: str) -> None:
    """Two runs on one topic: each would take the other's blocks for its own."""
    publisher = ExamplesPublisher(kafka, topic, BOTH, SCHEMA, "mine")
    publisher.publish(rows(0, 5, block=0))
    publisher.close()
    with pytest.raises(BadInput, match="rows of another run"):
        ExamplesPublisher(kafka, topic, BOTH, SCHEMA, "theirs")
    reader = ExamplesReader(kafka, topic, BOTH, SCHEMA, "theirs")
    reader.open()
    with pytest.raises(BadInput, match="rows of another run"):
        reader.next_batch(10)
    reader.close()
