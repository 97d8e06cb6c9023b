"""Reads blocks back from the examples topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from streaming.delivery.header import Header
from streaming.errors import DataLost, StreamingError
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import beginning_offsets, end_offsets
from streaming.lake.erasure.holes import Holes
from streaming.messages.examples import ExamplesCodec
from streaming.messages.message import RawMessage
from streaming.messages.source import Source
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition
from streaming.schema import RowSchema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Block:
    """The rows of one block in the partitions read, by `lake_seq`, and the position in each partition after it."""

    number: int
    first_seq: int
    last_seq: int
    rows: pa.Table
    positions: Positions


def check_whole(block: int, first_seq: int, last_seq: int, rows: int, holes: Holes) -> None:
    """Raise StreamingError if a block read from all partitions does not have exactly the rows it covers, without those
    that were erased."""
    there = last_seq - first_seq + 1 - holes.count(first_seq, last_seq)
    if rows != there:
        raise StreamingError(
            f"block {block} has {rows} rows on the examples topic, lake_seq {first_seq} to {last_seq} make "
            f"{there}; delete the topic: it is rebuilt from the lake"
        )


class BlockPosition(NamedTuple):
    """The last block read, and the position of the next one in each partition; an unnamed partition is read from its
    beginning."""

    after_block: int = NOTHING_YET
    positions: Mapping[Partition, SourcePosition] = MappingProxyType({})


@dataclass
class _Gathering:
    """The parts of one block received so far, by partition, and by cut and number of parts: a publisher that starts
    again may cut a block anew."""

    header: Header
    parts: dict[int, dict[tuple[str, int], dict[int, pa.RecordBatch]]] = field(default_factory=dict)
    next_offset: dict[int, int] = field(default_factory=dict)

    def add(self, message: RawMessage, header: Header, codec: ExamplesCodec) -> None:
        partition = message.partition
        cut = self.parts.setdefault(partition, {}).setdefault((header.cut, header.parts), {})
        cut.setdefault(header.part, codec.decode(message))
        self.next_offset[partition] = message.offset + 1

    def complete(self, partition: int) -> bool:
        return self._whole(partition) is not None

    def _whole(self, partition: int) -> list[pa.RecordBatch] | None:
        """All parts of one cut."""
        cuts = self.parts.get(partition, {})
        return next((list(parts.values()) for (_, needed), parts in cuts.items() if len(parts) == needed), None)

    def batches(self) -> list[pa.RecordBatch]:
        return [batch for partition in self.parts for batch in self._whole(partition) or ()]


class ExamplesReader(Source[BlockPosition, Block]):
    """Reads complete blocks, in order, from the topic's partitions. Messages seen twice are dropped.

    This is the only source that continues after a gap, because its rows are in the lake too: a block that the topic no
    longer holds completely is skipped, the next one's `first_seq` shows the gap, and the caller reads the missing rows
    from the lake. The topic has no end; the lake has.

    only   reads these partitions alone: each block then has their rows, and the caller checks that the ranks' rows
           together make up the block
    holes  of the lake: the topic may hold erased rows still, which are left out

    Memory holds the parts of unfinished blocks, and at most one poll of each partition beyond the first of them: a
    partition whose part of that block has arrived is not polled until the other parts have.
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
        holes: Holes | None = None,
    ) -> None:
        self._settings, self._lake, self._holes = settings, lake, holes or Holes()
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
        """Start after `position`.

        Where the topic no longer has it (retention, or the topic was created anew), its beginning is read, and blocks
        up to `after_block` are skipped.
        """
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
        except DataLost as gap:  # deleted by retention, or the topic was created anew
            log.warning("%s (the lake has these rows)", gap)
            self.open(self.position())
            return None
        for message in messages or ():
            self._take(message)
        return self._whole()

    def at_end(self) -> bool:
        """True when the broker confirms that nothing follows in any partition."""
        return all(self._reader.at_end(partition) for partition in self._all)

    def _awaited(self) -> list[Partition]:
        """The partitions whose part of the next block is missing: all of them, while no part has arrived."""
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
            del self._gathering[number]  # a partition has later blocks already: its part was deleted
        return None

    def _block(self, number: int, gathering: _Gathering) -> Block:
        header = gathering.header
        rows = pa.Table.from_batches(gathering.batches()).sort_by("lake_seq").combine_chunks()
        if self._holes.count(header.first_seq, header.last_seq):
            rows = rows.filter(pa.array(~self._holes.mask(rows["lake_seq"].to_numpy()))).combine_chunks()
        if self._checks:
            check_whole(number, header.first_seq, header.last_seq, rows.num_rows, self._holes)
        self._after = number
        for partition, offset in gathering.next_offset.items():
            self._positions[Partition(self._all[0].topic, partition)] = SourcePosition(offset)
        return Block(number, header.first_seq, header.last_seq, rows, dict(self._positions))

    def close(self) -> None:
        self._reader.close()
