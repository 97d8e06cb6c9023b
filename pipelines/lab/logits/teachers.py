"""A teacher in lockstep over settled rows, and its snapshots' logits as a run would log them.

    block k:  scored by the snapshot of blocks ≤ k − lag − behind, for each `behind`,   then learned, step by step,
              if there is one that has learned anything                                 unless the teacher is born later

The engine, its steps, the bits of its snapshots, the lag and the mask of honest logits are those of the pipeline with
one rank, so the logits of `behind` 0 are the lake's, bit for bit (tests/contracts/test_pipeline.py). One pass serves
all ages of snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.representation import SCALE_BYTES, packed
from exfm.models.engine import TeacherEngine
from exfm.models.scorer import TeacherAnswer
from exfm.models.teacher_config import TeacherConfig
from exfm.snapshots.quantised_state import as_read
from pipelines.core.config.settings import Config
from pipelines.lab.mapped import PIECE_ROWS, mapped_array, release_pages
from pipelines.live.feeds.table import Sliced
from pipelines.live.feeds.teacher import BlockShare, share_of
from pipelines.live.rules.scoring_snapshot import lockstep_version
from pipelines.live.training.unseen_labels import not_yet_learned
from pipelines.live.workers.teacher.initial_state import initial_state
from streaming.delivery.reader import Block

if TYPE_CHECKING:
    from exfm.models.scorer import TeacherScorer


class Logits(NamedTuple):
    """Answers of snapshots of one age: logits (N, T) float32, NaN where the lake would hold none, and, if the teacher
    has a representation, its cells (N, 4 + k) uint8 (exfm/features/representation.py). `left_out`: rows of batches that
    were not finite, and not learned."""

    logits: np.ndarray
    cells: np.ndarray | None
    left_out: int


def blocks_of(count: int, config: Config, first: int = 0) -> np.ndarray:
    """The block of each of the first `count` rows of a stream, from the row `first` on, (N,)."""
    return np.searchsorted(config.pace.blocks.ends(0, count), np.arange(first, count), side="right")


def versions_of(count: int, config: Config, behind: int = 0, born: int = 0, first: int = 0) -> pa.Array:
    """The version of the snapshot that scores each of these rows, int64 (N,); null where none does."""
    ends = [0, *config.pace.blocks.ends(0, count)]
    unlearned = sum(start < _birth(born, config) for start in ends[:-1])
    earliest = 1 if born else config.teacher.first_version
    versions = [lockstep_version(block, config.pace.lag, behind, earliest) for block in range(len(ends) - 1)]
    least = unlearned + 1 if born else config.teacher.first_version
    trained = pa.array([v if v is not None and v >= least else None for v in versions], pa.int64())
    return trained.take(pa.array(blocks_of(count, config, first)))


def _birth(born: int, config: Config) -> int:
    """The first row that a teacher learns."""
    return born * config.pace.block_rows


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
    """The logits of every row, or of the first `count`, by snapshots of each age in `behinds`.

    born     whole blocks at the beginning of the stream that the teacher does not learn
    folder   where logits are kept; None: in memory
    advance  is called with the number of rows done
    """
    from exfm.models.scorer import TeacherScorer
    from exfm.models.teacher import Teacher

    N, birth = stream.num_rows if count is None else count, _birth(born, config)
    full = config.teacher.batch_rows
    teacher = Teacher(model, features, config.tasks, config.seed, batch_rows=full, full_batch=full)
    engine, build = TeacherEngine(teacher), BatchBuilder(features, config.tasks)
    snapshots = _Snapshots(config, TeacherScorer(model, features, config.tasks), build, behinds)
    by_age = {behind: mapped_array((N, len(config.tasks)), np.float32, folder, fill=np.nan) for behind in behinds}
    cells: dict[int, np.ndarray] = {}
    if model.representation is not None:
        width = SCALE_BYTES + model.representation
        cells = {behind: mapped_array((N, width), np.uint8, folder) for behind in behinds}
    left_out = 0
    if (begun := config.teacher.init_from) is not None and _is_own(config, model, features) and not born:
        engine.load(initial_state(config, begun))
        snapshots.begin(engine, begun.learned_upto_ms)
    try:
        for number, (start, end) in enumerate(pairwise([0, *block_ends(stream, N, config)])):
            rows = stream.slice(start, end - start)
            for behind, scored in snapshots.score(number, rows).items():
                by_age[behind][start:end] = scored.logits
                release_pages(by_age[behind])
                if scored.representation is not None:
                    cells[behind][start:end] = packed(scored.representation)
                    release_pages(cells[behind])
            if start >= birth:
                left_out += _learn(engine, build, block_share(rows, number, start - birth, config), config)
                snapshots.add(number + 1, engine)
            advance(end)
    finally:
        engine.close()
    return {behind: Logits(logits, cells.get(behind), left_out) for behind, logits in by_age.items()}


def _is_own(config: Config, model: TeacherConfig, features: FeatureSet) -> bool:
    """True if these are the model and features of the config's teacher, not those of another one in a what-if."""
    return model == config.teacher.model and features == config.teacher_features


