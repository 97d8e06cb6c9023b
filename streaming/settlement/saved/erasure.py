"""Erasure of impressions from a saved settlement state: values go, places stay.

Rows of a state are numbered, and labels, cursors and as-of features go by the numbers. So an impression that is to be
erased keeps its number, times and origin; its id becomes one that nobody has, its columns hold nothing, and its labels
are unknown, so that it leaves for no group and is counted as not applicable. Feedback that waits for it waits for the
id that nobody has, and is refused at the end of its wait. So all counts still add up.

As-of features forget the keys of these rows as if they had never been shown; sums over many people keep what they
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.asof.features import AsOfState
from streaming.hashing import hash64
from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.label_join import LabelJoin
from streaming.settlement.marks import Marks
from streaming.settlement.pending import RowLogState, empty_value
from streaming.settlement.state import SettlementState
from streaming.store.segments import Segments, StoredSegment

KEPT = {"event_time_ms", "vertical", "key_time_ms", "order", "task", *(field.name for field in POSITION_FIELDS)}
"""Columns that rows keep: where and when they came, by which rows are ordered and counted."""

MaskOf = Callable[[pa.Table], np.ndarray]
"""Rows -> mask (N,) bool of those that are to be erased. Stored rows may lack all columns but id and times."""


@dataclass(frozen=True)
class ToErase:
    """Content that a state is to lose.

    impressions, feedback  which rows
    events                 rows -> the same without the person's values in histories of others; itself if none has any
    shown                  rows, of the lake or pending, whose as-of keys are forgotten, with the columns of these
    columns, items         as `AsOfState.forget` takes them
    texts                  JSON -> the same without the person, of examples of dead letters
    """

    impressions: MaskOf
    feedback: MaskOf
    events: Callable[[pa.Table], pa.Table]
    shown: Sequence[pa.Table]
    columns: Collection[str]
    items: Mapping[str, Sequence[int]]
    texts: Callable[[Any], Any]


class HeldInState(NamedTuple):
    """Rows of a state that are to be erased: impressions, and feedback that waits."""

    impressions: int
    feedback: int


def rows_of(log: RowLogState) -> Iterator[tuple[StoredSegment, pa.Table]]:
    """Stored rows, segment by segment, the head last."""
    for segment in (*log.segments, log.head):
        yield segment, pa.Table.from_batches([segment.read(log.folder)])


def held_in(state: SettlementState, wanted: ToErase) -> HeldInState:
    """Rows that a state holds of those that are to be erased."""
    return HeldInState(
        sum(int(wanted.impressions(rows).sum()) for _, rows in rows_of(state.pending)),
        sum(int(wanted.feedback(rows).sum()) for _, rows in rows_of(state.orphans)),
    )


def erased(state: SettlementState, schema: RowSchema, wanted: ToErase) -> SettlementState:
    """The state without these rows, to be saved under the same name. Raises StreamingError where it is damaged."""
    numbers = np.concatenate(
        [segment.first + np.flatnonzero(wanted.impressions(rows)) for segment, rows in rows_of(state.pending)]
    )
    numbers = numbers[numbers >= state.pending.first]
    return replace(
        state,
        pending=_blank(state.pending, "segment", wanted.impressions, wanted.events),
        orphans=_blank(state.orphans, "waiting", wanted.feedback, lambda rows: rows),
        labels=_unlabelled(state, schema, numbers) if len(numbers) else state.labels,
        asof=_without_keys(state, schema, wanted),
        meta={**state.meta, **{name: wanted.texts(state.meta[name]) for name in ("examples", "dead_letters")}},
    )


def _blank(log: RowLogState, kind: str, mask_of: MaskOf, events: Callable[[pa.Table], pa.Table]) -> RowLogState:
    """Rows with nothing in the columns of those that match."""
    stored = [_blanked(segment, rows, kind, mask_of(rows), events(rows)) for segment, rows in rows_of(log)]
    return replace(log, segments=stored[:-1], head=stored[-1])


def _blanked(segment: StoredSegment, before: pa.Table, kind: str, gone: np.ndarray, rows: pa.Table) -> StoredSegment:
    if not gone.any() and rows is before:
        return segment
    for index, field in enumerate(rows.schema):
        if field.name == "impression_id":
            rows = rows.set_column(index, field, pc.if_else(pa.array(gone), _nobodys(segment, field.type), rows[index]))
        elif field.name not in KEPT:
            rows = rows.set_column(index, field, pc.if_else(pa.array(gone), empty_value(field), rows[index]))
    batch = rows.combine_chunks().to_batches()[0]
    columns = [hash64(batch["impression_id"]), batch["key_time_ms"].to_numpy(), np.flatnonzero(gone)]
    kind = kind if segment.name.startswith(f"{kind}-") else f"{kind}_head"
    return StoredSegment.of(kind, segment.first, batch, [*columns, np.frombuffer(segment.name.encode(), np.uint8)])


def _nobodys(segment: StoredSegment, kind: pa.DataType) -> pa.Array:
    """Ids for the rows of a segment that no impression has."""
    numbers = np.arange(segment.first, segment.stop)
    if pa.types.is_integer(kind):
        return pa.array(np.iinfo(np.int64).min + 1 + numbers).cast(kind)
    return pa.array([f"erased {number}" for number in numbers.tolist()], kind)


def _unlabelled(state: SettlementState, schema: RowSchema, numbers: np.ndarray) -> list[Segments]:
    """Marks of the rows, by which the labels of these numbers are unknown."""
    config, first, stop = (
        SettlementConfig.model_validate(state.meta["config"]),
        state.pending.first,
        state.pending.head.stop,
    )
    join = LabelJoin(schema, config.lateness_ms, first)
    unknown = sum(1 << (len(schema.tasks) + place) for place in range(len(schema.tasks)))
    stored = []
    for marks, segments in zip(join.marks, state.labels, strict=True):
        marks.restore(segments, stop)
        values = marks.view(first, stop).copy()
        values[numbers - first] = unknown if marks is join.bits else 0
        again = Marks(marks.dtype, first)
        again.append(values)
        stored.append(again.state())
    return stored


def _without_keys(state: SettlementState, schema: RowSchema, wanted: ToErase) -> Any:
    if state.asof is None:
        return None
    tables = AsOfState(schema)
    tables.restore(state.asof)
    rows = [batch for table in wanted.shown for batch in table.to_batches()]
    keys = [tables.keys_of(batch) for batch in rows]
    none = np.empty((0, tables.widths[0]), np.uint64)
    tables.forget(np.concatenate([none, *keys]), wanted.columns, wanted.items)
    return tables.state()
