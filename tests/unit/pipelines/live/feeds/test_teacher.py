"""A block cut into steps: the same global batches however many ranks share out the partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.live.feeds.cuts import block_cuts
from pipelines.live.feeds.growth import Growth, batch_growth
from pipelines.live.feeds.teacher import TeacherFeed
from pipelines.live.workers.ranks import Ranks, Rendezvous
from streaming.delivery.reader import Block, BlockPosition
from streaming.partitioner import partition_of

PARTITIONS = 4
EVEN = batch_growth(64, 64)


def block(number: int, count: int, ids: Any = None) -> Block:
    seq = np.arange(number * 1000, number * 1000 + count)
    ids = seq * 7919 if ids is None else ids
    columns = {"lake_seq": seq, "block": np.full(count, number), "impression_id": ids}
    return Block(number, int(seq[0]), int(seq[-1]), pa.table(columns), {})


class Topic:
    """A reader of the partitions `mine` of these blocks."""

    def __init__(self, blocks: list[Block], mine: range) -> None:
        self._blocks = [self._of(block, mine) for block in blocks]
        self.sought: list[BlockPosition] = []

    @staticmethod
    def _of(block: Block, mine: range) -> Block:
        owner = partition_of(block.rows["impression_id"].combine_chunks(), PARTITIONS)
        rows = block.rows.filter(pa.array(np.isin(owner, mine)))
        return Block(block.number, block.first_seq, block.last_seq, rows, {})

    def next_batch(self, wait_s: float) -> Block | None:
        return self._blocks.pop(0) if self._blocks else None

    def at_end(self) -> bool:
        return not self._blocks

    def seek(self, position: BlockPosition) -> None:
        self.sought.append(position)
        self._blocks = [block for block in self._blocks if block.number > position.after_block]


def shard(rank: int, ranks: int) -> range:
    whole = Ranks(Rendezvous())
    whole.rank, whole.count = rank, ranks
    return whole.shard(PARTITIONS)


def steps_of(
    blocks: list[Block], mine: range, batches: Growth = EVEN, **options: Any
) -> list[tuple[int, int, list[int]]]:
    """(block, step, lake_seq) of every batch of a rank."""
    reader: Any = Topic(blocks, mine)
    lake: Any = options.get("lake")
    build: Any = lambda rows: rows  # noqa: E731
    feed = TeacherFeed(reader, lake, build, partitions=PARTITIONS, mine=mine, batches=batches)
    found = []
    while (ready := feed.take()) is not None:
        found.append((ready.share.block.number, ready.step, ready.rows["lake_seq"].to_pylist()))
    return found


@pytest.mark.parametrize("batches", [EVEN, batch_growth(4, 64)])
@pytest.mark.parametrize("count", [1, 3, 63, 64, 65, 640, 641])
def test_every_step_is_the_same_rows_in_the_same_order_on_1_2_3_and_4_ranks(count, batches):
    blocks = [block(0, count), block(1, 100)]
    one = steps_of(blocks, range(PARTITIONS), batches)
    assert sorted(seq for _, _, rows in one for seq in rows) == sorted(
        seq for each in blocks for seq in each.rows["lake_seq"].to_pylist()
    )
    for ranks in (2, 3, 4):
        each = [steps_of(blocks, shard(rank, ranks), batches) for rank in range(ranks)]
        together = [(*steps[0][:2], [seq for step in steps for seq in step[2]]) for steps in zip(*each, strict=True)]
        assert together == one


def test_one_partitions_steps_are_batch_rows_each_and_the_rest():
    for rows in (1, 2047, 2048, 2049, 16384, 16385):
        at = block_cuts(np.array([rows]), batch_growth(2048, 2048).ends(0, rows))[:, 0]
        assert at.tolist() == [*range(0, rows, 2048), rows]


def test_a_young_teachers_steps_are_small_and_those_of_later_blocks_are_not():
    steps = steps_of([block(0, 640), block(8, 640)], range(PARTITIONS), batch_growth(4, 64))
    sizes = [[len(rows) for number, _, rows in steps if number == which] for which in (0, 8)]
    assert sum(sizes[0]) == sum(sizes[1]) == 640
    assert max(sizes[0][:20]) <= 4 + PARTITIONS
    assert max(abs(size - 64) for size in sizes[1]) < PARTITIONS


def test_slices_of_a_partition_are_even_to_a_row_in_full_steps():
    counts = np.array([4000, 4100, 3900, 4384])
    sizes = np.diff(block_cuts(counts, [*range(2048, 16385, 2048)]), axis=0)
    assert (np.ptp(sizes, axis=0) <= 1).all()
    assert np.abs(sizes.sum(1) - 2048).max() < 4
    assert (sizes.sum(0) == counts).all()


def test_ranks_share_all_partitions_neighbours_together():
    for ranks in (1, 2, 3, 4):
        shares = [shard(rank, ranks) for rank in range(ranks)]
        assert [p for mine in shares for p in mine] == list(range(PARTITIONS))
        assert min(map(len, shares)) >= PARTITIONS // ranks


def test_with_all_rows_in_one_partition_the_others_bring_nothing_to_every_step():
    ids = np.arange(10**6)
    ids = ids[partition_of(pa.array(ids), PARTITIONS) == 2][:200]
    at = [steps_of([block(0, 200, ids)], shard(rank, 4)) for rank in range(4)]
    assert [[len(rows) for _, _, rows in steps] for steps in at] == [[0] * 4, [0] * 4, [64, 64, 64, 8], [0] * 4]


def test_rows_from_the_lake_are_cut_as_those_from_the_topic_and_the_topic_follows():
    blocks = [block(number, 100) for number in range(4)]
    mine = range(1, 3)
    expected = steps_of(blocks, mine)
    reader: Any = Topic(blocks[2:], mine)
    lake: Any = SimpleNamespace(refresh=lambda: None, blocks=lambda after, upto: iter([b.rows for b in blocks[:3]]))
    build: Any = lambda rows: rows  # noqa: E731
    batches = TeacherFeed(reader, lake, build, partitions=PARTITIONS, mine=mine, batches=EVEN)
    batches.take()  # of block 2, and thrown away
    batches.go_on_from_lake(-1, 2099, BlockPosition(2))
    found = []
    while (ready := batches.take()) is not None:
        assert ready.share.rows.num_rows == ready.share.counts.sum() == ready.share.counts[1:3].sum()
        found.append((ready.share.block.number, ready.step, ready.rows["lake_seq"].to_pylist()))
    assert found == expected
    assert reader.sought == [BlockPosition(2)]
    assert not batches.at_end  # nobody asked
    batches.ask_for_end()
    assert batches.take() is None
    assert batches.at_end
