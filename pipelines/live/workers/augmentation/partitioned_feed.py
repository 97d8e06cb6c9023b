"""Feed of a partitioned stream (`settlement.by: partition`): one cycle after the other, in all ranks at once.

read ─► front ─► the cut: what all partitions have reached ─► pop ─► absorb ─► is a block due? ─► take
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pipelines.live.workers.augmentation.feed import FeedStatus
from pipelines.live.workers.augmentation.shards import (
    RankAnswer,
    ShardGroup,
    due_rows,
    fronts,
    new_verticals,
    rows_of,
)
from streaming.intake.merge import END_OF_TIME, NO_TIME
from streaming.schema import RowSchema
from streaming.settlement.admission import Verticals
from streaming.settlement.pending import empty_batch
from streaming.settlement.settlement import SettledRows
from streaming.settlement.shard import added, admitted, merged_position, next_block

WAIT_S = 0.05
"""How long a read waits for messages after one that brought none."""


class PartitionedFeed:
    """Blocks of settled rows, of all ranks' partitions; a `Feed`.

    `wait_s`: once rows have been due for so long, they are a block, however few they are; None: all blocks but the last
    are full.
    """

    def __init__(
        self,
        group: ShardGroup,
        schema: RowSchema,
        horizon_ms: int,
        verticals: Verticals,
        *,
        epoch: int,
        row_bytes: int,
        wait_s: float | None,
        rows_read: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows_read = rows_read
        self._group, self._schema, self._verticals = group, schema, verticals
        self._horizon_ms, self._wait_s, self._clock = horizon_ms, wait_s, clock
        self._cut = NO_TIME
        self._due = 0  # rows, those included that leave for no group
        self._due_since: float | None = None
        self._at_end = False
        self._read_something = True
        self._status: FeedStatus | None = None
        group.ask("open", epoch, row_bytes)

    @property
    def ended(self) -> bool:
        return self._group.local.shard.watermark_ms == END_OF_TIME

    def open(self, position: dict[str, Any] | None, clock_ms: int | None) -> None:
        self._group.ask("begin", position, clock_ms)
        self.status()

    def load(self, state: int) -> None:
        self._group.ask("load", state)
        self._status = None
        self._verticals.restore(self._group.local.shard.verticals.known)

    def save(self, state: int, keep: int) -> None:
        self._group.ask("save", state, keep)

    def position(self) -> dict[str, Any]:
        return merged_position([answer.value for answer in self._group.ask("position")])

    def declare(self, verticals: Collection[str]) -> None:
        self._verticals.declare(verticals)

    @property
    def finished(self) -> bool:
        return self._at_end and not self._due

    @property
    def at_end(self) -> bool:
        return self._at_end

    def next(self, max_rows: int, max_bytes: int) -> SettledRows | None:
        self._status = None
        absorbed = None if self._at_end else self._absorbed()
        block = self._block(max_rows, max_bytes)
        parts = [part for part in (absorbed, block) if part is not None]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else _together(*parts)

    def _absorbed(self) -> SettledRows | None:
        """Read, and take in the rows before the next cut; None where nothing came and event time stands."""
        came = any([answer.value for answer in self._group.ask("read", 0.0 if self._read_something else WAIT_S)])
        self._read_something = came
        answers = self._group.ask("front", came)
        front = fronts(answers)
        cut = min(front.bound, front.newest + 1)
        if self._schema.asof.features:  # no id recurs beyond the horizon before the cut
            cut = min(cut, max(self._cut, front.oldest) + self._horizon_ms)
        if came or cut > self._cut:
            new = new_verticals(self._group.ask("pop", cut, front.bound, self._verticals.known))
            self._verticals.declare(names := admitted(self._verticals, new))
            self._cut = max(self._cut, cut)
            joined = self._group.ask("join", names)
            weights: list[pa.RecordBatch] = []
            if self._schema.asof.features:
                events = [batch for answer in joined for batch in answer.rows]
                shown = [answer.value for answer in joined]
                weights = [answer.rows[0] for answer in self._group.ask("rates", cut, shown, rows=events)]
            taken_in = self._group.ask("absorb", rows=weights)
            self.rows_read += sum(answer.value["rows"] for answer in taken_in)
        elif all(answer.value["finished"] for answer in answers):
            self._at_end, taken_in = True, self._group.ask("end")
        else:
            return None
        self._now_due(taken_in)
        nothing = empty_batch(self._schema.settled)
        return SettledRows(nothing, rows_of(taken_in, 0), rows_of(taken_in, 1), cut, self._due > 0)

    def _now_due(self, answers: Sequence[RankAnswer]) -> None:
        self._due = sum(answer.value["due"] for answer in answers)
        if not self._due:
            self._due_since = None
        elif self._due_since is None:
            self._due_since = self._clock()

    def _block(self, max_rows: int, max_bytes: int) -> SettledRows | None:
        """The next block, if one is due."""
        waited = self._due_since is not None and self._wait_s is not None
        waited = waited and self._clock() - (self._due_since or 0.0) >= (self._wait_s or 0.0)
        if not self._due or not (self._at_end or waited or self._due >= max_rows or self._large(max_bytes)):
            return None
        counts, full = next_block(due_rows(self._group.ask("due", max_rows)), max_rows, max_bytes)
        if not (full or self._at_end or waited):
            return None
        answers = self._group.ask("take", counts)
        self._due_since = None
        self._now_due(answers)
        rows, late, dead = (rows_of(answers, place) for place in range(3))
        return SettledRows(rows, late, dead, self._cut, self._due > 0, whole=rows.num_rows > 0)

    def _large(self, max_bytes: int) -> bool:
        """True if so many bytes may wait that they are a block, however few rows they are."""
        return self._group.local.shard.bytes_held[0] * self._group.ranks >= max_bytes // 2

    # --- reports ---------------------------------------------------------------------------------------------------

    def show_lag(self) -> None:
        self._group.ask("show_lag")

    def await_all(self) -> None:
        self._group.ask("await_all")

    @property
    def known_lag_rows(self) -> int:
        return sum(answer.value for answer in self._group.ask("lag"))

    def status(self) -> FeedStatus:
        if self._status is None:
            each = [FeedStatus(**answer.value) for answer in self._group.ask("status")]
            lags = [one.lag_rows for one in each]
            self._status = FeedStatus(
                counters=added(*(one.counters for one in each)),
                offsets=added(*(one.offsets for one in each)),
                examples=_joined([one.examples for one in each]),
                bytes=(sum(one.bytes[0] for one in each), sum(one.bytes[1] for one in each)),
                first_wait_s=max((one.first_wait_s for one in each), key=lambda wait: wait[1]),
                watermark_ms=max(one.watermark_ms for one in each),
                lag_rows=None if None in lags else sum(lag or 0 for lag in lags),
                warnings=_joined([one.warnings for one in each]),
                note=next((one.note for one in each if one.note), None),
                held=next((one.held for one in each if one.held), None),
            )
        return self._status

    def close(self) -> None:
        self._group.local.close()


def _joined(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Dictionaries as one, those inside them too; of one name, the first value stays."""
    whole: dict[str, Any] = {}
    for one in each:
        for name, value in one.items():
            both = isinstance(value, dict) and name in whole
            whole[name] = _joined([whole[name], value]) if both else whole.get(name, value)
    return whole


def _together(absorbed: SettledRows, block: SettledRows) -> SettledRows:
    return replace(
        block,
        late=pa.concat_batches([absorbed.late, block.late]),
        dead=pa.concat_batches([absorbed.dead, block.dead]),
    )
