"""A student's batches, from the feed of its worker, and built once for all arms that train on the same columns."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import Batch, BatchBuilder, sample_negatives
from pipelines.config import Config, StudentSettings
from pipelines.feeds import StudentFeed, TableSource
from streaming.position import NOTHING_YET
from streaming.schema import SAMPLE_WEIGHT


class Data(NamedTuple):
    """A student's rows: their `places` in the stream (n,), labels and what these count (n, T), 0 where not known.

    `learned` (k,) of them are in the batches: batch i has those from bounds[i] to bounds[i + 1]. The others were given
    up by negative downsampling: `scored_only[i]` has those that come before the end of batch i. So every
    arm is judged on the same rows, whatever share of them it learns.
    """

    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    learned: np.ndarray
    bounds: np.ndarray
    batches: list[Batch]
    scored_only: list[tuple[np.ndarray, Batch] | None]

    def born(self, start: float, blocks: np.ndarray) -> tuple[int, int]:
        """The first row and the first batch of a student born when `start` of the stream, whose rows are in these
        `blocks` (N,), is over: those of the next whole block."""
        at = round(start * len(blocks))
        later = np.flatnonzero(np.diff(blocks[at - 1 :])) if at else np.zeros(1, np.int64)
        place = at + int(later[0]) if len(later) else len(blocks)
        batches = self.places[self.learned[self.bounds[:-1]]]
        return int(np.searchsorted(self.places, place)), int(np.searchsorted(batches, place))


def places_of(table: pa.Table, config: Config, student: StudentSettings) -> np.ndarray:
    """Where the rows stand that pass the student's filter."""
    tasks = config.student_tasks(student)
    groups = [group.name for group in config.rows.groups if any(task.name in tasks for task in group.tasks)]
    own = pc.is_in(table["settlement"], value_set=pa.array(groups))
    if student.row_filter:
        own = pc.and_(own, pc.is_in(table["vertical"], value_set=pa.array(student.row_filter)))
    return np.flatnonzero(own.to_numpy())


def data_of(table: pa.Table, config: Config, student: StudentSettings) -> Data:
    """`table`: the stream as a lake holds it, teacher logits included."""
    places, tasks = places_of(table, config, student), config.student_tasks(student)
    rows = table.take(pa.array(places)).combine_chunks()
    rates = student.negative_rate
    build = BatchBuilder(config.student_features(student), tasks, rates or None)
    feed = StudentFeed(
        TableSource(rows, batch_rows=config.resources.read_rows),
        build,
        batch_rows=student.batch_rows,
        sampling=partial(sample_negatives, tasks=tasks, negative_rate=rates, seed=config.seed) if rates else None,
    )
    feed.open(NOTHING_YET)
    cuts = list(feed)
    batches = [cut.batch for cut in cuts]
    bounds = np.cumsum([0, *(cut.rows.num_rows for cut in cuts)])
    seqs = [cut.rows["lake_seq"].to_numpy() for cut in cuts]
    learned = np.searchsorted(rows["lake_seq"].to_numpy(), np.concatenate(seqs) if seqs else np.zeros(0, np.int64))
    scored_only: list[tuple[np.ndarray, Batch] | None] = [None] * len(batches)
    if rates and batches:
        given_up = np.setdiff1d(np.arange(len(places)), learned)
        ends = np.append(learned[bounds[1:-1] - 1], len(places))
        for i, own in enumerate(np.split(given_up, np.searchsorted(given_up, ends[:-1]))):
            scored_only[i] = (own, build(rows.take(pa.array(own)).combine_chunks())) if len(own) else None
    weights = rows[SAMPLE_WEIGHT].to_numpy().astype(np.float64) if config.rows.weighted else np.ones(len(places))
    columns = [rows[f"label_{task}"] for task in tasks]
    labels = np.stack([column.fill_null(0).to_numpy().astype(np.float64) for column in columns], axis=1)
    known = np.stack([column.is_valid().to_numpy() for column in columns], axis=1)
    return Data(places, labels, known * weights[:, None], learned, bounds, batches, scored_only)