class _Snapshots:
    """The snapshots of a teacher that blocks to come are still scored by. Version v has learned the blocks before v."""

    def __init__(self, config: Config, scorer: TeacherScorer, build: BatchBuilder, behinds: Sequence[int]) -> None:
        self._config, self._scorer, self._build, self._behinds = config, scorer, build, behinds
        self._held: dict[int, Any] = {}
        self._first = 1
        self._learned_upto_ms: int | None = None

    def begin(self, engine: TeacherEngine, learned_upto_ms: int) -> None:
        """Take the state of a teacher that begins trained, as version 0."""
        self._first, self._learned_upto_ms = 0, learned_upto_ms
        self.add(0, engine)

    def add(self, version: int, engine: TeacherEngine) -> None:
        """Take a snapshot, and drop those that no block from `version` on is scored by."""
        self._held[version] = as_read(engine.snapshot(), self._config.teacher.publish_bits)
        oldest = version + 1 - self._config.pace.lag - max(self._behinds)
        self._held = {v: snapshot for v, snapshot in self._held.items() if v >= oldest}

    def score(self, block: int, rows: pa.Table) -> dict[int, TeacherAnswer]:
        """Answers for a block's rows by each of `behinds`; logits are NaN where the lake would hold none, and so is the
        representation of rows without any."""
        config, step = self._config, self._config.augmentation.score_rows
        honest = not_yet_learned(rows, config.tasks, config.rows.groups, self._learned_upto_ms)
        batches = [self._build(rows.slice(at, step)) for at in range(0, max(1, rows.num_rows), step)]
        versions = {behind: lockstep_version(block, config.pace.lag, behind, self._first) for behind in self._behinds}
        nothing = TeacherAnswer(np.full(honest.shape, np.nan, np.float32), None)
        by_version = dict.fromkeys(versions.values(), nothing)
        for version in self._held.keys() & by_version.keys():  # the others have learned nothing
            self._scorer.load(self._held[version])
            z, r = TeacherAnswer.together([self._scorer.answer(batch) for batch in batches])
            z = np.where(honest & np.isfinite(z), z, np.float32(np.nan))
            if r is not None:
                r = np.where(np.isfinite(z).any(axis=1, keepdims=True), r, np.float32(np.nan))
            by_version[version] = TeacherAnswer(z, r)
        return {behind: by_version[version] for behind, version in versions.items()}


def _learn(engine: TeacherEngine, build: BatchBuilder, share: BlockShare, config: Config) -> int:
    """Learn a block, step by step; returns the rows that were not learned since they were not finite."""
    left_out = 0
    for rows in share.steps(config.teacher.batches):
        if rows.num_rows:
            left_out += rows.num_rows - engine.step(build(rows)).finite_rows
    return left_out


def block_ends(stream: Sliced, count: int, config: Config) -> list[int]:
    """Ends of blocks: as a lake has them, or where a run would cut this stream."""
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


def block_share(rows: pa.Table, number: int, start: int, config: Config) -> BlockShare:
    """A block as a teacher of one rank is fed it."""
    partitions = config.kafka.examples.partitions
    return share_of(Block(number, start, start + rows.num_rows - 1, rows, {}), partitions, range(partitions))
