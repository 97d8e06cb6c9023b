"""Every sink, asked the same questions (sink_contract.py)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streaming.delivery.publisher import ExamplesPublisher
from streaming.delivery.reader import ExamplesReader
from streaming.errors import StreamingError
from streaming.kafka.topics import ensure_topics
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.lake.writer import LakeTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from tests.support.streams.lake_rows import SCHEMA, rows
from tests.support.streams.sink_contract import BATCHES, SinkContract

ROWS = 10


class TestLake(SinkContract):
    @pytest.fixture(autouse=True)
    def _lake(self, tmp_path):
        self.lake = LakeTable(tmp_path / "lake", SCHEMA)

    def open(self):
        return self.lake.open_writer()

    def write(self, sink, number):
        sink.commit(rows(number * ROWS, ROWS, block=number), state=number, metadata={})

    def position(self, sink):
        return sink.last_lake_seq // ROWS

    def content(self):
        return self.lake.open_reader().read().table["block"].to_pylist()[::ROWS]

    def test_the_older_of_two_writers_is_stopped_and_nothing_of_it_is_there(self):
        older, newer = self.open(), self.open()
        self.write(newer, 0)
        with pytest.raises(StreamingError, match="fenced"):
            self.write(older, 0)
        assert self.content() == [0]


class TestSideTable(SinkContract):
    @pytest.fixture(autouse=True)
    def _table(self, tmp_path):
        self.folder = tmp_path

    def open(self):
        return SideTable(self.folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA)

    def write(self, sink, number):
        letters = [DeadLetter("impression", "undecodable", "ads", 0, number, row, "", b"?") for row in range(ROWS)]
        sink.append(letters_to_batch(letters), number=number)

    def position(self, sink):
        return sink.position

    def content(self):
        table = pa.table(DeltaTable(self.folder / DEAD_LETTERS).to_pyarrow_table())
        return sorted(table["source_offset"].to_pylist())[::ROWS]


@pytest.mark.broker
class TestExamples(SinkContract):
    @pytest.fixture(autouse=True)
    def _topic(self, kafka, topic_name):
        self.settings, self.topic = kafka, topic_name("examples")
        ensure_topics(kafka, {self.topic: 2})

    def open(self):
        return ExamplesPublisher(self.settings, self.topic, 2, SCHEMA, "lake")

    def write(self, sink, number):
        sink.publish(rows(number * ROWS, ROWS, block=number))

    def position(self, sink):
        return sink.published_seq // ROWS

    def close(self, sink):
        sink.close()

    def content(self):
        found = []
        with ExamplesReader(self.settings, self.topic, 2, SCHEMA, "lake") as reader:
            reader.open()
            for _ in range(40):
                if (block := reader.next_batch(0.2)) is not None:
                    found.append(block.number)
                if len(found) == BATCHES:
                    break
            assert reader.next_batch(0.2) is None
        return found
