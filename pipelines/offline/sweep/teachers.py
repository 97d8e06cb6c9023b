"""A teacher in lockstep over settled rows, and the logits that its snapshots give them, as a run puts them in its lake.

    block k:  scored by the snapshot of blocks ≤ k − lag − behind, for each `behind`    then learned, step by step,
              unless the teacher is born later

The engine, its steps, the lag and the mask of honest logits are those of the pipeline with one rank, so the logits of
`behind` 0 are the lake's, bit for bit (tests/contracts/test_pipeline.py). One pass serves all ages of snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.data import BatchBuilder, FeatureSet
from exfm.models import Teacher, TeacherConfig, TeacherEngine, TeacherScorer
from pipelines.config import Config
from pipelines.feeds import Portion, portion_of
from pipelines.rules import lockstep_version
from pipelines.training import not_yet_learned
from streaming.delivery import Block


class Logits(NamedTuple):
    """The logits of one age of snapshots: (N, T) float32, NaN where the lake would hold none. `left_out`: rows of
    batches that were not finite, and not learned."""

    logits: np.ndarray
    left_out: int


def blocks_of(count: int, config: Config) -> np.ndarray:
    """The block of every row, (N,)."""
    return np.searchsorted(config.pace.blocks.ends(0, count), np.arange(count), side="right")


def versions_of(count: int, config: Config, behind: int) -> np.ndarray:
    """The version of the snapshot that scores every row, (N,)."""
    blocks = blocks_of(count, config)
    versions = [lockstep_version(block, config.pace.lag, behind) for block in range(int(blocks.max(initial=-1)) + 1)]
    return np.array(versions, np.int64)[blocks]


def lockstep_logits(
    config: Config,
    features: FeatureSet,
    model: TeacherConfig,
    table: pa.Table,
    *,
    behinds: Sequence[int],
    born: int = 0,
    advance: Callable[[int], None],
) -> dict[int, Logits]:
    """The logits of every row by snapshots of each age. A teacher that is `born` whole blocks after the stream begins
    learns no row before. `advance` is called with the number of rows done."""
    N, lag, birth = table.num_rows, config.pace.lag, born * config.pace.block_rows
    full = config.teacher.batch_rows
    teacher = Teacher(model, features, config.tasks, config.seed, batch_rows=full, full_batch=full)
    engine = TeacherEngine(teacher)
    scorer = TeacherScorer(model, features, config.tasks)
    build = BatchBuilder(features, config.tasks)
    found = {behind: np.full((N, len(config.tasks)), np.nan, np.float32) for behind in behinds}
    left_out = 0
    snapshots: dict[int, Any] = {0: engine.snapshot()}
    try:
        for number, (start, end) in enumerate(pairwise([0, *config.pace.blocks.ends(0, N)])):
            rows = table.slice(start, end - start)
            by_version: dict[int, list[int]] = {}
            for behind in behinds:
                by_version.setdefault(lockstep_version(number, lag, behind), []).append(behind)
            step = config.augmentation.score_rows
            batches = [(at, build(rows.slice(at, step))) for at in range(0, rows.num_rows, step)]
            for version, asked in by_version.items():
                scorer.load(snapshots[version])
                for at, batch in batches:
                    z = scorer.score(batch)
                    for behind in asked:
                        found[behind][start + at : start + at + len(z)] = z
            portion = _portion(rows, number, start - birth, config)
            for part in portion.steps(config.teacher.batches) if start >= birth else ():
                if part.num_rows:
                    judged = engine.step(build(part))
                    left_out += part.num_rows - judged.finite_rows
            snapshots[number + 1] = engine.snapshot()
            for version in [v for v in snapshots if v < number + 2 - lag - max(behinds)]:  # no later block asks for it
                del snapshots[version]
            advance(end)
    finally:
        engine.close()
    known = not_yet_learned(table, config.tasks, config.rows.groups)
    for logits in found.values():
        logits[~(known & np.isfinite(logits))] = np.nan
    return {behind: Logits(logits, left_out) for behind, logits in found.items()}


def _portion(rows: pa.Table, number: int, start: int, config: Config) -> Portion:
    """A block as a teacher of one rank is fed it."""
    partitions = config.kafka.examples.partitions
    return portion_of(Block(number, start, start + rows.num_rows - 1, rows, {}), partitions, range(partitions))
