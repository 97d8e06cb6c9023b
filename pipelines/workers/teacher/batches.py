"""A rank's batches: its partitions' rows of every block, from the examples topic or from the lake, cut into steps.

A block of R rows is learned in S = ⌈R / batch_rows⌉ steps. Every partition's n rows of it are cut at

    ⌊n · min(R, s · batch_rows) / R⌋        s = 0 … S

and step s learns the s-th slices of all partitions, in order of partition. So what a step learns depends on the block
alone, and not on how many ranks share out the partitions; with one partition its steps are batch_rows rows each, and
the rest.

A block is what one commit of the lake holds, and says itself which rows it covers. It is the range that all ranks agree
on, in either pace, whether it comes from the topic, again after a crash, or from the lake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.data import Batch
from pipelines.training import Ahead, Watch
from streaming.delivery import Block, BlockPosition, ExamplesReader, partition_of
from streaming.lake import LakeReader
from streaming.position import Positions

WAIT_S = 0.05

log = logging.getLogger(__name__)


def cuts(counts: np.ndarray, batch_rows: int, block_rows: int) -> np.ndarray:
    """Where every partition's rows of a block are cut, (P,) -> (S + 1, P).

    >>> cuts(np.array([5, 0, 2]), batch_rows=3, block_rows=7).tolist()
    [[0, 0, 0], [2, 0, 0], [4, 0, 1], [5, 0, 2]]
    >>> cuts(np.array([7]), batch_rows=3, block_rows=7)[:, 0].tolist()
    [0, 3, 6, 7]
    """
    ends = np.minimum(block_rows, np.arange(-(-block_rows // batch_rows) + 1) * batch_rows)
    return np.asarray(np.outer(ends, counts) // block_rows)


class Portion(NamedTuple):
    """A rank's part of a block: its rows in order of partition, and how many each partition has, (P,), 0 for those that
    it does not read."""

    block: Block
    rows: pa.Table
    counts: np.ndarray

    @property
    def block_rows(self) -> int:
        """Of all ranks."""
        return self.block.last_seq - self.block.first_seq + 1


class Prepared(NamedTuple):
    """What a rank brings to one step, which may be nothing."""

    portion: Portion
    step: int
    rows: pa.Table
    batch: Batch


class Agreed(NamedTuple):
    """A block that every rank has its part of. `cuts`: of all partitions' rows, (S + 1, P); `positions`: of all."""

    portion: Portion
    cuts: np.ndarray
    positions: Positions

    def rows_of(self, step: int) -> int:
        """Of all ranks."""
        return int((self.cuts[step + 1] - self.cuts[step]).sum())


class Batches:
    """Portions and batches of the partitions `mine`, in order; up to `ahead` of them are made ready before they are
    asked for, in a thread of their own, which is why there are no collectives here.

    `read` gives the next batch, of the block at hand, of which there always is one, or of the next one; None where that
    is not here yet.
    After `ask_for_end`, `at_end` says that the topic held nothing more when there was no next batch last.
    """

    def __init__(
        self,
        reader: ExamplesReader,
        lake: LakeReader,
        build: Callable[[pa.Table], Batch],
        *,
        partitions: int,
        mine: range,
        batch_rows: int,
        ahead: int = 0,
        watch: Watch = lambda phase: nullcontext(),
    ) -> None:
        """Of reader and lake nobody else may make use, if `ahead` is not 0; `watch` is for who reads."""
        self._reader, self._lake, self._build, self._watch = reader, lake, build, watch
        self._partitions, self._mine, self._batch_rows = partitions, mine, batch_rows
        self._missed: Iterator[pa.Table] = iter(())
        self._portion: Portion | None = None
        self._next_step = 0
        self._end_matters = False
        self.at_end = False
        self._bound = ahead
        self._ahead = self._start()

    def _start(self) -> Ahead[Prepared]:
        return Ahead("batches", self._next, self._bound)

    @property
    def threaded(self) -> bool:
        return self._ahead.threaded

    def read(self, *, of_block: bool = False) -> Prepared | None:
        while (ready := self._ahead.take(WAIT_S)) is None and of_block:
            pass
        return ready

    def _next(self) -> Prepared | None:
        if self._portion is None:
            with self._watch("read"):
                self._portion, self._next_step = self._next_portion(), 0
        if self._portion is None:
            return None
        portion, step = self._portion, self._next_step
        at = cuts(portion.counts, self._batch_rows, portion.block_rows)
        rows = self._slice(portion, at[step], at[step + 1])
        self._next_step += 1
        if self._next_step == len(at) - 1:
            self._portion = None
        with self._watch("batch"):
            return Prepared(portion, step, rows, self._build(rows))

    def ask_for_end(self) -> None:
        self._end_matters = True

    def go_on_from_lake(self, after: int, upto: int, behind: BlockPosition) -> None:
        """Forget what was read beyond `after`; take the rows up to `upto` from the lake, and then the topic's again,
        from `behind`."""
        log.info("the examples topic has no longer lake_seq %d to %d: they come from the lake", after + 1, upto)
        self._ahead.close()
        self._lake.refresh()
        self._missed = self._lake.blocks(after, upto)
        self._portion, self.at_end = None, False
        self._reader.seek(behind)
        self._ahead = self._start()

    def close(self) -> None:
        self._ahead.close()
        self._reader.close()

    # --- one portion -------------------------------------------------------------------------------------------------

    def _next_portion(self) -> Portion | None:
        rows = next(self._missed, None)
        if rows is not None:
            seq = rows["lake_seq"]
            block = Block(rows["block"][0].as_py(), seq[0].as_py(), seq[-1].as_py(), rows, {})
        else:
            found = self._reader.next_batch(0.05)
            if found is None:
                self.at_end = self._end_matters and self._reader.at_end()
                return None
            block = found
        return portion_of(block, self._partitions, self._mine)

    def _slice(self, portion: Portion, start: np.ndarray, stop: np.ndarray) -> pa.Table:
        ahead = np.cumsum(portion.counts) - portion.counts
        parts = [portion.rows.slice(ahead[p] + start[p], stop[p] - start[p]) for p in self._mine]
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)


def portion_of(block: Block, partitions: int, mine: range) -> Portion:
    """What a rank learns of a block: of one from the lake all rows are here, of one from the topic its own."""
    if partitions == 1:
        return Portion(block, block.rows, np.array([block.rows.num_rows]))
    owner = partition_of(block.rows["impression_id"].combine_chunks(), partitions)
    order = np.argsort(owner, kind="stable")
    order = order[np.isin(owner[order], mine)]
    counts = np.bincount(owner[order], minlength=partitions)
    return Portion(block, block.rows.take(pa.array(order)).combine_chunks(), counts)
