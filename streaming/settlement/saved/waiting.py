"""Search for one impression in a saved settlement state: it may wait for its window, and feedback for it.

Only the columns that are asked for are read, segment by segment; no index is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.label_join import LabelJoin
from streaming.settlement.marks import Marks
from streaming.settlement.pending import RowLogState
from streaming.settlement.state import SettlementState, held_together, state_places

_PLACE = tuple(field.name for field in POSITION_FIELDS)


class HeldImpression(NamedTuple):
    """An impression in the state. `place`: topic, partition, offset, row; None where only its id is still held.

    key_time_ms  the merge key at which it was admitted
    passed       settlement groups whose window has closed for it
    deadlines    of every group: it settles once the watermark is beyond
    positive     tasks whose feedback has come, with its merge key
    unknown      tasks whose label is known to stay unknown
    """

    place: tuple[str, int, int, int] | None
    event_time_ms: int
    vertical: str | None
    key_time_ms: int
    passed: tuple[str, ...]
    deadlines: dict[str, int]
    positive: dict[str, int]
    unknown: tuple[str, ...]


class HeldFeedback(NamedTuple):
    """Feedback that has come before its impression, and waits for it until the watermark is beyond `until_ms`."""

    place: tuple[str, int, int, int]
    task: str
    event_time_ms: int
    until_ms: int


class Held(NamedTuple):
    """All that a state holds of one id."""

    impressions: list[HeldImpression]
    feedback: list[HeldFeedback]
    watermark_ms: int | None


def held_of(folder: Path, number: int, impression_id: int | str, schema: RowSchema) -> Held:
    """All that the state `number` in `folder` holds of an id, where partitions are settled by themselves, too.

    Raises BadInput where there is no such state, DataLost or StreamingError where it is damaged.
    """
    held, watermarks = Held([], [], None), []
    for place in state_places(folder, number) or [folder]:
        state, _ = SettlementState.load(place, str(number))
        with held_together(place, str(number)):
            watermarks.append(int(state.meta["watermark_ms"]))
            held.impressions.extend(_impressions(state, impression_id, schema))
            held.feedback.extend(_feedback(state, impression_id, schema))
    return held._replace(watermark_ms=min(watermarks))


def _impressions(state: SettlementState, impression_id: int | str, schema: RowSchema) -> Iterator[HeldImpression]:
    found = list(_found(state.pending, impression_id, ["vertical", *_PLACE]))
    if not found:
        return
    meta, config = state.meta, SettlementConfig.model_validate(state.meta["config"])
    join, stop = LabelJoin(schema, config.lateness_ms, state.pending.first), state.pending.head.stop
    for marks, segments in zip(join.marks, state.labels, strict=True):
        marks.restore(segments, stop)
    for number, row in found:
        bits = int(join.bits[np.array([number])][0])
        tasks = [task.name for task in schema.tasks]
        yield HeldImpression(
            _place_of(row),
            row["event_time_ms"],
            row.get("vertical"),
            row["key_time_ms"],
            tuple(g.name for g, cursor in zip(schema.groups, meta["cursors"], strict=True) if number < cursor),
            {group.name: row["key_time_ms"] + group.window_ms + config.lateness_ms for group in schema.groups},
            {task: _time(join.times[task], number) for at, task in enumerate(tasks) if bits >> at & 1},
            tuple(task for at, task in enumerate(tasks) if bits >> (len(tasks) + at) & 1),
        )


def _time(times: Marks, number: int) -> int:
    return int(times[np.array([number])][0])


def _feedback(state: SettlementState, impression_id: int | str, schema: RowSchema) -> Iterator[HeldFeedback]:
    found = list(_found(state.orphans, impression_id, ["task", *_PLACE]))
    if not found:
        return
    horizon_ms = SettlementConfig.model_validate(state.meta["config"]).horizon_ms(schema)
    claimed = Marks(np.uint8, state.orphans.first)
    claimed.restore(state.claimed, state.orphans.head.stop)
    for number, row in found:
        place = _place_of(row)
        if not claimed[np.array([number])][0] and place is not None:
            yield HeldFeedback(place, row["task"], row["event_time_ms"], row["key_time_ms"] + horizon_ms)


def _found(log: RowLogState, impression_id: int | str, names: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbers and rows of the id in a log, of those columns that are still held."""
    for segment in (*log.segments, log.head):
        rows = segment.read(log.folder, ["impression_id", "event_time_ms", "key_time_ms", *names])
        same = pc.equal(rows["impression_id"], pa.scalar(impression_id, rows["impression_id"].type))
        for at in np.flatnonzero(same.to_numpy(zero_copy_only=False)).tolist():
            if segment.first + at >= log.first:
                yield segment.first + at, rows.slice(at, 1).to_pylist()[0]


def _place_of(row: dict[str, Any]) -> tuple[str, int, int, int] | None:
    if not row.get(_PLACE[0]):  # only its id is still held
        return None
    topic, partition, offset, number = (row[name] for name in _PLACE)
    return str(topic), int(partition), int(offset), int(number)
