"""The examples topic: committed lake rows on their way to the teacher's ranks, block by block.

A block goes to every partition of the topic, as one message or several parts; a partition without rows of the block
gets an empty batch. Each message says in its headers which block it belongs to and which part of it it is, so a reader
knows when a block is whole, and a publisher finds after a crash where it left off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.errors import BadInput, DataLost, StreamingError
from streaming.hashing import hash64
from streaming.kafka import (
    KafkaSettings,
    TopicReader,
    TopicWriter,
    beginning_offsets,
    end_offsets,
    last_message,
    topic_config,
)
from streaming.messages import ExamplesCodec, RawMessage, Source
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition
from streaming.schema import RowSchema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Header:
    """What a message of the topic says of itself. `lake` is the id of the lake that its rows are from."""

    lake: str
    block: int
    first_seq: int
    last_seq: int
    part: int
    parts: int

    def encode(self) -> list[tuple[str, bytes]]:
        return [(name, str(value).encode()) for name, value in vars(self).items()]

    @classmethod
    def decode(cls, message: RawMessage) -> Header:
        """Raises StreamingError for a message that is none of ours."""
        values = {name: value.decode() for name, value in message.headers if name in cls.__dataclass_fields__}
        if absent := [name for name in cls.__dataclass_fields__ if name not in values]:
            raise StreamingError(
                f"message {message.offset} of topic `{message.topic}`, partition {message.partition}, is no part of a "
                f"block (no header {', '.join(absent)}): somebody else writes to this topic; give the run an examples "
                "topic of its own (kafka.examples.topic): it is rebuilt from the lake"
            )
        lake = values.pop("lake")
        return cls(lake, **{name: int(value) for name, value in values.items()})

    def check(self, lake: str, topic: str) -> None:
        """Raises BadInput where the message is of another lake than `lake`."""
        if self.lake != lake:
            raise BadInput(
                f"topic `{topic}` holds rows of another run (its lake is {self.lake}, this run's {lake}); give this "
                "run an examples topic of its own (kafka.examples.topic): it is rebuilt from the lake"
            )


def partition_of(ids: pa.Array, partitions: int) -> np.ndarray:
    """The partition of the examples topic that a row goes to, by its impression id, (N,) -> (N,). A function of the row
    alone: whoever takes rows from the lake instead finds the same.

    >>> partition_of(pa.array([7, 8, 9]), 1).tolist()
    [0, 0, 0]
    """
    return (hash64(ids) % np.uint64(partitions)).astype(np.int64)


class ExamplesPublisher:
    """Publishes committed blocks, in order, each once per partition however often it is restarted.

    `published_seq` is the last `lake_seq` that every partition holds; the caller publishes again from there, and
    partitions that already hold a block are passed over.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int, schema: RowSchema, lake: str) -> None:
        """`lake` is the id of the lake published. Raises BadInput where the topic holds rows of another."""
        self._topic, self._lake = topic, lake
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
    def published_seq(self) -> int:
        return min(seq for _, seq in self._held)

    def publish(self, block: pa.RecordBatch) -> None:
        """One whole block, in order of `lake_seq`.

        Raises BadInput when the topic holds it already although it was only just committed: it is another run's.
        """
        number = block["block"][0].as_py()
        first, last = block["lake_seq"][0].as_py(), block["lake_seq"][-1].as_py()
        if last <= self.published_seq:
            raise BadInput(
                f"topic `{self._topic}` holds rows up to lake_seq {self.published_seq:,}, the lake was published up to "
                f"{first - 1:,} only: the topic is another run's; delete it, or give this run one of its own "
                "(kafka.examples.topic)"
            )
        time_ms = int(block["event_time_ms"].to_numpy().max())
        owner = partition_of(block["impression_id"], self._partitions)
        for partition in range(self._partitions):
            if number <= self._held[partition][0]:
                continue
            rows = block if self._partitions == 1 else block.filter(pa.array(owner == partition))
            values = self._codec.encode(rows, self._part_bytes)
            for part, value in enumerate(values):
                header = Header(self._lake, number, first, last, part, len(values))
                self._writer.write(partition, [value], headers=header.encode(), timestamp_ms=time_ms)
        self._writer.flush()
        self._held = [max(held, (number, last)) for held in self._held]

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        """Let go as a crash would."""
        self._writer.abandon()


@dataclass(frozen=True)
class Block:
    """A whole block, or of its rows those in the partitions read: by `lake_seq`, and where each of these partitions
    stands after it."""

    number: int
    first_seq: int
    last_seq: int
    rows: pa.Table
    positions: Positions


def check_whole(block: int, first_seq: int, last_seq: int, rows: int) -> None:
    """Raises StreamingError where a block of all partitions has not as many rows as it covers."""
    if rows != last_seq - first_seq + 1:
        raise StreamingError(
            f"block {block} has {rows} rows on the examples topic, lake_seq {first_seq} to {last_seq} make "
            f"{last_seq - first_seq + 1}; delete the topic: it is rebuilt from the lake"
        )


class BlockPosition(NamedTuple):
    """The last block that was read, and from where on the topic holds the next: empty, from its beginning."""

    after_block: int = NOTHING_YET
    positions: Mapping[Partition, SourcePosition] = MappingProxyType({})


