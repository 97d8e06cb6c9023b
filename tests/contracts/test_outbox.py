"""Late feedback and dead letters: each delivered once to table and topic, whatever happened in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streaming.delivery.outbox import CommitRecord, Outbox
from streaming.kafka.topics import ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.messages.dead_letters import DeadLetter, letters_to_batch
from streaming.settlement.label_join import late_schema
from tests.support.pipelines.topics import messages_of
from tests.support.streams.lake_rows import SCHEMA

pytestmark = pytest.mark.broker

LATE = late_schema(SCHEMA)


def record(number: int, letters: int, late: int = 0) -> CommitRecord:
    dead = [DeadLetter("impression", "null:age", "ads", 0, number, row, "why", b"\xff") for row in range(letters)]
    rows = [
        {"impression_id": row, "event_time_ms": 1, "task": "ctr", "source_topic": "clicks", "source_partition": 0}
        | {"source_offset": number, "source_row": row, "reason": "outside_window", "late_by_ms": 5}
        | {"impression_event_time_ms": 1, "deadline_ms": 2}
        for row in range(late)
    ]
    table = pa.Table.from_pylist(rows, schema=LATE)
    return CommitRecord(number, {"merge": {"watermark_ms": 7}}, table, pa.Table.from_batches([letters_to_batch(dead)]))


@pytest.fixture
def topic(kafka, topic_name) -> str:
    name = topic_name("letters")
    ensure_topics(kafka, {name: 1})
    return name


@pytest.fixture
def outbox(kafka, topic, tmp_path):
    opened = []

    def start() -> Outbox:
        opened.append(Outbox(tmp_path / "lake", kafka, topic, SCHEMA))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def delivered(kafka, topic: str, tmp_path: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """(offset, row) of what stands on the topic, in the dead-letter table, and in that of late feedback."""
    on_topic = [json.loads(message.value) for message in messages_of(kafka.bootstrap_servers, topic)]
    tables = []
    for name in ("dead_letters", "late_feedback"):
        path = tmp_path / "lake" / name
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []
        tables.append(sorted((row["source_offset"], row["source_row"]) for row in rows))
    return [(row["source_offset"], row["source_row"]) for row in on_topic], tables[0], tables[1]


def test_a_record_is_delivered_once_to_table_and_topic(outbox, kafka, topic, tmp_path):
    out = outbox()
    for number, letters, late in ((1, 2, 1), (2, 0, 0), (3, 1, 2)):
        out.deliver(record(number, letters, late))
    dead = [(1, 0), (1, 1), (3, 0)]
    assert delivered(kafka, topic, tmp_path) == (dead, dead, [(1, 0), (3, 0), (3, 1)])


def test_a_record_delivered_again_after_a_restart_changes_nothing(outbox, kafka, topic, tmp_path):
    outbox().deliver(record(1, 2, 1))
    for _ in range(2):
        outbox().deliver(record(1, 2, 1))
    outbox().deliver(record(2, 1, 1))
    dead = [(1, 0), (1, 1), (2, 0)]
    assert delivered(kafka, topic, tmp_path) == (dead, dead, [(1, 0), (2, 0)])


def test_letters_of_which_a_crash_let_some_out_are_completed(outbox, kafka, topic, tmp_path, monkeypatch):
    write = TopicWriter.write
    sent: list[Any] = []

    def dying(self: TopicWriter, *args: Any, **kwargs: Any) -> None:
        if len(sent) == 2:
            raise ConnectionError
        write(self, *args, **kwargs)
        self.flush()
        sent.append(args)

    with monkeypatch.context() as patch:
        patch.setattr(TopicWriter, "write", dying)
        with pytest.raises(ConnectionError):
            outbox().deliver(record(1, 4))
    outbox().deliver(record(1, 4))
    dead = [(1, row) for row in range(4)]
    assert delivered(kafka, topic, tmp_path) == (dead, dead, [])


def test_numbers_of_a_later_writer_go_on_above_those_of_an_earlier_one(outbox, kafka, topic, tmp_path):
    outbox().deliver(record((1 << 32) + 5, 1))
    outbox().deliver(record(2 << 32, 1))
    assert len(delivered(kafka, topic, tmp_path)[0]) == 2


def test_a_record_comes_back_as_it_was_saved(tmp_path):
    saved = record(7, 2, 3)
    saved.save(tmp_path)
    loaded = CommitRecord.load(tmp_path, 7)
    assert loaded == saved
    assert not list(tmp_path.glob(".record-*"))


def test_a_number_whose_commit_never_happened_is_written_anew(tmp_path):
    record(7, 2).save(tmp_path)
    record(7, 1, 4).save(tmp_path)
    assert CommitRecord.load(tmp_path, 7) == record(7, 1, 4)


def test_records_before_the_last_ones_are_forgotten(tmp_path):
    numbers = [(1 << 32) + n for n in range(4)]
    for number in numbers:
        record(number, 1).save(tmp_path)
    CommitRecord.prune(tmp_path, before=numbers[2])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"record-{n:012d}" for n in numbers[2:]]
