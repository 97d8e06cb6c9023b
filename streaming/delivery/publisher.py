"""Publishes committed blocks to the examples topic."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from streaming.delivery.header import Header
from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import last_message, topic_config
from streaming.kafka.writer import TopicWriter
from streaming.messages.examples import ExamplesCodec
from streaming.partitioner import partition_of
from streaming.position import NOTHING_YET
from streaming.schema import RowSchema


class ExamplesPublisher:
    """Publishes committed blocks in order, exactly once per partition across restarts of the publisher.

    `published_seq` is the last `lake_seq` that every partition holds. The caller publishes again from there; partitions
    that already hold a block are skipped.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        partitions: int,
        schema: RowSchema,
        lake: str,
        *,
        original: Path | None = None,
    ) -> None:
        """`lake` is the id of the lake published, `original` the run directory that this one is a copy of. Raises
        BadInput where the topic holds rows of another lake."""
        self._topic, self._lake, self._original = topic, lake, original
        self._codec = ExamplesCodec(schema)
        self._writer = TopicWriter(settings, topic)
        limit = min(settings.max_message_bytes, int(topic_config(settings, topic)["max.message.bytes"]))
        self._part_bytes = limit // 2
        self._partitions = partitions
        self._held = [self._last_whole_block(settings, topic, p) for p in range(partitions)]

    def _last_whole_block(self, settings: KafkaSettings, topic: str, partition: int) -> tuple[int, int]:
        """(block, lake_seq) up to which a partition holds everything."""
        message = last_message(settings, topic, partition)
        if message is None:
            return NOTHING_YET, NOTHING_YET
        header = Header.decode(message)
        header.check(self._lake, topic)
        if header.part == header.parts - 1:
            return header.block, header.last_seq
        return header.block - 1, header.first_seq - 1

    @property
    def row_bytes(self) -> int:
        """Largest size of a row's texts and lists with which the row still fits into a message."""
        return self._part_bytes // 2

    @property
    def published_seq(self) -> int:
        return min(seq for _, seq in self._held)

    def publish(self, block: pa.RecordBatch) -> None:
        """Publish one complete block, in order of `lake_seq`.

        Raises BadInput when the topic already holds the block, which was committed only now: the topic belongs to
        another run.
        """
        number = block["block"][0].as_py()
        first, last = block["lake_seq"][0].as_py(), block["lake_seq"][-1].as_py()
        if last <= self.published_seq:
            copied = (
                "this run directory or the other one is a copy"
                if self._original is None
                else (f"this run directory looks like a copy of {self._original}")
            )
            raise BadInput(
                f"topic `{self._topic}` holds rows up to lake_seq {self.published_seq:,} of this lake, which was "
                f"published up to {first - 1:,} only: the topic is another run's, and {copied}. Give one of the two a "
                "topic of its own (--set kafka.examples.topic=…): it is filled from the lake"
            )
        owner = partition_of(block["impression_id"], self._partitions)
        for partition in range(self._partitions):
            if number <= self._held[partition][0]:
                continue
            rows = block if self._partitions == 1 else block.filter(pa.array(owner == partition))
            values = self._codec.encode(rows, self._part_bytes)
            for part, value in enumerate(values):
                header = Header(self._lake, number, first, last, part, len(values))
                self._writer.write(partition, [value], headers=header.encode())
        self._writer.flush()
        self._held = [max(held, (number, last)) for held in self._held]

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        """Close without flushing, as a crash would."""
        self._writer.abandon()