@dataclass
class _Gathering:
    """Parts of a block as they come, by partition."""

    header: Header
    parts: dict[int, dict[int, pa.RecordBatch]] = field(default_factory=dict)
    needed: dict[int, int] = field(default_factory=dict)
    next_offset: dict[int, int] = field(default_factory=dict)

    def add(self, message: RawMessage, header: Header, codec: ExamplesCodec) -> None:
        partition = message.partition
        if self.needed.get(partition) != header.parts:  # cut anew by a publisher that was restarted
            self.needed[partition], self.parts[partition] = header.parts, {}
        self.parts[partition].setdefault(header.part, codec.decode(message))
        self.next_offset[partition] = message.offset + 1

    def complete(self, partition: int) -> bool:
        return len(self.parts.get(partition, ())) == self.needed.get(partition, NOTHING_YET)

    def batches(self) -> list[pa.RecordBatch]:
        return [batch for parts in self.parts.values() for batch in parts.values()]


class ExamplesReader(Source[BlockPosition, Block]):
    """Whole blocks, in order, from the topic's partitions. Messages seen twice are dropped.

    The one source that does go on behind a gap, because its rows are in the lake: a block of which the topic no longer
    holds everything is passed over, the next one's `first_seq` says so, and whoever reads takes what lies between from
    there. The topic has no end; the lake has.

    `only`: of the topic's partitions these; of every block then these partitions' rows, and whoever reads sees that
    all of them together are the block.

    Memory holds the parts of unfinished blocks, and no more than one poll of each partition beyond the first of them:
    a partition that has its part of it is left alone until the others have theirs.
    """

    MESSAGES_PER_POLL = 16

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        partitions: int,
        schema: RowSchema,
        lake: str,
        only: Sequence[int] | None = None,
    ) -> None:
        self._settings, self._lake = settings, lake
        self._codec = ExamplesCodec(schema)
        mine = range(partitions) if only is None else only
        self._all = [Partition(topic, p) for p in mine]
        self._checks = len(mine) == partitions
        self._reader = TopicReader(settings, self._all)
        self._gathering: dict[int, _Gathering] = {}
        self._after = NOTHING_YET
        self._newest = dict.fromkeys(mine, NOTHING_YET)
        self._positions: Positions = {}

    def open(self, position: BlockPosition | None = None) -> None:
        """Where the topic does not have a position (retention, or it was made anew) its beginning is taken, and blocks
        up to `after_block` are passed over."""
        self._after, positions = position or BlockPosition()
        self._gathering.clear()
        self._newest = dict.fromkeys(self._newest, NOTHING_YET)
        begins, ends = beginning_offsets(self._settings, self._all), end_offsets(self._settings, self._all)
        self._positions = {p: at for p, at in positions.items() if begins[p] <= at.offset <= ends[p]}
        self._reader.open(self._positions)

    def seek(self, position: BlockPosition) -> None:
        self.open(position)

    def position(self) -> BlockPosition:
        return BlockPosition(self._after, dict(self._positions))

    def next_batch(self, max_wait_s: float = 0.0) -> Block | None:
        if (block := self._whole()) is not None:
            return block
        try:
            messages = self._reader.next_batch(max_wait_s, max_messages=self.MESSAGES_PER_POLL, only=self._awaited())
        except DataLost as gap:  # retention was faster than we are, or the topic was made anew
            log.warning("%s (the lake has these rows)", gap)
            self.open(self.position())
            return None
        for message in messages or ():
            self._take(message)
        return self._whole()

    def at_end(self) -> bool:
        """True when the broker says that nothing follows in any partition."""
        return all(self._reader.at_end(partition) for partition in self._all)

    def _awaited(self) -> list[Partition]:
        """The partitions that hold up the next block: all, when nothing of it is here yet."""
        if not self._gathering:
            return self._all
        first = self._gathering[min(self._gathering)]
        return [p for p in self._all if not first.complete(p.partition)]

    def _take(self, message: RawMessage) -> None:
        header = Header.decode(message)
        header.check(self._lake, message.topic)
        if header.block <= self._after:
            return
        self._newest[message.partition] = max(self._newest[message.partition], header.block)
        gathering = self._gathering.setdefault(header.block, _Gathering(header))
        gathering.add(message, header, self._codec)

    def _whole(self) -> Block | None:
        while self._gathering:
            number = min(self._gathering)
            gathering = self._gathering[number]
            lacking = [p.partition for p in self._all if not gathering.complete(p.partition)]
            if not lacking:
                return self._block(number, self._gathering.pop(number))
            if all(self._newest[partition] <= number for partition in lacking):
                return None
            del self._gathering[number]  # a partition went on without it: its part was deleted
        return None

    def _block(self, number: int, gathering: _Gathering) -> Block:
        header = gathering.header
        rows = pa.Table.from_batches(gathering.batches()).sort_by("lake_seq").combine_chunks()
        if self._checks:
            check_whole(number, header.first_seq, header.last_seq, rows.num_rows)
        self._after = number
        for partition, offset in gathering.next_offset.items():
            self._positions[Partition(self._all[0].topic, partition)] = SourcePosition(offset)
        return Block(number, header.first_seq, header.last_seq, rows, dict(self._positions))

    def close(self) -> None:
        self._reader.close()
