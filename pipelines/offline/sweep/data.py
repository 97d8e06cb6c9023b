"""A student's batches, from the feed of its worker, and built once for all arms that train on the same columns."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import Batch, BatchBuilder, own_rows_of, sample_negatives
from pipelines.config import Config, StudentSettings
from pipelines.feeds import OwnRows, StudentFeed, TableSource
from streaming.position import NOTHING_YET
from streaming.schema import SAMPLE_WEIGHT


class Data(NamedTuple):
    """A student's rows: their `places` in the stream (n,), labels and what these count (n, T), 0 where not known.

    Its life begins with the row `first`. `learned` (k,) of the rows from there on are in its batches: batch i has those
    from bounds[i] to bounds[i + 1]. The others were given up by negative downsampling: `scored_only[i]` has those that
    come before the end of batch i. So every arm is judged on the same rows, whatever share of them it learns.

    Batches may hold rows of other verticals in addition, which an arm learns from; they are not counted here.
    """

    places: np.ndarray
    first: int
    labels: np.ndarray
    weights: np.ndarray
    learned: np.ndarray
    bounds: np.ndarray
    batches: list[Batch]
    scored_only: list[tuple[np.ndarray, Batch] | None]


def birth(start: float, blocks: np.ndarray) -> int:
    """The first row of a student born when `start` of the stream, whose rows are in these `blocks` (N,), is over: that
    of the next whole block.

    >>> [birth(start, np.array([0, 0, 1, 1, 2])) for start in (0.0, 0.2, 0.4, 0.9)]
    [0, 2, 2, 4]
    """
    at = round(start * len(blocks))
    later = np.flatnonzero(np.diff(blocks[at - 1 :])) if at else np.zeros(1, np.int64)
    return at + int(later[0]) if len(later) else len(blocks)


def places_of(table: pa.Table, config: Config, student: StudentSettings) -> np.ndarray:
    """Where the rows stand that pass the student's filter."""
    return _places(table, config, student, config.own_rows(student))


def _places(table: pa.Table, config: Config, student: StudentSettings, of: OwnRows) -> np.ndarray:
    """Where those of these rows stand that settle a task of the student."""
    tasks = config.student_tasks(student)
    groups = [group.name for group in config.rows.groups if any(task.name in tasks for task in group.tasks)]
    found = pc.is_in(table["settlement"], value_set=pa.array(groups))
    return np.flatnonzero(found.to_numpy() & of.mask(table))


def data_of(
    table: pa.Table, config: Config, student: StudentSettings, start: float = 0.0, *, as_shown: bool = False
) -> Data:
    """`table`: the stream as a lake holds it, teacher logits included. The student is born when `start` of it is over.
    With `as_shown` a batch knows when its rows were shown, and when they had settled."""
    places, tasks = places_of(table, config, student), config.student_tasks(student)
    begins = birth(start, table["block"].to_numpy())
    first = int(np.searchsorted(places, begins))
    rows = table.take(pa.array(places)).combine_chunks()
    others = config.reads_all_rows(student)
    read = table.take(pa.array(_places(table, config, student, OwnRows()))).combine_chunks() if others else rows
    rates = student.negative_rate
    delays_ms = config.as_shown_of(student).delays_ms if as_shown else None
    build = BatchBuilder(config.student_features(student), tasks, rates or None, delays_ms)
    feed = StudentFeed(
        TableSource(read, batch_rows=config.resources.read_rows),
        build,
        batches=student.batches,
        own=config.own_rows(student) if others else None,
        label_rows=student.label_rows,
        sampling=partial(sample_negatives, tasks=tasks, negative_rate=rates, seed=config.seed) if rates else None,
    )
    lake_seq = rows["lake_seq"].to_numpy()
    feed.open(table["lake_seq"][begins - 1].as_py() if begins else NOTHING_YET)
    cuts = list(feed)
    batches = [cut.batch for cut in cuts]
    seqs = [cut.rows["lake_seq"].to_numpy() for cut in cuts]
    own = [seq[own_rows_of(cut.rows)] for seq, cut in zip(seqs, cuts, strict=True)]
    bounds = np.cumsum([0, *map(len, own)])
    learned = np.searchsorted(lake_seq, np.concatenate(own) if own else np.zeros(0, np.int64))
    scored_only: list[tuple[np.ndarray, Batch] | None] = [None] * len(batches)
    if rates and batches:
        given_up = np.setdiff1d(np.arange(first, len(places)), learned)
        ends = np.searchsorted(lake_seq[given_up], [seq[-1] for seq in seqs[:-1]])
        for i, some in enumerate(np.split(given_up, ends)):
            scored_only[i] = (some, build(rows.take(pa.array(some)).combine_chunks())) if len(some) else None
    weights = rows[SAMPLE_WEIGHT].to_numpy().astype(np.float64) if config.rows.weighted else np.ones(len(places))
    columns = [rows[f"label_{task}"] for task in tasks]
    labels = np.stack([column.fill_null(0).to_numpy().astype(np.float64) for column in columns], axis=1)
    known = np.stack([column.is_valid().to_numpy() for column in columns], axis=1)
    return Data(places, first, labels, known * weights[:, None], learned, bounds, batches, scored_only)
