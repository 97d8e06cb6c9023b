"""The examples topic: committed lake rows on their way to the teacher's ranks, block by block.

A block goes to every partition of the topic, as one message or several parts; a partition without rows of the block
gets an empty batch. Each message says in its headers which block it belongs to and which part of it it is, so a reader
knows when a block is whole, and a publisher finds after a crash where it left off.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from streaming.codecs import ExamplesCodec, RawMessage
from streaming.errors import StreamingError
from streaming.hashing import hash64
from streaming.kafka import KafkaSettings, TopicReader, TopicWriter, last_message
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition
from streaming.schema import RowSchema


@dataclass(frozen=True)
class Header:
    """What a message of the topic says of itself."""

    block: int
    first_seq: int
    last_seq: int
    part: int
    parts: int

    def encode(self) -> list[tuple[str, bytes]]:
        return [(name, str(value).encode()) for name, value in vars(self).items()]

    @classmethod
    def decode(cls, message: RawMessage) -> Header:
        values = {name: int(value) for name, value in message.headers if name in cls.__dataclass_fields__}
        return cls(**values)


class ExamplesPublisher:
    """Publishes committed blocks, in order, each once per partition however often it is restarted.

    `published_seq` is the last `lake_seq` that every partition holds; the caller publishes again from there, and
    partitions that already hold a block are passed over.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int, schema: RowSchema) -> None:
        self._codec = ExamplesCodec(schema)
        self._writer = TopicWriter(settings, topic)
        self._partitions = partitions
        self._held = [self._last_whole_block(settings, topic, p) for p in range(partitions)]

    @staticmethod
    def _last_whole_block(settings: KafkaSettings, topic: str, partition: int) -> tuple[int, int]:
        """(block, lake_seq) up to which a partition holds everything."""
        message = last_message(settings, topic, partition)
        if message is None:
            return NOTHING_YET, NOTHING_YET
        header = Header.decode(message)
        if header.part == header.parts - 1:
            return header.block, header.last_seq
        return header.block - 1, header.first_seq - 1

    @property
    def published_seq(self) -> int:
        return min(seq for _, seq in self._held)

    def publish(self, block: pa.RecordBatch) -> None:
        """One whole block, in order of `lake_seq`."""
        number = block["block"][0].as_py()
        first, last = block["lake_seq"][0].as_py(), block["lake_seq"][-1].as_py()
        time_ms = int(block["event_time_ms"].to_numpy().max())
        owner = hash64(block["impression_id"]) % np.uint64(self._partitions)
        for partition in range(self._partitions):
            if number <= self._held[partition][0]:
                continue
            rows = block if self._partitions == 1 else block.filter(pa.array(owner == partition))
            values = self._codec.encode(rows)
            for part, value in enumerate(values):
                header = Header(number, first, last, part, len(values))
                self._writer.write(partition, [value], headers=header.encode(), timestamp_ms=time_ms)
        self._writer.flush()
        self._held = [max(held, (number, last)) for held in self._held]

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class Block:
    """A whole block: rows of all partitions read, by `lake_seq`, and where each partition stands after it."""

    number: int
    first_seq: int
    last_seq: int
    rows: pa.Table
    positions: Positions


@dataclass
class _Gathering:
    header: Header
    parts: dict[tuple[int, int], pa.RecordBatch] = field(default_factory=dict)
    needed: dict[int, int] = field(default_factory=dict)


class ExamplesReader:
    """Whole blocks, in order, from the topic's partitions. Messages seen twice are dropped.

    `behind` bounds memory: no more than so many blocks are gathered at a time.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int, schema: RowSchema) -> None:
        self._codec = ExamplesCodec(schema)
        self._reader = TopicReader(settings, [Partition(topic, p) for p in range(partitions)])
        self._partitions = partitions
        self._gathering: dict[int, _Gathering] = {}
        self._after = NOTHING_YET
        self._offsets: dict[int, dict[int, int]] = defaultdict(dict)
        self._positions: Positions = {}

    def open(self, positions: Positions, after_block: int) -> None:
        """Read on from `positions` (empty: the beginning), passing over blocks up to `after_block`."""
        self._after = after_block
        self._positions = dict(positions)
        self._reader.open(positions)

    def next_block(self, max_wait_s: float) -> Block | None:
        if (block := self._whole()) is not None:
            return block
        for message in self._reader.poll(max_wait_s, max_messages=64):
            self._take(message)
        return self._whole()

    def _take(self, message: RawMessage) -> None:
        header = Header.decode(message)
        if header.block <= self._after:
            return
        gathering = self._gathering.setdefault(header.block, _Gathering(header))
        gathering.parts.setdefault((message.partition, header.part), self._codec.decode(message))
        gathering.needed[message.partition] = header.parts
        offsets = self._offsets[header.block]
        offsets[message.partition] = max(offsets.get(message.partition, 0), message.offset + 1)

    def _whole(self) -> Block | None:
        if not self._gathering:
            return None
        number = min(self._gathering)
        gathering = self._gathering[number]
        if len(gathering.needed) < self._partitions or len(gathering.parts) < sum(gathering.needed.values()):
            return None
        header = gathering.header
        rows = pa.Table.from_batches(gathering.parts.values()).sort_by("lake_seq").combine_chunks()
        if rows.num_rows != header.last_seq - header.first_seq + 1:
            raise StreamingError(
                f"block {number} has {rows.num_rows} rows on the examples topic, lake_seq {header.first_seq} to "
                f"{header.last_seq} make {header.last_seq - header.first_seq + 1}; delete the topic: it is rebuilt "
                "from the lake"
            )
        del self._gathering[number]
        self._after = number
        topic = self._reader.partitions[0].topic
        for partition, offset in self._offsets.pop(number).items():
            self._positions[Partition(topic, partition)] = SourcePosition(offset)
        return Block(number, header.first_seq, header.last_seq, rows, dict(self._positions))

    def close(self) -> None:
        self._reader.close()
