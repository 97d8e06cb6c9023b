"""Scorers: a replica of the teacher in this process, or ranks that hold its tables together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from exfm.features.batch import BatchBuilder
from exfm.models.growth.refit import stored_teacher
from exfm.models.scorer import TeacherScorer
from exfm.parallel.group import RankGroup
from exfm.snapshots.checkpoint import open_checkpoint
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.settings import Config
from pipelines.live.workers.augmentation.scoring_ranks import LeadingScorer


class Scorer(Protocol):
    """Interface of scorers for augmentation and its snapshots. `rows` counts those that were scored in this process."""

    rows: int

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        """Load a saved snapshot; returns its meta. Raises ModelError where it cannot be read: then nothing can be
        scored until another is loaded."""

    def score(self, rows: pa.RecordBatch) -> np.ndarray:
        """Logits (rows, T) float32."""

    def leave(self) -> None:
        """End the round, so that other ranks may report."""


class ReplicaScorer:
    """The whole teacher in this process."""

    def __init__(self, config: Config) -> None:
        self._build = BatchBuilder(config.features, config.tasks)
        self._made_with = made_with_teacher(config)
        self._scorer = TeacherScorer(config.teacher.model, config.features, config.tasks)
        self.rows = 0

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        stored = open_checkpoint(snapshot)
        self._scorer.load(stored_teacher(stored, self._made_with))
        return stored.meta

    def score(self, rows: pa.RecordBatch) -> np.ndarray:
        self.rows += rows.num_rows
        return self._scorer.score(self._build(rows))

    def leave(self) -> None:
        pass


def scorer_of(config: Config, group: RankGroup | None) -> Scorer:
    """The scorer of rank 0, or of the only process. A collective where there are more."""
    return ReplicaScorer(config) if group is None else LeadingScorer(config, group)
