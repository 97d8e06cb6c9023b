"""The teacher's next block: how its ranks agree on it, how far it is learned, and what all of them made of it.

Each rank offers what it has of the next block. From all offers, every rank concludes the same:

    all have a part of the block that follows        learn it
    all have a block, some only a later one          take what lies between from the lake
    the stream has ended, and the topic holds no more   take the rest from the lake
    otherwise                                        wait

A rank sees its own rows only. At a block's end the results of all ranks are put together, step by step and in order of
partition, which is the order of a batch learned by a single rank: counts, metrics and checkpoints do not depend on the
number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.models.engine import TEACHER, PreparedBatch
from exfm.step import REASONS, StepResult
from pipelines.live.feeds.teacher import BlockShare, Step
from pipelines.live.training.account import Account
from pipelines.live.training.freshness import LearnedSpans
from pipelines.live.training.learned import LearnedCounts
from pipelines.live.training.live_metrics import TaskMetrics
from pipelines.live.training.quarantine import Quarantine, QuarantinedRows, places_of
from pipelines.live.workers.ranks import Ranks
from streaming.delivery.reader import check_whole
from streaming.errors import StreamingError
from streaming.lake.erasure.holes import Holes
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition


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
    def of(share: BlockShare, positions: Mapping[Partition, SourcePosition], at_end: bool) -> BlockOffer:
        """The offer of a rank that has this share; `positions` are its own."""
        offsets = np.zeros_like(share.counts)
        for partition, at in positions.items():
            offsets[partition.partition] = at.offset
        block = share.block
        return BlockOffer(block.number, block.first_seq, block.last_seq, at_end, share.counts, offsets)

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
    offers: Sequence[BlockOffer], learned_seq: int, learned_block: int, end_seq: int | None, holes: Holes
) -> Learn | TakeFromLake | None:
    """Decide on the joint next action from all offers and the last learned row and block; None to wait. `end_seq`: the
    last row of the stream, once it is known; `holes`: rows that the lake has no more.

    Raises StreamingError where a rank offers rows that were learned, or the ranks together lack rows of the block.
    """
    if all(offer.has_block for offer in offers):
        latest = max(offers, key=lambda offer: offer.first_seq)
        if not holes.cover(learned_seq + 1, latest.first_seq - 1):
            return TakeFromLake(latest.first_seq - 1, latest.number - 1)
        earliest = min(offer.first_seq for offer in offers)
        if earliest <= learned_seq:
            raise StreamingError(f"a rank has lake_seq {earliest} at hand, {learned_seq + 1} comes next")
        counts = np.sum([offer.counts for offer in offers], axis=0)
        check_whole(latest.number, latest.first_seq, latest.last_seq, int(counts.sum()), holes)
        return Learn(counts, np.sum([offer.offsets for offer in offers], axis=0))
    if end_seq is not None and all(offer.has_block or offer.at_end for offer in offers):
        return TakeFromLake(end_seq, learned_block)  # everything was published, and is no longer on the topic
    return None


@dataclass
class AgreedBlock:
    """A block of which every rank has its part. `cuts`, (S + 1, P): of all partitions' rows; `positions`: of all.
    `next_step` is the step that comes next; `sent`: its batch, where its ids are on their way."""

    share: BlockShare
    cuts: np.ndarray
    positions: Positions
    next_step: int = 0
    sent: PreparedBatch | None = None

    @property
    def steps(self) -> int:
        return len(self.cuts) - 1

    @property
    def done(self) -> bool:
        return self.next_step == self.steps

    def rows_of(self, step: int) -> int:
        """Rows of a step on all ranks."""
        return int((self.cuts[step + 1] - self.cuts[step]).sum())

    def place_of(self, mine: range, step: int) -> int:
        """Start of the rows of the partitions `mine` among all rows of a step."""
        start, stop = self.cuts[step : step + 2, : mine.start].sum(1).tolist()
        return int(stop - start)


class _Noted(NamedTuple):
    """A step. This rank's rows are `place` to `place + len(values)` of the `rows` that all ranks had."""

    place: int
    rows: int
    values: np.ndarray  # (own, 4, T) float32: logits, labels, whether a label is known, its weight


