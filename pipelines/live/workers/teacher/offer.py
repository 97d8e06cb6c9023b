"""Agreement of the teacher's ranks on the next block.

Each rank offers what it has of the next block. From all offers, every rank concludes the same:

    all have a part of the block that follows        learn it
    all have a block, some only a later one          take what lies between from the lake
    the stream has ended, and the topic holds no more   take the rest from the lake
    otherwise                                        wait
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipelines.live.feeds.teacher import Portion
from streaming.delivery.reader import check_whole
from streaming.errors import StreamingError
from streaming.position import NOTHING_YET, Partition, SourcePosition


class BlockOffer(NamedTuple):
    """A rank's part of the next block. `counts`, `offsets`, (P,): its rows by partition, and where its reader stands
    behind them; 0 in partitions that it does not read. `at_end`: its part of the topic holds nothing more."""

    number: int
    first_seq: int
    last_seq: int
    at_end: bool
    counts: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def nothing(partitions: int, at_end: bool) -> BlockOffer:
        none = np.zeros(partitions, np.int64)
        return BlockOffer(NOTHING_YET, NOTHING_YET, NOTHING_YET, at_end, none, none)

    @staticmethod
    def of(portion: Portion, positions: Mapping[Partition, SourcePosition], at_end: bool) -> BlockOffer:
        """The offer of a rank that has this portion; `positions` are its own."""
        offsets = np.zeros_like(portion.counts)
        for partition, at in positions.items():
            offsets[partition.partition] = at.offset
        block = portion.block
        return BlockOffer(block.number, block.first_seq, block.last_seq, at_end, portion.counts, offsets)

    @property
    def has_block(self) -> bool:
        return self.number != NOTHING_YET

    def encode(self) -> list[int]:
        """Encode as integers for the exchange between ranks.

        >>> offer = BlockOffer(3, 32, 63, False, np.array([20, 12]), np.array([4, 0]))
        >>> offer.encode()
        [3, 32, 63, 0, 20, 12, 4, 0]
        >>> BlockOffer.decode(np.array(offer.encode())).encode() == offer.encode()
        True
        """
        head = [self.number, self.first_seq, self.last_seq, int(self.at_end)]
        return [*head, *self.counts.tolist(), *self.offsets.tolist()]

    @staticmethod
    def decode(numbers: np.ndarray) -> BlockOffer:
        number, first, last, at_end = numbers[:4].tolist()
        counts, offsets = numbers[4:].reshape(2, -1)
        return BlockOffer(number, first, last, bool(at_end), counts, offsets)


class Learn(NamedTuple):
    """Learn the block at hand. `counts`, `offsets`, (P,): of all ranks."""

    counts: np.ndarray
    offsets: np.ndarray


class TakeFromLake(NamedTuple):
    """Take the rows up to `upto` from the lake, then continue with the topic after the block `after_block`."""

    upto: int
    after_block: int


def conclude(
    offers: Sequence[BlockOffer], learned_seq: int, learned_block: int, end_seq: int | None
) -> Learn | TakeFromLake | None:
    """Decide on the joint next action from all offers and the last learned row and block; None to wait. `end_seq`: the
    last row of the stream, once it is known.

    Raises StreamingError where a rank offers rows that were learned, or the ranks together lack rows of the block.
    """
    if all(offer.has_block for offer in offers):
        latest = max(offers, key=lambda offer: offer.first_seq)
        if latest.first_seq > learned_seq + 1:
            return TakeFromLake(latest.first_seq - 1, latest.number - 1)
        earliest = min(offer.first_seq for offer in offers)
        if earliest <= learned_seq:
            raise StreamingError(f"a rank has lake_seq {earliest} at hand, {learned_seq + 1} comes next")
        counts = np.sum([offer.counts for offer in offers], axis=0)
        check_whole(latest.number, latest.first_seq, latest.last_seq, int(counts.sum()))
        return Learn(counts, np.sum([offer.offsets for offer in offers], axis=0))
    if end_seq is not None and all(offer.has_block or offer.at_end for offer in offers):
        return TakeFromLake(end_seq, learned_block)  # everything was published, and is no longer on the topic
    return None
