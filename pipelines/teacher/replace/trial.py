"""Trial of a teacher: a candidate and the run's teacher on the same rows, by the rule that promotes students.

A row that the run's teacher scored with version v, the candidate scores with version v, too: both had learned the same
blocks. Where the lake has no logit, nothing is compared. Rows count from the one that is given; those before it the
candidate only learns, for whoever chose its settings may have looked at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from pipelines.core.config.settings import Config
from pipelines.live.rules.promoting import Decision
from pipelines.live.workers.student.champion_challenger import ChallengerTest
from streaming.position import NOTHING_YET


class _Answers:
    """Logits (B, T) of the rows at hand."""

    def __init__(self) -> None:
        self.logits = np.zeros((0, 0), np.float32)

    def score(self, batch: Batch) -> np.ndarray:
        return self.logits


class TeacherTrial:
    """Compares logits of a candidate with the logged ones; `lake_seq`: the last row that was compared or left out."""

    def __init__(self, config: Config) -> None:
        self._tasks: Sequence[str] = config.tasks
        self._settings = config.registry
        self._logged, self._candidate = _Answers(), _Answers()
        a_feature = FeatureSet(sparse=config.features.sparse[:1])  # of batches that are read for their labels
        self._labels = BatchBuilder(a_feature, config.tasks)
        self._test: ChallengerTest[_Answers] | None = None
        self.lake_seq = NOTHING_YET

    def compare(self, rows: pa.Table, logits: np.ndarray, honest: np.ndarray) -> None:
        """Take in a block with the candidate's logits (N, T); `honest`, (N, T): those whose labels it cannot have
        learned. The others are left out, like those that the run's teacher did not log."""
        if self._test is None:
            self._test = self._begun(int(rows["event_time_ms"].to_numpy().min()) - 1)
        logged = np.stack([rows[f"teacher_logit_{task}"].to_numpy() for task in self._tasks], axis=1)
        batch = self._labels(rows)
        batch = replace(batch, label_mask=batch.label_mask & torch.from_numpy(np.isfinite(logged) & honest))
        self._logged.logits, self._candidate.logits = logged, logits
        self._test.judge(rows, batch)

    def _begun(self, after_ms: int) -> ChallengerTest[_Answers]:
        return ChallengerTest(self._tasks, self._settings, self._logged, self._candidate, after_ms)

    @property
    def rows(self) -> int:
        return 0 if self._test is None else self._test.rows

    def decide(self) -> Decision | None:
        return None if self._test is None else self._test.decide()

    def evidence(self) -> dict[str, Any]:
        return {} if self._test is None else self._test.as_json()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and meta of a checkpoint."""
        test = self._test
        meta = {"lake_seq": self.lake_seq, "after_ms": None if test is None else test.fresh_after_ms}
        return {} if test is None else test.state(), meta

    def load(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Continue from a `state`. Raises ModelError where it was begun under other settings of `registry`."""
        self.lake_seq = meta["lake_seq"]
        if meta["after_ms"] is not None:
            self._test = self._begun(meta["after_ms"])
            self._test.load(tensors)
