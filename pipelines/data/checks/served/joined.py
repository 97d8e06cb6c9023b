"""Served rows of a student, with the lake's rows of the same impressions."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from streaming.lake.reader import LakeReader

LABEL = "label_"


class ServedRows(NamedTuple):
    """`served`: one row for each impression, the last one served; `repeats`: the number of others. `rebuilt`: the
    lake's first row of each that it has. `labels`: by task, the `impression_id` of settled rows, and their labels.
    `lake_rows`: impressions of the student in the lake in the span of time of those that were found."""

    served: pa.Table
    repeats: int
    rebuilt: pa.Table
    labels: dict[str, tuple[pa.Array, np.ndarray]]
    lake_rows: int


def joined(config: Config, student: StudentSettings, lake: LakeReader, logged: pa.Table) -> ServedRows:
    """Join by `impression_id`, in the row schema's type."""
    ids = logged["impression_id"].combine_chunks().cast(config.rows.id_type)
    last = _last(ids)
    served = logged.set_column(logged.schema.get_field_index("impression_id"), "impression_id", ids).take(last)
    own, tasks = config.own_rows(student), config.student_tasks(student)
    features = config.student_features(student).serving_columns()
    columns = list(dict.fromkeys(["impression_id", "event_time_ms", *features, *(LABEL + task for task in tasks)]))
    reading = partial(lake.read, verticals=set(own.verticals) or None)
    wanted = pc.field("impression_id").isin(served["impression_id"].combine_chunks())
    only = wanted if own.condition is None else wanted & own.condition
    rows = reading(columns=columns, filter=only).table.combine_chunks()
    labels = {}
    for task in tasks:
        known = rows.filter(rows[LABEL + task].is_valid())
        labels[task] = known["impression_id"].combine_chunks(), known[LABEL + task].to_numpy().astype(np.float64)
    rebuilt = rows.select(["impression_id", *features]).take(_first(rows["impression_id"].combine_chunks()))
    lake_rows = 0
    if rows.num_rows:
        times = pc.min_max(rows["event_time_ms"]).as_py()
        span = (pc.field("event_time_ms") >= times["min"]) & (pc.field("event_time_ms") <= times["max"])
        span = span if own.condition is None else span & own.condition
        lake_rows = pc.count_distinct(reading(columns=["impression_id"], filter=span).table[0]).as_py()
    return ServedRows(served, len(ids) - len(last), rebuilt, labels, lake_rows)


def _first(ids: pa.Array) -> pa.Array:
    """Index of the first row of each id."""
    numbers = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    return pa.array(np.unique(numbers, return_index=True)[1])


def _last(ids: pa.Array) -> pa.Array:
    """Index of the last row of each id."""
    numbers = pc.dictionary_encode(ids).indices.to_numpy(zero_copy_only=False)
    return pa.array(np.sort(len(ids) - 1 - np.unique(numbers[::-1], return_index=True)[1]))
