"""A student's batches, cut as its worker cuts them, and built once for all arms that train on the same columns.

rows --(verticals, settlements)--> the student's, in order --> batches of B rows, or up to a block's end
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import Batch, BatchBuilder, sample_negatives
from pipelines.config import Config, Student
from streaming.schema import SAMPLE_WEIGHT


class Data(NamedTuple):
    """A student's rows: their `places` in the stream (n,), labels and what these count (n, T), 0 where not known.

    `learned` (k,) of them are in the batches: batch i has those from bounds[i] to bounds[i + 1]. The others were given
    up by negative downsampling: `beside[i]` has those that come before the end of batch i, to be scored only. So every
    arm is judged on the same rows, whatever share of them it learns.
    """

    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    learned: np.ndarray
    bounds: np.ndarray
    batches: list[Batch]
    beside: list[tuple[np.ndarray, Batch] | None]

    def born(self, start: float, blocks: np.ndarray) -> tuple[int, int]:
        """The first row and the first batch of a student born when `start` of the stream, whose rows are in these
        `blocks` (N,), is over: those of the next whole block."""
        at = round(start * len(blocks))
        later = np.flatnonzero(np.diff(blocks[at - 1 :])) if at else np.zeros(1, np.int64)
        place = at + int(later[0]) if len(later) else len(blocks)
        batches = self.places[self.learned[self.bounds[:-1]]]
        return int(np.searchsorted(self.places, place)), int(np.searchsorted(batches, place))


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
    if not len(blocks):
        return np.zeros(1, np.int64)
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    stops = np.append(starts[1:], len(blocks))
    cuts = [np.arange(start, stop, batch_rows) for start, stop in zip(starts, stops, strict=True)]
    return np.append(np.concatenate(cuts), len(blocks)).astype(np.int64)


def data_of(table: pa.Table, config: Config, student: Student) -> Data:
    """`table`: the stream as a lake holds it, teacher logits included."""
    places, tasks = places_of(table, config, student), config.student_tasks(student)
    rows = table.take(pa.array(places)).combine_chunks()
    rates = student.negative_rate
    kept = sample_negatives(rows, tasks, rates, config.seed).kept.combine_chunks() if rates else rows
    learned = np.searchsorted(rows["lake_seq"].to_numpy(), kept["lake_seq"].to_numpy())
    bounds = bounds_of(kept["block"].to_numpy(), student.batch_rows)
    build = BatchBuilder(config.student_features(student), tasks, rates or None)
    pairs = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    batches = [build(kept.slice(start, stop - start)) for start, stop in pairs]
    beside: list[tuple[np.ndarray, Batch] | None] = [None] * len(batches)
    if rates and batches:
        given_up = np.setdiff1d(np.arange(len(places)), learned)
        ends = np.append(learned[bounds[1:-1] - 1], len(places))
        for i, own in enumerate(np.split(given_up, np.searchsorted(given_up, ends[:-1]))):
            beside[i] = (own, build(rows.take(pa.array(own)).combine_chunks())) if len(own) else None
    weights = rows[SAMPLE_WEIGHT].to_numpy().astype(np.float64) if config.rows.weighted else np.ones(len(places))
    columns = [rows[f"label_{task}"] for task in tasks]
    labels = np.stack([column.fill_null(0).to_numpy().astype(np.float64) for column in columns], axis=1)
    known = np.stack([column.is_valid().to_numpy() for column in columns], axis=1)
    return Data(places, labels, known * weights[:, None], learned, bounds, batches, beside)
