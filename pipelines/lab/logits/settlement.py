"""Rows for a privileged teacher, `teacher.model.sequence.as_of: settlement`: its events are those that a served teacher
would read, and of each it is told all that had come when the row itself settled.

    shown       events with merge time < tick of the row          feedback with a time < tick
    settlement  the same events                                   feedback with a time ≤ settlement of the row

For comparison alone: the row is scored when it has settled, but a served model would have to predict it when it is
shown. The lists are made of settled rows, so a run needs to store nothing for it. Keys are not forgotten.

N rows, I impressions, E listed events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.features.events import NONE, OPEN, POSITIVE
from exfm.features.sparse import AGE
from exfm.interactions.hstu import SequenceModel
from pipelines.core.config.asof import events_name
from pipelines.core.config.settings import Config
from pipelines.lab.rows import Rows
from streaming.schema import FEEDBACK_TIME, MERGE_TIME

NEVER = np.iinfo(np.int64).max


class _Shown(NamedTuple):
    """Impressions by key and merge time: `place` (I,) ascends with both; `at` merge times (I,), `came` (I, T) times of
    labels, `items` (I, columns)."""

    place: np.ndarray
    at: np.ndarray
    came: np.ndarray
    items: np.ndarray


class PrivilegedRows:
    """Rows with lists of events as of their settlement."""

    def __init__(self, rows: Rows, config: Config, sequence: SequenceModel) -> None:
        self._rows, self._sequence, self._schema = rows, sequence, config.rows
        lateness_ms = config.settlement.lateness_ms
        self._waits_ms = {group.name: group.window_ms + lateness_ms for group in config.rows.groups}
        table = rows.table
        self._keys = table[sequence.of].combine_chunks().unique().drop_null()
        times = table[MERGE_TIME].to_numpy()
        self._begin, self._span = int(times.min()), int(np.ptp(times)) + 1
        self._shown = self._impressions(table)

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def slice(self, offset: int = 0, length: int | None = None) -> pa.Table:
        """Slice like a table."""
        table = self._rows.slice(offset, length)
        waits = [self._waits_ms[name] for name in table["settlement"].to_pylist()]
        lists = self.lists(table, table[MERGE_TIME].to_numpy() + np.array(waits, np.int64))
        for name, values in lists.items():
            table = table.drop_columns(name) if name in table.column_names else table
            table = table.append_column(name, values)
        return table

    def lists(self, table: pa.Table, known_ms: np.ndarray) -> dict[str, pa.Array]:
        """Lists of events of some rows, with what was known of each by `known_ms` (N,), by the name of their column."""
        sequence, shown, tick_ms = self._sequence, self._shown, self._schema.asof.tick_ms
        tick = table[MERGE_TIME].to_numpy() // tick_ms * tick_ms
        key = self._codes(table)
        first = np.searchsorted(shown.place, key * self._span)
        stop = np.searchsorted(shown.place, key * self._span + np.maximum(tick - self._begin, 0))
        count = np.where(key < 0, 0, np.minimum(stop - first, sequence.length))
        ends = np.cumsum(count)
        row = np.repeat(np.arange(len(count)), count)
        event = np.arange(len(row)) + (stop - ends)[row]
        values = dict(zip(sequence.events, shown.items[event].T, strict=True))
        for place, task in enumerate(self._schema.tasks):
            closes = shown.at[event] + round(1000 * task.window_s)
            state = np.where(closes > known_ms[row], OPEN, NONE)
            values[task.name] = np.where(shown.came[event, place] <= known_ms[row], POSITIVE, state)
        values[AGE] = ((tick[row] - shown.at[event]) / 1000).astype(np.float32)
        offsets, name = pa.array(np.append(0, ends).astype(np.int32)), events_name(sequence.of)
        return {f"{name}_{of}": pa.ListArray.from_arrays(offsets, pa.array(each)) for of, each in values.items()}

    def _codes(self, table: pa.Table) -> np.ndarray:
        """(N,) int64: place of the row's key among all, -1 for null."""
        codes = pa.compute.index_in(table[self._sequence.of], value_set=self._keys)
        return codes.fill_null(-1).to_numpy().astype(np.int64)

    def _impressions(self, table: pa.Table) -> _Shown:
        """The impressions with a key; each may be there once for each settlement group, with labels of that group."""
        ids = table["impression_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        _, first, of = np.unique(ids, return_index=True, return_inverse=True)
        times = [table[f"{FEEDBACK_TIME}{task.name}"].fill_null(NEVER).to_numpy() for task in self._schema.tasks]
        came = np.full((len(first), len(times)), NEVER)
        for place, time in enumerate(times):
            np.minimum.at(came[:, place], of, time)
        at = table[MERGE_TIME].to_numpy()[first]
        place = self._codes(table)[first] * self._span + (at - self._begin)
        in_order = np.lexsort((first, place))
        in_order = in_order[place[in_order] >= 0]
        items = [table[name].fill_null(0).to_numpy()[first] for name in self._sequence.events]
        return _Shown(*(each[in_order] for each in (place, at, came, np.stack(items, axis=1))))
