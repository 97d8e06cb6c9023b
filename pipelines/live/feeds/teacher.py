"""A teacher rank's feed: its partitions' rows of every block, from the examples topic or the lake, cut into steps.

A block is what one commit of the lake holds, and says itself which rows it covers. It is the range that all ranks agree
on, in either pace, whether it comes from the topic, again after a crash, or from the lake. How it is cut: cuts.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch
from pipelines.live.feeds.cuts import block_cuts
from pipelines.live.feeds.growth import Growth
from pipelines.live.training.ahead import Ahead
from pipelines.live.training.writer import Watch
from streaming.delivery.reader import Block, BlockPosition
from streaming.lake.reader import LakeReader
from streaming.partitioner import partition_of

WAIT_S = 0.05

log = logging.getLogger(__name__)


class BlockReader(Protocol):
    """A reader of a stream's blocks, in order."""

    def next_batch(self, max_wait_s: float = 0.0) -> Block | None:
        """The next block; None if there is none yet."""

    def at_end(self) -> bool:
        """True when nothing follows for now."""

    def seek(self, position: BlockPosition) -> None:
        """Continue from `position` instead."""

    def close(self) -> None:
        """Release all resources."""


class BlockShare(NamedTuple):
    """One rank's rows of a block, in order of partition. `counts`, (P,): rows of each partition, 0 for those that
    the rank does not read."""

    block: Block
    rows: pa.Table
    counts: np.ndarray

    @property
    def block_rows(self) -> int:
        """Rows of the block on all ranks."""
        return self.block.last_seq - self.block.first_seq + 1

    def slice(self, start: np.ndarray, stop: np.ndarray) -> pa.Table:
        """Every partition's rows from `start` to `stop`, (P,) each, in order of partition."""
        ahead = np.cumsum(self.counts) - self.counts
        own = np.flatnonzero(self.counts)
        parts = [self.rows.slice(ahead[p] + start[p], stop[p] - start[p]) for p in own]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts) if parts else self.rows.slice(0, 0)

    def step_ends(self, batches: Growth) -> list[int]:
        """End of each step of the block, in rows of all ranks."""
        return batches.ends(self.block.first_seq, self.block_rows)

    def steps(self, batches: Growth) -> Iterator[pa.Table]:
        """The rank's rows of every step of the block, possibly none."""
        for start, stop in pairwise(block_cuts(self.counts, self.step_ends(batches))):
            yield self.slice(start, stop)


class Step(NamedTuple):
    """A rank's part of one step, possibly without rows."""

    share: BlockShare
    step: int
    rows: pa.Table
    batch: Batch


class TeacherFeed:
    """Steps over the partitions `mine`, in order. Up to `ahead` of them are made ready before they are asked for, in a
    thread of their own, which is why there are no collectives here.

    After `ask_for_end`, `at_end` says that the topic held nothing more when there last was no step.
    """

    def __init__(
        self,
        reader: BlockReader,
        lake: LakeReader,
        build: Callable[[pa.Table], Batch],
        *,
        partitions: int,
        mine: range,
        batches: Growth,
        ahead: int = 0,
        watch: Watch = lambda phase: nullcontext(),
    ) -> None:
        """`batches`: the rows of a step over all ranks, by the rows of the lake before it.
        With `ahead` > 0, do not share `reader` and `lake` with another thread. `watch` times the thread that reads,
        in the phases `read`, in it `wait for messages`, and `batch`."""
        self._reader, self._lake, self._build, self._watch = reader, lake, build, watch
        self._partitions, self._mine, self._batches = partitions, mine, batches
        self._missed: Iterator[pa.Table] = iter(())
        self._share: BlockShare | None = None
        self._steps: Iterator[tuple[int, pa.Table]] = iter(())
        self._end_matters = False
        self.at_end = False
        self._bound = ahead
        self._ahead = self._start()

    def _start(self) -> Ahead[Step]:
        return Ahead("batches", self._next, self._bound)

    @property
    def threaded(self) -> bool:
        return self._ahead.threaded

    def peek(self, *, of_block: bool = False) -> Step | None:
        """The step that `take` returns next; None if it has not arrived yet. With `of_block`, which asks for a step
        of the block at hand, it always comes."""
        while (ready := self._ahead.peek(WAIT_S)) is None and of_block:
            pass
        return ready

    def take(self) -> Step | None:
        """The next step; None if it has not arrived yet."""
        return self._ahead.take(WAIT_S)

    def _next(self) -> Step | None:
        following = next(self._steps, None)
        if following is None:
            with self._watch("read"):
                self._share = self._next_share()
            if self._share is None:
                return None
            self._steps = enumerate(self._share.steps(self._batches))
            following = next(self._steps)
        assert self._share is not None
        number, rows = following
        with self._watch("batch"):
            return Step(self._share, number, rows, self._build(rows))

    def ask_for_end(self) -> None:
        self._end_matters = True

    def go_on_from_lake(self, after: int, upto: int, behind: BlockPosition) -> None:
        """Discard the rows read beyond `after`; read up to `upto` from the lake, then the topic from `behind`."""
        log.info("the examples topic no longer has lake_seq %d to %d: they come from the lake", after + 1, upto)
        self._ahead.close()
        self._lake.refresh()
        self._missed = self._lake.blocks(after, upto)
        self._steps, self.at_end = iter(()), False
        self._reader.seek(behind)
        self._ahead = self._start()

    def close(self) -> None:
        self._ahead.close()
        self._reader.close()

    # --- one share -------------------------------------------------------------------------------------------------

    def _next_share(self) -> BlockShare | None:
        rows = next(self._missed, None)
        if rows is not None:
            seq = rows["lake_seq"]
            block = Block(rows["block"][0].as_py(), seq[0].as_py(), seq[-1].as_py(), rows, {})
        else:
            with self._watch("wait for messages"):
                found = self._reader.next_batch(0.05)
            if found is None:
                self.at_end = self._end_matters and self._reader.at_end()
                return None
            block = found
        return share_of(block, self._partitions, self._mine)


def share_of(block: Block, partitions: int, mine: range) -> BlockShare:
    """The part of a block that a rank with the partitions `mine` learns. A block from the lake holds all rows, one from
    the topic the rank's own."""
    if partitions == 1:
        return BlockShare(block, block.rows, np.array([block.rows.num_rows]))
    owner = partition_of(block.rows["impression_id"].combine_chunks(), partitions)
    order = np.argsort(owner, kind="stable")
    order = order[np.isin(owner[order], mine)]
    counts = np.bincount(owner[order], minlength=partitions)
    return BlockShare(block, block.rows.take(pa.array(order)).combine_chunks(), counts)
