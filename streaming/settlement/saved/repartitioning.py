"""States of partitions that settle by themselves, for another number of partitions.

What waits goes to the partition that its id belongs to now. There it lies in the order (key time, partition of before,
number there), and gets a new number, which no impression had before. Counts of all are partition 0's, and so are the
as-of features, whose lists and waiting events get the new numbers.

A partition of before may have passed rows that leave for no group beyond those of others that still wait. They are
passed again, and counted then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streaming.asof.features import AsOfFiles, AsOfState, global_numbers
from streaming.hashing import hash64
from streaming.intake.merge import merged_schema
from streaming.partitioner import Partitioner
from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.emission import Emission
from streaming.settlement.label_join import LabelJoin
from streaming.settlement.marks import Marks
from streaming.settlement.pending import SEGMENT_ROWS, RowLog, RowLogState, empty_value
from streaming.settlement.shard import added
from streaming.settlement.state import SettlementState

_SLIM = ["impression_id", "event_time_ms"]


def repartition(
    states: Sequence[SettlementState],
    schema: RowSchema,
    config: SettlementConfig,
    partitions: int,
    folder_of: Callable[[int], Path],
) -> Iterator[SettlementState]:
    """The states of so many partitions, in their order, from those of all partitions of before, in theirs.

    Each is to be saved, in the folder of its number (`folder_of`), before the next one is asked for: rows that would
    fill the memory are stored there earlier. Raises StreamingError where a state is damaged.
    """
    owner = Partitioner(config.partitioner, partitions)
    admitted = pa.schema([*schema.admitted, *POSITION_FIELDS])
    impressions = _RepartitionedRows("segment", admitted, [state.pending for state in states], owner)
    feedback = _RepartitionedRows(
        "waiting", merged_schema(schema, "feedback"), [state.orphans for state in states], owner
    )
    labels = [_values(marks, impressions) for marks in _label_marks(states, schema, config)]
    claimed = _values([_restored(Marks(np.uint8, s.orphans.first), s.claimed, s.orphans) for s in states], feedback)
    cursors = np.array([state.meta["cursors"] for state in states])
    passed = impressions.number < cursors.T[:, impressions.of]  # by group
    gone = impressions.number < cursors.min(axis=1)[impressions.of]

    total = Emission(schema, config.lateness_ms)
    before = added(*({name: state.meta[name] for name in _COUNTS} for state in states))
    total.restore([0] * len(cursors.T), before["settled"], before["not_applicable"], before)
    new_cursors = []
    for number in range(partitions):
        rows, first = impressions.rows_of(number), impressions.first
        join = LabelJoin(schema, config.lateness_ms, first)
        for marks, values in zip(join.marks, labels, strict=True):
            marks.append(values[rows])
        passes = [_leading(mask[rows]) for mask in passed]
        for place, (group, mask) in enumerate(zip(schema.groups, passed, strict=True)):
            again = join.labels(group, first + passes[place], first + len(rows))
            total.uncount(place, again, mask[rows][passes[place] :])
        new_cursors.append([first + each for each in passes])

    nothing = Emission(schema, config.lateness_ms)
    for number in range(partitions):
        of_all = number == 0
        counts = total if of_all else nothing
        rows, waiting = impressions.rows_of(number), feedback.rows_of(number)
        yield SettlementState(
            pending=impressions.log(rows, gone, folder_of(number)).state(),
            labels=[_marks(values[rows], impressions.first).state() for values in labels],
            orphans=feedback.log(waiting, np.zeros(len(feedback.number), bool), folder_of(number)).state(),
            claimed=_marks(claimed[waiting], feedback.first).state(),
            asof=_renumbered(states[0], schema, impressions) if of_all else None,
            meta={
                **states[0].meta,
                "watermark_ms": max(state.meta["watermark_ms"] for state in states),
                "cursors": new_cursors[number],
                "settled": counts.settled,
                "not_applicable": counts.not_applicable,
                **counts.by_task,
                "counts": before["counts"] if of_all else {},
                "dead_letters": before["dead_letters"] if of_all else {},
                "examples": _joined([state.meta["examples"] for state in states]) if of_all else {},
                "verticals": before["verticals"] if of_all else {},
                "known_verticals": list(dict.fromkeys(v for s in states for v in s.meta["known_verticals"])),
            },
        )


_COUNTS = ("settled", "not_applicable", "unknown_labels", "unmet_conditions", "counts", "dead_letters", "verticals")


class _RepartitionedRows:
    """Rows of a log of every partition, one partition after the other, and the partition that each goes to.

    of, number  (I,) partition of before, and number there
    key_time    (I,) merge key
    first       the first of the new numbers
    """

    def __init__(self, kind: str, schema: pa.Schema, states: Sequence[RowLogState], owner: Partitioner) -> None:
        self._kind, self._schema = kind, schema
        self._logs = [RowLog(schema, state.first, kind=kind) for state in states]
        for log, state in zip(self._logs, states, strict=True):
            log.restore(state)
        spans = [np.arange(log.first, log.stop) for log in self._logs]
        self.of = np.repeat(np.arange(len(spans)), [len(span) for span in spans])
        self.number = np.concatenate(spans)
        self.key_time = np.concatenate([log.key_time.view(log.first, log.stop) for log in self._logs])
        ids = [log.take(span, _SLIM)["impression_id"] for log, span in zip(self._logs, spans, strict=True)]
        self._owner = owner(pa.concat_arrays(ids))
        self._order = np.lexsort((self.number, self.of, self.key_time))
        self.first = max(log.stop for log in self._logs)

    def rows_of(self, partition: int) -> np.ndarray:
        """Rows that are a partition's from now on, in their order."""
        return self._order[self._owner[self._order] == partition]

    def new_places(self) -> tuple[np.ndarray, np.ndarray]:
        """Partition and number of each row from now on, both (I,)."""
        now = np.empty(len(self.number), np.int64)
        for partition in np.unique(self._owner).tolist():
            rows = self.rows_of(partition)
            now[rows] = self.first + np.arange(len(rows))
        return self._owner, now

    def log(self, rows: np.ndarray, gone: np.ndarray, folder: Path) -> RowLog:
        """A log of these rows; of those that are `gone`, ids and times only. What would fill the memory is stored in
        `folder`."""
        log = RowLog(self._schema, self.first, kind=self._kind)
        log.spill = folder
        for at in range(0, len(rows), SEGMENT_ROWS):
            some = rows[at : at + SEGMENT_ROWS]
            batch = self._batch(some, gone[some])
            log.append(batch, self.key_time[some], hash64(batch["impression_id"]))
        return log

    def _batch(self, rows: np.ndarray, gone: np.ndarray) -> pa.RecordBatch:
        parts, places = [], []
        for of, slim in {*zip(self.of[rows].tolist(), gone.tolist(), strict=True)}:
            here = np.flatnonzero((self.of[rows] == of) & (gone == slim))
            batch = self._logs[of].take(self.number[rows[here]], _SLIM if slim else None)
            parts.append(self._whole(batch))
            places.append(here)
        back = np.argsort(np.concatenate(places))
        return pa.concat_batches(parts).take(pa.array(back))

    def _whole(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            rows[field.name] if field.name in rows.schema.names else pa.repeat(empty_value(field), rows.num_rows)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _label_marks(states: Sequence[SettlementState], schema: RowSchema, config: SettlementConfig) -> list[list[Marks]]:
    """Bits of all partitions, then the times of each task."""
    joins = [LabelJoin(schema, config.lateness_ms, state.pending.first) for state in states]
    for join, state in zip(joins, states, strict=True):
        for marks, segments in zip(join.marks, state.labels, strict=True):
            _restored(marks, segments, state.pending)
    return [list(marks) for marks in zip(*(join.marks for join in joins), strict=True)]


def _restored(marks: Marks, segments: Any, log: RowLogState) -> Marks:
    marks.restore(segments, log.head.stop)
    return marks


def _values(each: Sequence[Marks], rows: _RepartitionedRows) -> np.ndarray:
    """The values of all rows, (I,)."""
    values = np.concatenate([marks.view(marks.first, marks.stop) for marks in each])
    assert len(values) == len(rows.number)
    return values


def _marks(values: np.ndarray, first: int) -> Marks:
    marks = Marks(values.dtype, first)
    marks.append(values)
    return marks


def _leading(mask: np.ndarray) -> int:
    """Number of true values before the first that is false.

    >>> _leading(np.array([True, True, False, True])), _leading(np.array([True])), _leading(np.array([], bool))
    (2, 1, 0)
    """
    return len(mask) if mask.all() else int(np.argmin(mask))


def _renumbered(state: SettlementState, schema: RowSchema, impressions: _RepartitionedRows) -> AsOfFiles | None:
    if state.asof is None:
        return None
    tables = AsOfState(schema)
    tables.restore(state.asof)
    now = impressions.new_places()
    tables.renumber(global_numbers(impressions.of, impressions.number), global_numbers(*now))
    return tables.state()


def _joined(examples: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Examples of dead letters by kind and reason, of the first that has one."""
    kinds = dict.fromkeys(kind for each in examples for kind in each)
    return {kind: {r: e for each in reversed(examples) for r, e in each.get(kind, {}).items()} for kind in kinds}
