"""Reading both input topics: one order whatever the reads, ends, idle partitions, restarts."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from streaming.intake.intake import InputTopic, Intake
from streaming.intake.merge import MergedChunk
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import end_offsets, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.messages.source import EndOfStream
from streaming.position import Partition
from streaming.schema import RowSchema, Task
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

SCHEMA = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=60),))


class Inputs:
    """Two topics of two partitions, fed by hand."""

    def __init__(self, settings: KafkaSettings, ads: str, clicks: str) -> None:
        self.settings, self.ads, self.clicks = settings, ads, clicks
        ensure_topics(settings, {ads: 2, clicks: 2})
        self.now = 0.0
        self.opened: list[Intake] = []

    def show(self, partition: int, *times: int) -> None:
        """Impressions at these times, one message each; the id is the time."""
        self._write(self.ads, partition, [{"impression_id": t, "event_time_ms": t, "vertical": "a"} for t in times])

    def click(self, partition: int, *times: int) -> None:
        self._write(self.clicks, partition, [{"impression_id": t, "event_time_ms": t, "task": "ctr"} for t in times])

    def _write(self, topic: str, partition: int, rows: list[dict[str, Any]]) -> None:
        with TopicWriter(self.settings, topic) as writer:
            writer.write(partition, [json.dumps(row).encode() for row in rows])

    def end(self, *partitions: tuple[str, int]) -> None:
        for topic, partition in partitions or [(t, p) for t in (self.ads, self.clicks) for p in (0, 1)]:
            with TopicWriter(self.settings, topic) as writer:
                writer.end_marker([partition])

    def open(self, state: dict[str, Any] | None = None, **options: Any) -> Intake:
        topics = [InputTopic(self.ads, 2, "json", "impression"), InputTopic(self.clicks, 2, "json", "feedback")]
        options = {"buffer_rows": 1000, "idle_s": None} | options
        partitions = [partition for topic in topics for partition in topic.all]
        source = TopicReader(self.settings, partitions, group=self.ads, ends=options.pop("ends", None))
        self.opened.append(Intake(SCHEMA, source, topics, clock=lambda: self.now, **options))
        self.opened[-1].open(state)
        return self.opened[-1]


@pytest.fixture
def inputs(kafka, topic_name):
    made = Inputs(kafka, topic_name("ads"), topic_name("clicks"))
    yield made
    for intake in made.opened:
        intake.close()


def times(chunk: MergedChunk) -> list[tuple[str, int]]:
    rows = [("ad", row) for row in chunk.impressions.to_pylist()] + [
        ("click", row) for row in chunk.feedback.to_pylist()
    ]
    return [(kind, row["event_time_ms"]) for kind, row in sorted(rows, key=lambda entry: entry[1]["order"])]


def pop_all(intake: Intake, reads: int = 30) -> list[tuple[str, int]]:
    """Everything that `reads` reads bring out."""
    found = []
    for _ in range(reads):
        try:
            chunk = intake.next_batch()
        except EndOfStream:
            break
        found += times(chunk) if chunk is not None else []
    return found


def finished(intake: Intake) -> bool:
    try:
        intake.next_batch()
    except EndOfStream:
        return True
    return False


def fill(inputs: Inputs) -> list[tuple[str, int]]:
    inputs.show(0, 10, 30, 50)
    inputs.show(1, 20, 40)
    inputs.click(0, 15, 35)
    inputs.click(1, 25, 45)
    return [("ad" if t % 10 == 0 else "click", t) for t in (10, 15, 20, 25, 30, 35, 40, 45, 50)]


def test_rows_of_both_topics_come_in_order_of_event_time(inputs):
    expected = fill(inputs)
    inputs.end()
    assert pop_all(inputs.open()) == expected


@pytest.mark.parametrize("buffer_rows", [1, 2])
def test_small_buffers_change_nothing(inputs, buffer_rows):
    expected = fill(inputs)
    inputs.end()
    assert pop_all(inputs.open(buffer_rows=buffer_rows), reads=200) == expected


def test_event_time_waits_for_the_slowest_partition(inputs):
    expected = fill(inputs)
    intake = inputs.open()
    assert pop_all(intake, reads=8) == [row for row in expected if row[1] < 35]  # partition 0 of clicks ends at 35
    inputs.click(0, 60)
    assert pop_all(intake, reads=8) == [("click", 35)]  # now partition 1 of impressions ends at 40


def test_a_restart_goes_on_after_the_last_row_popped(inputs):
    expected = fill(inputs)
    first = inputs.open()
    popped = pop_all(first, reads=8)
    state = json.loads(json.dumps(first.position()))
    inputs.end()
    assert popped + pop_all(inputs.open(state)) == expected


def test_recorded_end_offsets_end_the_stream_and_what_follows_is_left_alone(inputs):
    expected = fill(inputs)
    partitions = [Partition(topic, p) for topic in (inputs.ads, inputs.clicks) for p in (0, 1)]
    ends = end_offsets(inputs.settings, partitions)
    for partition in (0, 1):
        inputs.show(partition, 70)
    first = inputs.open(ends=ends)
    assert pop_all(first) == expected
    assert finished(first)
    again = inputs.open(first.position(), ends=ends)
    assert pop_all(again) == []
    assert finished(again)


def test_an_empty_partition_ends_at_its_recorded_end(inputs):
    inputs.show(0, 10)
    partitions = [Partition(topic, p) for topic in (inputs.ads, inputs.clicks) for p in (0, 1)]
    assert pop_all(inputs.open(ends=end_offsets(inputs.settings, partitions))) == [("ad", 10)]


def test_a_partition_emptied_by_retention_ends_at_its_recorded_end(inputs):
    inputs.show(0, 10)
    inputs.show(1, 20, 30)
    admin = KafkaAdminClient(bootstrap_servers=inputs.settings.bootstrap_servers)
    admin.delete_records({TopicPartition(inputs.ads, 1): 2})
    admin.close()
    partitions = [Partition(topic, p) for topic in (inputs.ads, inputs.clicks) for p in (0, 1)]
    intake = inputs.open(ends=end_offsets(inputs.settings, partitions))
    assert pop_all(intake) == [("ad", 10)]
    assert finished(intake)


def test_the_end_may_be_the_marker_of_a_transaction(inputs):
    producer = KafkaProducer(
        bootstrap_servers=inputs.settings.bootstrap_servers, transactional_id=inputs.ads, enable_idempotence=True
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(inputs.ads, b'{"impression_id": 1, "event_time_ms": 10, "vertical": "a"}', partition=0)
    producer.commit_transaction()
    producer.close()
    partitions = [Partition(topic, p) for topic in (inputs.ads, inputs.clicks) for p in (0, 1)]
    # The broker writes the marker after it has answered the commit; until then the record is not there to be read.
    eventually(lambda: end_offsets(inputs.settings, partitions)[partitions[0]] == 2)
    intake = inputs.open(ends=end_offsets(inputs.settings, partitions))
    assert pop_all(intake) == [("ad", 10)]
    assert finished(intake)


def test_a_silent_partition_is_idle_once_the_broker_has_confirmed_its_end_for_long_enough(inputs):
    inputs.show(0, 10, 20)
    inputs.show(1, 15)
    inputs.click(0, 12, 30)
    intake = inputs.open(idle_s=5)
    assert pop_all(intake, reads=6) == []  # partition 1 of clicks brought nothing yet
    inputs.now = 1.0
    assert pop_all(intake, reads=2) == []
    inputs.now = 4.9
    assert pop_all(intake, reads=4) == []
    inputs.now = 6.1
    assert pop_all(intake, reads=2) == [("ad", 10), ("click", 12), ("ad", 15), ("ad", 20), ("click", 30)]


def test_a_partition_is_not_idle_while_the_broker_does_not_confirm_its_end(inputs, monkeypatch):
    inputs.show(0, 10, 20)
    inputs.show(1, 15)
    inputs.click(0, 12, 30)
    intake = inputs.open(idle_s=5)
    monkeypatch.setattr(TopicReader, "at_end", lambda *_: False)  # it does not answer, or more is there
    for inputs.now in (1.0, 100.0, 10_000.0):
        assert pop_all(intake, reads=3) == []
    monkeypatch.undo()
    for inputs.now in (10_001.0, 10_007.0):
        popped = pop_all(intake, reads=3)
    assert len(popped) == 5  # the silence before the word does not count


def test_a_flow_of_messages_elsewhere_keeps_no_silent_partition_from_being_idle(inputs):
    inputs.click(0, 10)
    inputs.show(1, 10)
    intake = inputs.open(idle_s=5)
    popped = []
    for step in range(8):
        inputs.show(0, 100 + step)
        inputs.now += 1
        popped += pop_all(intake, reads=3)
    assert ("ad", 100) in popped


def test_a_message_beyond_the_configured_size_is_a_dead_letter(inputs):
    inputs.show(0, 10)
    with TopicWriter(inputs.settings, inputs.ads) as writer:
        writer.write(0, [b"x" * 3000])
    inputs.end()
    intake = inputs.open(max_message_bytes=2000)
    reasons: list[str] = []
    with suppress(EndOfStream):
        for _ in range(30):
            chunk = intake.next_batch()
            reasons += chunk.dead["reason"].to_pylist() if chunk is not None else []
    assert reasons == ["oversized"]


def test_lag_counts_what_was_not_popped(inputs):
    fill(inputs)
    intake = inputs.open()
    assert sum(intake.lag().values()) == 9
    assert intake.reached_ms == {}
    inputs.end()
    pop_all(intake)
    inputs.now = 2
    assert set(intake.lag().values()) == {0}
    ads, clicks = inputs.ads, inputs.clicks
    assert intake.reached_ms == {f"{ads}/0": 50, f"{ads}/1": 40, f"{clicks}/0": 35, f"{clicks}/1": 45}
    intake.close()
    inputs.now = 4
    assert set(intake.lag().values()) == {0}  # a worker's last report comes after its close
