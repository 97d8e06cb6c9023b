"""Augmentation of settled rows into rows of the lake: their position, and the teacher's logits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.live.training.unseen_labels import not_yet_learned
from streaming.schema import RowSchema

DAY_MS = 86_400_000


def augment(
    rows: pa.RecordBatch,
    logits_NT: np.ndarray,
    schema: RowSchema,
    *,
    block: int,
    first_seq: int,
    teacher_version: int | None,
    scored_at_ms: int,
) -> pa.RecordBatch:
    """A block as the lake stores it (`schema.augmented`), from rows in `schema.settled`.

    logits_NT        float32, a column per task of the schema, in its order; NaN where the teacher gives none. A logit
                     whose label the teacher may have learned already is left out: it is no prediction
    teacher_version  None where no snapshot scored the rows
    """
    count = rows.num_rows
    event_time = rows["event_time_ms"].to_numpy()
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns["lake_seq"] = pa.array(np.arange(first_seq, first_seq + count))
    columns["block"] = pa.array(np.full(count, block))
    columns["teacher_version"] = pa.array([teacher_version] * count, pa.int64())
    columns["scored_at_ms"] = pa.array(np.full(count, scored_at_ms))
    columns["event_date"] = _dates(event_time)
    tasks = [task.name for task in schema.tasks]
    known_NT = not_yet_learned(rows, tasks, schema.groups) & np.isfinite(logits_NT)
    for index, task in enumerate(tasks):
        columns[f"teacher_logit_{task}"] = pa.array(logits_NT[:, index], mask=~known_NT[:, index])
    augmented = schema.augmented
    return pa.RecordBatch.from_arrays([columns[name] for name in augmented.names], schema=augmented)


def _dates(event_time_ms: np.ndarray) -> pa.Array:
    """The day of each row, written once for all of its rows.

    >>> _dates(np.array([1_704_067_199_999, 1_704_067_200_000, 1_704_067_199_000])).to_pylist()
    ['2023-12-31', '2024-01-01', '2023-12-31']
    """
    days = pa.array(event_time_ms // DAY_MS).dictionary_encode()
    midnights = pa.array(days.dictionary.to_numpy() * DAY_MS, pa.timestamp("ms"))
    return pc.strftime(midnights, format="%Y-%m-%d").take(days.indices)
