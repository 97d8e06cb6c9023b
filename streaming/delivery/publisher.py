"""Publishes committed blocks to the examples topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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


class ExamplesWriter:
    """Rows of a block as messages of the examples topic, from one of the processes that hold its rows."""

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int, schema: RowSchema) -> None:
        self.partitions = partitions
        self._codec = ExamplesCodec(schema)
        self._writer = TopicWriter(settings, topic)
        limit = min(settings.max_message_bytes, int(topic_config(settings, topic)["max.message.bytes"]))
        self.part_bytes = limit // 2
        self.nothing = self._codec.encode(pa.RecordBatch.from_pylist([], schema.augmented))
        """One message without rows."""

    def encoded(self, rows: pa.RecordBatch, partitions: Iterable[int]) -> Iterator[tuple[int, list[bytes]]]:
        """Messages of the rows that belong to each of these partitions, in their order; none where no row does."""
        owner = partition_of(rows["impression_id"], self.partitions)
        for partition in partitions:
            own = rows if self.partitions == 1 else rows.filter(pa.array(owner == partition))
            yield partition, self._codec.encode(own, self.part_bytes) if own.num_rows else []

    def write(self, partition: int, values: Sequence[bytes], first: Header) -> None:
        """Write successive parts of a block, `first` the header of the first of them."""
        for part, value in enumerate(values, first.part):
            self._writer.write(partition, [value], headers=replace(first, part=part).encode())

    def flush(self) -> None:
        """Wait until all that was written is acknowledged."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        """Close without flushing, as a crash would."""
        self._writer.abandon()


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
        self._out = ExamplesWriter(settings, topic, partitions, schema)
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
        return self._out.part_bytes // 2

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
        self._check_new(first, last)
        lacking = [partition for partition, (held, _) in enumerate(self._held) if number > held]
        for partition, values in self._out.encoded(block, lacking):
            values = values or self._out.nothing
            self._out.write(partition, values, Header(self._lake, number, first, last, 0, len(values)))
        self._conclude(number, last)

    def publish_in_parts(
        self,
        number: int,
        first: int,
        last: int,
        cut: str,
        parts: Sequence[int],
        write: Callable[[Sequence[Header]], object],
    ) -> None:
        """Publish one complete block whose rows lie in several processes. `parts`: how many they make of it in each
        partition; `write` has them written and acknowledged, given the headers of the first.

        Raises as `publish`.
        """
        self._check_new(first, last)
        headers = [Header(self._lake, number, first, last, 0, count + 1, cut) for count in parts]
        write(headers)
        for partition, header in enumerate(headers):
            self._out.write(partition, self._out.nothing, replace(header, part=parts[partition]))
        self._conclude(number, last)

    def _conclude(self, number: int, last: int) -> None:
        self._out.flush()
        self._held = [max(held, (number, last)) for held in self._held]

    def _check_new(self, first: int, last: int) -> None:
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

    def close(self) -> None:
        self._out.close()

    def abandon(self) -> None:
        """Close without flushing, as a crash would."""
        self._out.abandon()
