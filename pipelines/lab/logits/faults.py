"""Simulated faults of a stream's logits and labels, by impression: the same impressions in every condition.

Delays of feedback, which a lake does not store, are recovered by playing the rows' source again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.lab.parts import load_part, save_part
from pipelines.lab.rows import Rows, played
from streaming.errors import BadInput
from streaming.hashing import hash64
from streaming.schema import Task

_MIX = np.uint64(0x9E3779B97F4A7C15)


def chosen(ids: pa.Array, share: float, fault: str) -> np.ndarray:
    """Mask (N,) bool of this share of impressions; each fault has its own.

    >>> ids = pa.array(range(10_000))
    >>> float(chosen(ids, 0.2, "missing").mean().round(2)), float(chosen(ids, 1.0, "lost").mean())
    (0.2, 1.0)
    """
    salt = hash64(pa.array([fault]))[0]
    mixed = (hash64(ids) ^ salt) * _MIX
    mixed ^= mixed >> np.uint64(32)
    return np.asarray((mixed * _MIX >> np.uint64(11)).astype(np.float64) / 2.0**53 < share)


def learned_labels(
    table: pa.Table, tasks: Sequence[Task], faults: Mapping[str, float], delays_s: np.ndarray | None = None
) -> dict[str, pa.Array]:
    """Labels by task that students learn, (N,) each, under faults: a share of positives is `lost`, feedback later than
    `window_s` does not count (`delays_s`, (N, T), is its delay), and a share is `unknown`. A task that is given another
    one has no label where the feedback of that one does not count.

    >>> tasks = [Task(name="ctr", window_s=60), Task(name="cvr", window_s=90, given="ctr")]
    >>> logged = pa.table({"impression_id": [7, 8, 7, 8], "label_ctr": [1, 1, None, None],
    ...                    "label_cvr": [None, None, 1, 1]})
    >>> delays = np.array([[5, 70], [20, 30], [5, 70], [20, 30]])
    >>> found = learned_labels(logged, tasks, {"window_s": 10}, delays)
    >>> found["ctr"].to_pylist(), found["cvr"].to_pylist()
    ([1, 0, None, None], [None, None, 0, None])
    """
    ids = table["impression_id"].combine_chunks()
    unknown = chosen(ids, faults.get("unknown", 0.0), "unknown")
    gone: dict[str, np.ndarray] = {}
    for t, task in enumerate(tasks):
        gone[task.name] = chosen(ids, faults.get("lost", 0.0), "lost" if task.given is None else f"lost {task.name}")
        if delays_s is not None:
            gone[task.name] |= delays_s[:, t] > faults["window_s"]
    given = {task.name: task.given for task in tasks}
    learned = {}
    for name in given:
        column = table[f"label_{name}"].combine_chunks()
        known = column.is_valid().to_numpy(zero_copy_only=False) & ~unknown
        condition = given[name]
        while condition is not None:
            known &= ~gone[condition]
            condition = given[condition]
        values = column.fill_null(0).to_numpy(zero_copy_only=False).copy()
        values[gone[name]] = 0
        learned[name] = pa.array(values, column.type, mask=~known)
    return learned


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
    return np.asarray(part["seconds"])


def _delays(config: Config, table: pa.Table, folder: Path) -> np.ndarray:
    schema = config.rows.feedback
    events = pa.Table.from_batches([chunk.feedback for chunk in played(config, folder)], schema)
    wanted, shown_ms = hash64(table["impression_id"].combine_chunks()), table["event_time_ms"].to_numpy()
    delays_s = np.full((table.num_rows, len(config.tasks)), np.nan, np.float32)
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
        delays_s[there, t] = np.maximum(0, delay_ms[there]) / 1000
    return delays_s
