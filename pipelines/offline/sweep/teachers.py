"""A teacher in lockstep over settled rows, and the logits that its snapshots give them, as a run puts them in its lake.

    block k:  scored by the snapshot of blocks ≤ k − lag − behind, each `behind` asked for    then learned, in batches

Blocks, lag, scoring batches, teacher batches and seeds are those of the pipeline with one rank, so that the logits of
`behind` 0 are the lake's, bit for bit (tests/contracts/test_pipeline.py). One pass serves all ages of snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import BatchBuilder, FeatureSet
from exfm.models import Teacher, TeacherConfig, TeacherScorer
from pipelines.config import Config
from pipelines.rules import lockstep_version
from pipelines.workers.teacher import cuts, portion_of
from streaming.delivery import Block


class Logits(NamedTuple):
    """Of one age of snapshots: (N, T) float32, NaN where the lake would hold none; `left_out`: rows of batches that
    were not finite, and not learned from."""

    logits: np.ndarray
    left_out: int


def blocks_of(count: int, config: Config) -> np.ndarray:
    """The block of every row, (N,)."""
    return np.arange(count) // config.pace.block_rows


def versions_of(count: int, config: Config, behind: int) -> np.ndarray:
    """The version of the snapshot that scores every row, (N,)."""
    return np.maximum(0, blocks_of(count, config) - config.pace.lag + 1 - behind)


def lockstep_logits(
    config: Config,
    features: FeatureSet,
    model: TeacherConfig,
    table: pa.Table,
    *,
    behinds: Sequence[int],
    advance: Callable[[int], None],
) -> dict[int, Logits]:
    """The logits of every row by snapshots of each age. `advance` is told how many rows are done."""
    N, size, lag = table.num_rows, config.pace.block_rows, config.pace.lag
    teacher = Teacher(model, features, config.tasks, config.seed, batch_rows=config.teacher.batch_rows)
    scorer = TeacherScorer(model, features, config.tasks)
    build = BatchBuilder(features, config.tasks)
    found = {behind: np.full((N, len(config.tasks)), np.nan, np.float32) for behind in behinds}
    left_out = 0
    snapshots: dict[int, Any] = {0: teacher.snapshot()}
    try:
        for number, start in enumerate(range(0, N, size)):
            rows = table.slice(start, size)
            by_version: dict[int, list[int]] = {}
            for behind in behinds:
                by_version.setdefault(max(0, lockstep_version(number, lag) - behind), []).append(behind)
            step = config.augmentation.score_rows
            batches = [(at, build(rows.slice(at, step))) for at in range(0, rows.num_rows, step)]
            for version, asked in by_version.items():
                scorer.load(snapshots[version])
                for at, batch in batches:
                    z = scorer.score(batch)
                    for behind in asked:
                        found[behind][start + at : start + at + len(z)] = z
            for part in _steps(rows, number, start, config):
                if part.num_rows:
                    result = teacher.train_step(build(part))
                    left_out += 0 if result.finite else part.num_rows
            snapshots[number + 1] = teacher.snapshot()
            for version in [v for v in snapshots if v < number + 2 - lag - max(behinds)]:  # no later block asks for it
                del snapshots[version]
            advance(start + rows.num_rows)
    finally:
        teacher.close()
    known = _not_yet_learned(table, config)
    for logits in found.values():
        logits[~(known & np.isfinite(logits))] = np.nan
    return {behind: Logits(logits, left_out) for behind, logits in found.items()}


def _steps(rows: pa.Table, number: int, start: int, config: Config) -> Iterator[pa.Table]:
    """A block as the teacher's steps cut it."""
    partitions = config.kafka.examples.partitions
    portion = portion_of(Block(number, start, start + rows.num_rows - 1, rows, {}), partitions, range(partitions))
    at = cuts(portion.counts, config.teacher.batch_rows, rows.num_rows)
    ahead = np.cumsum(portion.counts) - portion.counts
    for first, stop in pairwise(at):
        yield pa.concat_tables([portion.rows.slice(ahead[p] + first[p], stop[p] - first[p]) for p in range(partitions)])


def _not_yet_learned(table: pa.Table, config: Config) -> np.ndarray:
    """(N, T): whether the teacher cannot have learned the row's label for the task, as augmentation decides it."""
    groups = config.rows.groups
    settled = pc.index_in(table["settlement"], pa.array([group.name for group in groups])).to_numpy()
    own = [next(g for g, group in enumerate(groups) if task in [t.name for t in group.tasks]) for task in config.tasks]
    return settled[:, None] <= np.array(own)[None, :]
