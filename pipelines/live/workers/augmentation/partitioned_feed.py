"""Feed of a partitioned stream (`settlement.by: partition`): one cycle after the other, in all ranks at once.

read ─► front ─► the cut: what all partitions have reached ─► pop ─► absorb ─► is a block due? ─► take
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.live.workers.augmentation.feed import FeedStatus
from pipelines.live.workers.augmentation.shards import (
    RankAnswer,
    ShardGroup,
    columns_of,
    due_rows,
    fronts,
    new_verticals,
    rows_of,
)
from streaming.asof.forgotten import ForgottenId, RemovedCounts
from streaming.intake.intake import LAG_EVERY_S, AwaitedRows
from streaming.intake.merge import END_OF_TIME, NO_TIME
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.schema import RowSchema
from streaming.settlement.admission import Verticals
from streaming.settlement.label_join import late_schema
from streaming.settlement.pending import empty_batch
from streaming.settlement.settlement import SettledRows
from streaming.settlement.shard import added, admitted, merged_position, next_block, next_cut

WAIT_S = 0.05
"""How long a read waits for messages after one that brought none."""

FEW_ROWS = 256
"""Fewer due rows are not looked at for whether their bytes make a block."""


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
        *,
        epoch: int,
        row_bytes: int,
        wait_s: float | None,
        rows_read: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows_read = rows_read
        self._group, self._schema = group, schema
        self._horizon_ms = horizon_ms if schema.asof.features else None  # no id recurs beyond it before the cut
        self._wait_s, self._clock = wait_s, clock
        self._cut = self._reached = NO_TIME
        self._still_since: float | None = None  # event time stands
        self._due = 0  # rows, those included that leave for no group
        self._due_since: float | None = None
        self._look_at = 0  # fewer due rows are no block
        self._at_end = False
        self._read_something = True
        self._to_forget: list[tuple[ForgottenId, np.ndarray]] = []
        self.removed: dict[ForgottenId, RemovedCounts] = {}
        self._status: FeedStatus | None = None
        self._lag = (-LAG_EVERY_S, 0)
        group.ask("open", epoch, row_bytes)

    @property
    def watermark_ms(self) -> int:
        return self._group.local.shard.watermark_ms

    @property
    def ended(self) -> bool:
        return self.watermark_ms == END_OF_TIME

    def open(self, position: dict[str, Any] | None, clock_ms: int | None) -> None:
        self._group.ask("begin", position, clock_ms)
        self.status()

    def load(self, state: int) -> None:
        self._group.ask("load", state)
        self._status = None

    def save(self, state: int, keep: int) -> None:
        self._group.ask("save", state, keep)

    def position(self) -> dict[str, Any]:
        return merged_position([answer.value for answer in self._group.ask("position")])

    def declare(self, verticals: Collection[str]) -> None:
        self._verticals.declare(verticals)

    @property
    def _verticals(self) -> Verticals:
        return self._group.local.shard.verticals

    @property
    def rows_due(self) -> bool:
        return self._due > 0

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
        wait_s = 0.0 if self._read_something else WAIT_S
        came = self._read_something = any([a.value for a in self._group.ask("read", wait_s, self._reached)])
        answers = self._group.ask("front", came)
        front = fronts(answers)
        self._reached = front.bound
        cut = next_cut(front, self._cut, self._horizon_ms)
        nothing, before = empty_batch(self._schema.settled), list[RankAnswer]()
        if cut is not None:
            self._cut, self._still_since = max(self._cut, cut), None
            while self._to_forget and (at_ms := self._to_forget[0][0].at_ms) < cut:
                before += self._taken_in(at_ms)  # first all rows before it, those of a full buffer too
                self._forget_next()
            taken_in = self._taken_in(cut)
        elif all(answer.value["finished"] for answer in answers):
            self._forget_all()
            self._at_end, taken_in = True, self._group.ask("end")
        else:
            self._still_since = self._clock() if self._still_since is None else self._still_since
            no_late, no_dead = empty_batch(late_schema(self._schema)), empty_batch(DEAD_LETTER_SCHEMA)
            return SettledRows(nothing, no_late, no_dead, self._cut, self._due > 0) if came else None
        self._now_due(taken_in)
        late, dead = (rows_of([*before, *taken_in], place) for place in (0, 1))
        return SettledRows(nothing, late, dead, self._cut, self._due > 0)

    def _taken_in(self, cut: int) -> list[RankAnswer]:
        """Take the rows before `cut`."""
        new = new_verticals(self._group.ask("pop", cut, self._verticals.known))
        joined = self._group.ask("join", admitted(self._verticals, new))
        weights: list[pa.RecordBatch] = []
        if self._schema.asof.features:
            events = [batch for answer in joined for batch in answer.rows]
            shown = [answer.value for answer in joined]
            weights = [answer.rows[0] for answer in self._group.ask("rates", cut, shown, rows=events)]
        answers = self._group.ask("absorb", rows=weights)
        self.rows_read += sum(answer.value["rows"] for answer in answers)
        return answers

    def forget(self, id: ForgottenId, shown: Iterable[pa.RecordBatch] = ()) -> None:
        self._group.ask("expect", id)
        if id.at_ms > self.watermark_ms or id.at_ms == END_OF_TIME:
            self._to_forget.append((id, self._group.local.shard.keys_with(id, shown)))
            self._to_forget.sort(key=lambda each: (each[0].at_ms, each[0].number))
            if self.ended:
                self._forget_all()

    def _forget_all(self) -> None:
        while self._to_forget:
            self._forget_next()

    def _forget_next(self) -> None:
        id, keys = self._to_forget.pop(0)
        found = [answer.rows[0] for answer in self._group.ask("found", id)]
        answers = self._group.ask("forget", id, rows=[columns_of(keys), *found])
        self.removed[id] = RemovedCounts(*answers[0].value)

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
        enough = self._due >= (self._look_at or min(max_rows, FEW_ROWS))
        if not self._due or not (enough or self._at_end or waited):
            return None
        counts, full = next_block(due_rows(self._group.ask("due", max_rows)), max_rows, max_bytes)
        if not (full or self._at_end or waited):
            # Some leave for no group, and some may be large: so they are looked at again when twice as many are due.
            self._look_at = self._due + min(self._due, max_rows - sum(counts.values()))
            return None
        answers = self._group.ask("take", counts)
        self._due_since, self._look_at = None, 0
        self._now_due(answers)
        rows, late, dead = (rows_of(answers, place) for place in range(3))
        return SettledRows(rows, late, dead, self._cut, self._due > 0, whole=rows.num_rows > 0)

    # --- reports ---------------------------------------------------------------------------------------------------

    def show_lag(self) -> None:
        self._group.ask("show_lag")

    def await_all(self) -> None:
        self._group.ask("await_all")

    @property
    def known_lag_rows(self) -> int:
        now = self._clock()
        if now - self._lag[0] >= LAG_EVERY_S:
            self._lag = (now, sum(answer.value for answer in self._group.ask("lag")))
        return self._lag[1]

    def status(self) -> FeedStatus:
        if self._status is None:
            each = [FeedStatus(**answer.value) for answer in self._group.ask("status")]
            lags = [one.lag for one in each]
            self._status = FeedStatus(
                counters=added(*(one.counters for one in each)),
                offsets=added(*(one.offsets for one in each)),
                examples=_joined([one.examples for one in each]),
                bytes=(sum(one.bytes[0] for one in each), sum(one.bytes[1] for one in each)),
                first_wait_s=max((one.first_wait_s for one in each), key=lambda wait: wait[1]),
                watermark_ms=max(one.watermark_ms for one in each),
                lag=None if None in lags else _joined([lag or {} for lag in lags]),
                reached_ms=_joined([one.reached_ms for one in each]),
                warnings=_joined([one.warnings for one in each]),
                note=next((one.note for one in each if one.note), None),
                held=self._held([AwaitedRows(*one.held) for one in each]),
            )
        return self._status

    def _held(self, each: Sequence[AwaitedRows]) -> AwaitedRows:
        """Rows that wait anywhere, and the partitions that event time waits for, whoever reads them."""
        waited_s = 0.0 if self._still_since is None else self._clock() - self._still_since
        names = [name for one in each for name in one.names]
        return AwaitedRows(sum(one.rows for one in each), waited_s, names, each[0].idle_s)

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
