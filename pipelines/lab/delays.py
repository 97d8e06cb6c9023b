"""Delays of feedback, which a lake does not store: recovered by playing the rows' source again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.lab.parts import load_part, save_part
from pipelines.lab.rows import Rows, played
from streaming.errors import BadInput
from streaming.hashing import hash64


def feedback_delays(config: Config, rows: Rows, folder: Path) -> np.ndarray:
    """Seconds from each row's impression to its first feedback for every task, (N, T) float32; NaN without feedback.
    Made once for these rows, in `folder`. Raises BadInput where the source does not have the feedback of every
    positive label."""
    path = folder / f"delays-{rows.name}.npz"
    if (part := load_part(path)) is None:
        part = {"seconds": _delays(config, rows.table, folder)}
        for t, task in enumerate(config.tasks):
            positive = rows.table[f"label_{task}"].fill_null(0).to_numpy() > 0
            if missing := int((positive & np.isnan(part["seconds"][:, t])).sum()):
                raise BadInput(
                    f"{missing:,} of {int(positive.sum()):,} rows with a positive label of {task} have no feedback in "
                    "the config's source: it is not, or no longer, what these rows came from; leave `window_s` out"
                )
        save_part(path, **part)
    found: np.ndarray = part["seconds"]
    return found


def _delays(config: Config, table: pa.Table, folder: Path) -> np.ndarray:
    schema = config.rows.feedback
    events = pa.Table.from_batches([chunk.feedback for chunk in played(config, folder)], schema)
    wanted, shown_ms = hash64(table["impression_id"].combine_chunks()), table["event_time_ms"].to_numpy()
    found = np.full((table.num_rows, len(config.tasks)), np.nan, np.float32)
    names = np.asarray(events["task"].to_pylist(), dtype=object)
    ids, times = hash64(events["impression_id"].combine_chunks()), events["event_time_ms"].to_numpy()
    for t, task in enumerate(config.tasks):
        own = np.flatnonzero(names == task)
        order = own[np.lexsort((times[own], ids[own]))]
        known, first = np.unique(ids[order], return_index=True)
        if not len(known):
            continue
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        delay_ms = times[order][first][at] - shown_ms
        there = (known[at] == wanted) & (delay_ms >= -config.settlement.early_ms)
        found[there, t] = np.maximum(0, delay_ms[there]) / 1000
    return found