class BlockTally:
    """Totals of a block; `figures`: live figures of all ranks' rows. `trained_rows`: of all ranks; `own_rows`: read
    by this one. `event_time_ms`: of the last row that this rank read. `spans`: when rows were learned."""

    def __init__(self, tasks: Sequence[str], ranks: Ranks, learned_upto_ms: int | None = None) -> None:
        """`learned_upto_ms`: rows that were shown up to then are not in the figures: the teacher may have known them
        when it began."""
        self._learned_upto_ms = learned_upto_ms
        self._tasks, self._ranks = tuple(tasks), ranks
        self._steps: list[_Noted] = []
        self._learned = LearnedCounts(tasks)
        self.figures = TaskMetrics(tasks, TEACHER)
        self.trained_rows = self.own_rows = 0
        self.event_time_ms: int | None = None
        self.spans = LearnedSpans()

    def note(self, step: Step, result: StepResult, account: Account, *, place: int, rows: int) -> None:
        """Record a step of this rank, whose rows begin at `place` of all ranks' `rows`; accounted at once. A
        collective where rows were left out. Raises Diverged as `Quarantine.leave_out` does."""
        batch = step.batch
        judged = batch.label_mask.numpy()
        if self._learned_upto_ms is not None:
            judged = judged & (step.rows["event_time_ms"].to_numpy()[:, None] > self._learned_upto_ms)
        columns = [result.logits, batch.labels.numpy(), judged, batch.label_weights.numpy()]
        self._steps.append(_Noted(place, rows, np.stack(columns, axis=1, dtype=np.float32)))
        account.rows += rows
        self.spans.note(rows)
        self.own_rows += step.rows.num_rows
        if step.rows.num_rows:
            self.event_time_ms = step.rows["event_time_ms"][-1].as_py()
        quarantine = account.quarantines[TEACHER]
        if result.finite:
            kept = step.rows if result.left_out is None else step.rows.filter(pa.array(result.left_out == 0))
            self._learned.add(kept)
            self.trained_rows += rows - result.left_out_rows
        if result.finite and not result.left_out_rows:
            quarantine.well()
        else:
            self._leave_out(quarantine, step, result, of=rows)

    def latest_event_time_ms(self) -> int | None:
        """Latest event time at which a rank's reading stands; None before the first row. A collective."""
        latest = int(self._ranks.all_gather([-1 if self.event_time_ms is None else self.event_time_ms]).max())
        return None if latest < 0 else latest

    def _leave_out(self, quarantine: Quarantine, step: Step, result: StepResult, *, of: int) -> None:
        """Put into quarantine what all ranks left out of a step: single rows, or all of it."""
        lost = LearnedCounts(self._tasks)
        if not result.finite:
            lost.add(step.rows)
        elif result.left_out is not None:
            lost.add(step.rows.filter(pa.array(result.left_out != 0)))
        mine = places_of(step.rows, result, result.left_out)
        coded = [[place.first_lake_seq, place.last_lake_seq, place.rows, REASONS.index(place.reason)] for place in mine]
        counts = self._ranks.all_gather([len(coded)])[:, 0]
        padded = np.zeros((int(counts.max()), 4), np.int64)
        padded[: len(coded)] = np.array(coded, np.int64).reshape(-1, 4)
        gathered = self._ranks.all_gather(padded.ravel().tolist()).reshape(len(counts), -1, 4)
        every = np.concatenate([of_rank[:count] for of_rank, count in zip(gathered, counts, strict=True)])
        if not result.finite:  # as one
            every = np.array([[every[:, 0].min(), every[:, 1].max(), every[:, 2].sum(), every[:, 3].min()]])
        every = every[np.argsort(every[:, 0], kind="stable")]
        places = [QuarantinedRows(first, last, rows, REASONS[reason]) for first, last, rows, reason in every.tolist()]
        with np.errstate(over="ignore"):
            numbers = self._ranks.sum(lost.numbers())
        quarantine.leave_out(places, numbers, of=of)

    def finish(self, account: Account) -> None:
        """Finish a block: count the steps of all ranks since the last one. A collective."""
        values = np.zeros((sum(step.rows for step in self._steps), 4, len(self._tasks)), np.float32)
        ends = np.cumsum([step.rows for step in self._steps])
        for step, end in zip(self._steps, ends, strict=True):
            start = end - step.rows + step.place
            values[start : start + len(step.values)] = step.values
        values = self._ranks.sum(values)
        for step, end in zip(self._steps, ends, strict=True):
            logits, labels, known, weights = np.moveaxis(values[end - step.rows : end], 1, 0)
            self.figures.count(logits, labels, known != 0, weights)
        account.learned.merge(self._ranks.sum(self._learned.numbers()))
        self._steps, self._learned = [], LearnedCounts(self._tasks)
