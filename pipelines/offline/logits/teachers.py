"""A teacher in lockstep over settled rows, and the logits that its snapshots give them, as a run puts them in its lake.

    block k:  scored by the snapshot of blocks ≤ k − lag − behind, for each `behind`    then learned, step by step,
              unless the teacher is born later

The engine, its steps, the lag and the mask of honest logits are those of the pipeline with one rank, so the logits of
`behind` 0 are the lake's, bit for bit (tests/contracts/test_pipeline.py). One pass serves all ages of snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.data import BatchBuilder, FeatureSet
from exfm.models import Teacher, TeacherConfig, TeacherEngine, TeacherScorer
from pipelines.config import Config
from pipelines.feeds import Portion, Sliced, portion_of
from pipelines.offline import PIECE_ROWS, let_go, spilled
from pipelines.rules import lockstep_version
from pipelines.training import not_yet_learned
from streaming.delivery import Block


class Logits(NamedTuple):
    """The logits of one age of snapshots: (N, T) float32, NaN where the lake would hold none. `left_out`: rows of
    batches that were not finite, and not learned."""

    logits: np.ndarray
    left_out: int


def blocks_of(count: int, config: Config, first: int = 0) -> np.ndarray:
    """The block of each of the first `count` rows of a stream, from the row `first` on, (N,)."""
    return np.searchsorted(config.pace.blocks.ends(0, count), np.arange(first, count), side="right")


def versions_of(count: int, config: Config, behind: int, first: int = 0) -> np.ndarray:
    """The version of the snapshot that scores each of these rows, (N,)."""
    blocks = blocks_of(count, config, first)
    versions = [lockstep_version(block, config.pace.lag, behind) for block in range(int(blocks.max(initial=-1)) + 1)]
    return np.array(versions, np.int64)[blocks]


def lockstep_logits(
    config: Config,
    features: FeatureSet,
    model: TeacherConfig,
    stream: Sliced,
    *,
    behinds: Sequence[int],
    count: int | None = None,
    born: int = 0,
    folder: Path | None = None,
    advance: Callable[[int], None],
) -> dict[int, Logits]:
    """The logits of every row, or of the first `count`, by snapshots of each age. A teacher that is `born` whole blocks
    after the stream begins learns no row before. `advance` is called with the number of rows done. `folder`: where
    logits are kept; None: in memory."""
    N, lag, birth = stream.num_rows if count is None else count, config.pace.lag, born * config.pace.block_rows
    ends = _ends(stream, N, config)
    full = config.teacher.batch_rows
    teacher = Teacher(model, features, config.tasks, config.seed, batch_rows=full, full_batch=full)
    engine = TeacherEngine(teacher)
    scorer = TeacherScorer(model, features, config.tasks)
    build = BatchBuilder(features, config.tasks)
    found = {behind: spilled((N, len(config.tasks)), np.float32, folder, fill=np.nan) for behind in behinds}
    left_out = 0
    snapshots: dict[int, Any] = {0: engine.snapshot()}
    try:
        for number, (start, end) in enumerate(pairwise([0, *ends])):
            rows = stream.slice(start, end - start)
            known = not_yet_learned(rows, config.tasks, config.rows.groups)
            by_version: dict[int, list[int]] = {}
            for behind in behinds:
                by_version.setdefault(lockstep_version(number, lag, behind), []).append(behind)
            step = config.augmentation.score_rows
            batches = [(at, build(rows.slice(at, step))) for at in range(0, rows.num_rows, step)]
            for version, asked in by_version.items():
                scorer.load(snapshots[version])
                for at, batch in batches:
                    z = scorer.score(batch)
                    honest = np.where(known[at : at + len(z)] & np.isfinite(z), z, np.float32(np.nan))
                    for behind in asked:
                        found[behind][start + at : start + at + len(z)] = honest
            portion = _portion(rows, number, start - birth, config)
            for part in portion.steps(config.teacher.batches) if start >= birth else ():
                if part.num_rows:
                    judged = engine.step(build(part))
                    left_out += part.num_rows - judged.finite_rows
            snapshots[number + 1] = engine.snapshot()
            for version in [v for v in snapshots if v < number + 2 - lag - max(behinds)]:  # no later block asks for it
                del snapshots[version]
            for logits in found.values():
                let_go(logits)
            advance(end)
    finally:
        engine.close()
    return {behind: Logits(logits, left_out) for behind, logits in found.items()}


def _ends(stream: Sliced, count: int, config: Config) -> list[int]:
    """Where blocks end: as a lake has them, or where a run would cut this stream."""
    if "block" not in stream.slice(0, 0).schema.names:
        return config.pace.blocks.ends(0, count)
    ends: list[int] = []
    before = None
    for start in range(0, count, PIECE_ROWS):
        blocks = stream.slice(start, min(PIECE_ROWS, count - start))["block"].to_numpy()
        changes = np.flatnonzero(np.diff(blocks, prepend=blocks[0] if before is None else before))
        ends += (start + changes).tolist()
        before = blocks[-1]
    return [*ends, count]


def _portion(rows: pa.Table, number: int, start: int, config: Config) -> Portion:
    """A block as a teacher of one rank is fed it."""
    partitions = config.kafka.examples.partitions
    return portion_of(Block(number, start, start + rows.num_rows - 1, rows, {}), partitions, range(partitions))
