"""Emission of due impressions: their order and their final form.

A row leaves for a group if a label of the group is known; otherwise it is counted as not applicable.

An impression admitted at key time k is due for settlement group g once the watermark passes d_g = k + window_g +
lateness. Per group a cursor runs over the admitted rows, whose key times ascend; what lies behind it was emitted, in
the order (d_g, g, admission) over all groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streaming.messages.limits import row_sizes
from streaming.schema import FEEDBACK_TIME, MERGE_TIME, RowSchema
from streaming.settlement.label_join import LabelJoin, Labels
from streaming.settlement.pending import RowLog, empty_batch

FIELD_BYTES = 8
"""What a field of a row counts, beyond its text or list."""

LOOKED_AT = 1024
"""Rows that are due and looked at for a bounded number that leave, beyond twice that number."""


def settled_bytes(rows: pa.RecordBatch, schema: RowSchema) -> np.ndarray:
    """Bytes of each row as received, (N,) int64, independent of the in-memory layout."""
    received = rows.select(schema.impression.names)
    sizes: np.ndarray = row_sizes(received) + FIELD_BYTES * received.num_columns
    return sizes


class DueRows(NamedTuple):
    """Rows that are due, in the order in which they leave: deadlines and sizes (`settled_bytes`), both (N,) int64."""

    deadlines: np.ndarray
    sizes: np.ndarray


class Emission:
    """Cursors over the admitted rows, one per settlement group, with counts of the rows behind them.

    >>> from streaming.settlement.pending import empty_batch
    >>> from streaming.schema import POSITION_FIELDS
    >>> schema = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}])
    >>> log, labels = RowLog(pa.schema([*schema.impression, *POSITION_FIELDS])), LabelJoin(schema, lateness_ms=0)
    >>> row = dict(impression_id=7, event_time_ms=500, vertical="a", source_topic="ads", source_partition=0,
    ...            source_offset=0, source_row=0)
    >>> log.append(pa.RecordBatch.from_pylist([row], log.schema), np.array([500]), np.array([7], np.uint64))
    >>> labels.append(event_time=np.array([500]))
    >>> emission = Emission(schema, lateness_ms=0)
    >>> [emission.emit(log, labels, watermark_ms)[0].num_rows for watermark_ms in (1500, 1501)]
    [0, 1]
    """

    def __init__(self, schema: RowSchema, lateness_ms: int) -> None:
        self._schema, self._lateness = schema, lateness_ms
        self._groups = schema.groups
        self.cursors = [0] * len(self._groups)
        self.settled = [0] * len(self._groups)
        self.not_applicable = [0] * len(self._groups)
        self.unknown = {task.name: 0 for task in schema.tasks}
        self.unmet = {task: [0, 0] for task in schema.given}

    @property
    def by_task(self) -> dict[str, Any]:
        """Counts by task; `unknown_labels`: impressions to which the task applied but with an unknown label.
        `unmet_conditions`, of conditional tasks: of how many impressions feedback came and their condition did not, and
        of how many it came.
        """
        unmet = {task: list(both) for task, both in self.unmet.items()}
        return {"unknown_labels": dict(self.unknown), "unmet_conditions": unmet}

    def restore(
        self, cursors: Sequence[int], settled: Sequence[int], not_applicable: Sequence[int], by_task: Mapping[str, Any]
    ) -> None:
        """Continue with these counts; `by_task`: those of the property of that name."""
        self.cursors, self.settled, self.not_applicable = list(cursors), list(settled), list(not_applicable)
        self.unknown |= by_task["unknown_labels"]
        self.unmet |= {task: list(both) for task, both in by_task["unmet_conditions"].items()}

    def emit(
        self,
        pending: RowLog,
        labels: LabelJoin,
        watermark_ms: int,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> tuple[pa.RecordBatch, bool]:
        """The next due rows (`RowSchema.settled`), at most `max_rows` and ending with the row that reaches
        `max_bytes` (`settled_bytes`); and whether more are due. Where many leave for no group, fewer than `max_rows`
        may come though more are due."""
        starts = self.cursors
        stops = due = self._due(pending, watermark_ms)
        if max_rows is not None and sum(due) - sum(starts) > max_rows:
            stops = self._within_rows(pending, labels, starts, due, max_rows)
        if max_bytes is not None:
            stops = self._within_bytes(pending, labels, starts, stops, max_bytes)
        batch = self._settle(pending, labels, starts, stops)
        self.cursors = stops
        return batch, stops != due

    def due(self, pending: RowLog, labels: LabelJoin, watermark_ms: int, max_rows: int) -> DueRows:
        """The next rows that leave, at most `max_rows`, which stay."""
        in_order, leaves, stops = self._next_due(pending, labels, watermark_ms, max_rows)
        first, spans = in_order[leaves][:max_rows], zip(self.cursors, stops, strict=True)
        numbers = np.concatenate([np.arange(start, stop) for start, stop in spans])[first]
        deadlines = self._deadlines(pending, self.cursors, stops)[first]
        return DueRows(deadlines, settled_bytes(pending.take(numbers), self._schema))

    def release(self, pending: RowLog, labels: LabelJoin, watermark_ms: int, rows: int) -> pa.RecordBatch:
        """The next `rows` rows, which are due (`due`); what leaves for no group before the one after them is passed."""
        starts = self.cursors
        in_order, leaves, stops = self._next_due(pending, labels, watermark_ms, rows)
        passed = int(np.searchsorted(np.cumsum(leaves), rows, side="right"))
        self.cursors = self._behind(in_order[:passed], starts, stops)
        return self._settle(pending, labels, starts, self.cursors)

    def _next_due(
        self, pending: RowLog, labels: LabelJoin, watermark_ms: int, rows: int
    ) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """The next due rows in order, until more than `rows` leave or there are no more: their places among those of
        [cursor, stop) of every group, which of them leave, and the stops."""
        starts, due = self.cursors, self._due(pending, watermark_ms)
        most = 2 * rows + LOOKED_AT
        while True:
            stops = [min(start + most, stop) for start, stop in zip(starts, due, strict=True)]
            in_order = np.argsort(self._deadlines(pending, starts, stops), kind="stable")[:most]
            leaves = self._leaves(labels, starts, stops)[in_order]
            if leaves.sum() > rows or len(in_order) == sum(due) - sum(starts):
                return in_order, leaves, stops
            most *= 2

    def count_due(self, pending: RowLog, watermark_ms: int) -> int:
        """Number of rows that are due, those included that leave for no group."""
        return sum(self._due(pending, watermark_ms)) - sum(self.cursors)

    def _due(self, pending: RowLog, watermark_ms: int) -> list[int]:
        return [
            max(start, pending.key_time.search(watermark_ms - group.window_ms - self._lateness))
            for start, group in zip(self.cursors, self._groups, strict=True)
        ]

    def _within_rows(
        self, pending: RowLog, labels: LabelJoin, starts: list[int], due: list[int], max_rows: int
    ) -> list[int]:
        """Stop index such that the rows which leave end with the `max_rows`-th."""
        most = 2 * max_rows + LOOKED_AT
        stops = [min(start + most, stop) for start, stop in zip(starts, due, strict=True)]
        in_order = np.argsort(self._deadlines(pending, starts, stops), kind="stable")[:most]
        left = np.cumsum(self._leaves(labels, starts, stops)[in_order])
        return self._behind(in_order[: int(np.searchsorted(left, max_rows)) + 1], starts, stops)

    def _leaves(self, labels: LabelJoin, starts: list[int], stops: list[int]) -> np.ndarray:
        """Mask of the rows that leave, of [start, stop) of every group, group after group."""
        spans = zip(self._groups, starts, stops, strict=True)
        found = [labels.labels(*span).values() for span in spans]
        return np.concatenate([np.any([each.known for each in labels_of], axis=0) for labels_of in found])

    def _behind(self, first: np.ndarray, starts: list[int], stops: list[int]) -> list[int]:
        """Cursors behind the rows `first`, places among those of [start, stop) of every group."""
        group_of = np.repeat(np.arange(len(starts)), np.subtract(stops, starts))[first]
        return [start + int((group_of == g).sum()) for g, start in enumerate(starts)]

    def _within_bytes(
        self, pending: RowLog, labels: LabelJoin, starts: list[int], stops: list[int], max_bytes: int
    ) -> list[int]:
        """Stop index such that the rows which leave end with the one that reaches `max_bytes`. What leaves for no group
        weighs nothing: the cut depends on the rows before it alone."""
        spans = list(zip(starts, stops, strict=True))
        parts = [part for start, stop in spans for part in pending.slices(start, stop)]
        # No row counts more than this: a value of a list counts 8 bytes, and has 4 or 8 in memory.
        if sum(2 * part.nbytes + FIELD_BYTES * part.num_columns * part.num_rows for part in parts) < max_bytes:
            return stops
        sizes = np.concatenate([settled_bytes(part, self._schema) for part in parts])
        leaves = self._leaves(labels, starts, stops)
        in_order = np.argsort(self._deadlines(pending, starts, stops), kind="stable")
        reached = int(np.searchsorted(np.cumsum(np.where(leaves, sizes, 0)[in_order]), max_bytes))
        return self._behind(in_order[: reached + 1], starts, stops)

    def uncount(self, group: int, labels: Mapping[str, Labels], rows: np.ndarray) -> None:
        """Take back that `rows`, (N,) bool, of N with these labels were passed for a group."""
        self._count(group, labels, rows, -1)

    def _count(self, group: int, labels: Mapping[str, Labels], rows: np.ndarray, sign: int) -> np.ndarray:
        """Count `rows`, (N,) bool, of N with these labels as passed for a group; returns which of the N leave."""
        for name, (applicable, positive, known, unmet, _) in labels.items():
            if name in self.unmet:
                self.unmet[name][0] += sign * int(unmet[rows].sum())
                self.unmet[name][1] += sign * int((unmet | positive)[rows].sum())
            self.unknown[name] += sign * int((applicable & ~known)[rows].sum())
        leaves: np.ndarray = np.any([each.known for each in labels.values()], axis=0)
        left = int(leaves[rows].sum())
        self.settled[group] += sign * left
        self.not_applicable[group] += sign * (int(rows.sum()) - left)
        return leaves

    def _deadlines(self, pending: RowLog, starts: list[int], stops: list[int]) -> np.ndarray:
        """Deadlines of [start, stop) of every group, group after group."""
        return np.concatenate(
            [
                pending.key_time.view(start, stop) + (group.window_ms + self._lateness)
                for start, stop, group in zip(starts, stops, self._groups, strict=True)
            ]
        )

    def _settle(self, pending: RowLog, labels: LabelJoin, starts: list[int], stops: list[int]) -> pa.RecordBatch:
        counts = [stop - start for start, stop in zip(starts, stops, strict=True)]
        total = sum(counts)
        emitted = np.ones(total, bool)
        label = {task.name: np.zeros(total, np.int8) for task in self._schema.tasks}
        time = {task.name: np.zeros(total, np.int64) for task in self._schema.tasks}
        unset = {task.name: np.ones(total, bool) for task in self._schema.tasks}
        at = 0
        for g, (group, start, stop) in enumerate(zip(self._groups, starts, stops, strict=True)):
            here = slice(at, at + counts[g])
            at += counts[g]
            found = labels.labels(group, start, stop)
            for name, (_, positive, known, _, came) in found.items():
                label[name][here], unset[name][here], time[name][here] = positive, ~known, came
            emitted[here] = self._count(g, found, np.ones(counts[g], bool), 1)

        parts = [part for start, stop in zip(starts, stops, strict=True) for part in pending.slices(start, stop)]
        rows = pa.concat_batches([empty_batch(pending.schema), *parts])
        group_of = np.repeat(np.arange(len(counts), dtype=np.int8), counts)
        spans = zip(starts, stops, strict=True)
        merge_time = np.concatenate([pending.key_time.view(start, stop) for start, stop in spans])
        if len(self._groups) > 1 or not emitted.all():
            kept = np.flatnonzero(emitted)
            kept = kept[np.argsort(self._deadlines(pending, starts, stops)[kept], kind="stable")]
            rows, group_of, merge_time = rows.take(pa.array(kept)), group_of[kept], merge_time[kept]
            label = {name: values[kept] for name, values in label.items()}
            unset = {name: values[kept] for name, values in unset.items()}
            time = {name: values[kept] for name, values in time.items()}
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        names = pa.array([group.name for group in self._groups])
        columns["settlement"] = names.take(pa.array(group_of))
        for name in label:
            columns[f"label_{name}"] = pa.array(label[name], mask=unset[name])
            columns[f"{FEEDBACK_TIME}{name}"] = pa.array(time[name], mask=unset[name] | (label[name] == 0))
        columns[MERGE_TIME] = pa.array(merge_time)
        settled = self._schema.settled
        return pa.RecordBatch.from_arrays([columns[name] for name in settled.names], schema=settled)
