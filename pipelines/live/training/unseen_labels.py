"""Score before learn: labels that a teacher cannot have learned when it scores a row.

Tasks of one attribution window settle together, in one row of the lake; tasks with longer windows settle in a later row
of the same impression. When the teacher scores such a later row, it may have learned the labels of the earlier ones: a
logit for those tasks would not be a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import SettlementGroup


def not_yet_learned(
    rows: pa.RecordBatch | pa.Table,
    tasks: Sequence[str],
    groups: Sequence[SettlementGroup],
    learned_upto_ms: int | None = None,
) -> np.ndarray:
    """Mask (N, T) bool: True if a teacher that has learned everything before the row cannot know its label for the
    task.

    That holds for the tasks that settle with the row, and for those that settle later. `groups`: the schema's, shortest
    window first. A teacher that began trained may know rows that were shown up to `learned_upto_ms`, too.

    >>> from streaming.schema import Column, RowSchema, Task
    >>> tasks = (Task(name="ctr", window_s=60), Task(name="cvr", window_s=600))
    >>> schema = RowSchema(columns=(Column(name="user_id"),), tasks=tasks)
    >>> rows = pa.table({"settlement": ["ctr", "cvr"]})
    >>> not_yet_learned(rows, ["ctr", "cvr"], schema.groups).tolist()
    [[True, True], [False, True]]
    """
    settled_N = np.asarray(pc.index_in(rows["settlement"], pa.array([group.name for group in groups])))
    group_of = {task.name: number for number, group in enumerate(groups) for task in group.tasks}
    own_T = np.array([group_of[task] for task in tasks])
    unknown = np.asarray(settled_N[:, None] <= own_T[None, :])
    if learned_upto_ms is not None:
        unknown &= rows["event_time_ms"].to_numpy()[:, None] > learned_upto_ms
    return unknown
