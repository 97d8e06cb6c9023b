"""A student's batches, cut as its worker cuts them, and built once for all arms that train on the same columns.

rows --(verticals, settlements)--> the student's, in order --> batches of B rows, or up to a block's end
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.batch import Batch, BatchBuilder
from pipelines.config import Config, Student


class Data(NamedTuple):
    """`places` (n,): where the student's rows stand in the stream; batch i holds rows bounds[i] to bounds[i + 1]."""

    places: np.ndarray
    bounds: np.ndarray
    batches: list[Batch]

    def born(self, start: float, blocks: np.ndarray) -> int:
        """The first batch of a student born when `start` of the stream, whose rows are in these `blocks` (N,), is over:
        that of the next whole block."""
        at = round(start * len(blocks))
        later = np.flatnonzero(np.diff(blocks[at - 1 :])) if at else np.zeros(1, np.int64)
        place = at + int(later[0]) if len(later) else len(blocks)
        return int(np.searchsorted(self.places[self.bounds[:-1]], place))


def places_of(table: pa.Table, config: Config, student: Student) -> np.ndarray:
    """Where the rows stand that pass the student's filter."""
    tasks = config.student_tasks(student)
    groups = [group.name for group in config.rows.groups if any(task.name in tasks for task in group.tasks)]
    own = pc.and_(
        pc.is_in(table["vertical"], value_set=pa.array(student.row_filter)),
        pc.is_in(table["settlement"], value_set=pa.array(groups)),
    )
    return np.flatnonzero(own.to_numpy())


def bounds_of(blocks: np.ndarray, batch_rows: int) -> np.ndarray:
    """Where batches of rows in these blocks begin and end: after `batch_rows` rows or with a block.

    >>> bounds_of(np.array([0, 0, 0, 1, 1, 2]), 2).tolist()
    [0, 2, 3, 5, 6]
    """
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    stops = np.append(starts[1:], len(blocks))
    cuts = [np.arange(start, stop, batch_rows) for start, stop in zip(starts, stops, strict=True) if stop > start]
    return np.append(np.concatenate(cuts) if cuts else np.empty(0, np.int64), len(blocks)).astype(np.int64)


def data_of(table: pa.Table, config: Config, student: Student) -> Data:
    """`table`: the stream as a lake holds it, teacher logits included."""
    places = places_of(table, config, student)
    rows = table.take(pa.array(places)).combine_chunks()
    bounds = bounds_of(rows["block"].to_numpy(), student.batch_rows)
    build = BatchBuilder(config.student_features(student), config.student_tasks(student))
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return Data(places, bounds, [build(rows.slice(start, stop - start)) for start, stop in pairs])
