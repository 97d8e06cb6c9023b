"""What a student's worker writes down of every step: live figures, predictions, and how old the teacher's logits
are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from exfm.models import STUDENT, TWIN, Judged
from pipelines.feeds import Cut
from pipelines.training import PredictionLog, TaskMetrics, predictions_of

METRICS_EVERY_ROWS = 20_000


class Record:
    """The record of one student over its whole life: `state` and `meta` travel in its checkpoints.

    `event_time_ms`: of the last row. `teacher_version`, `logit_age_s`: of the last logit; None before the first.
    """

    def __init__(
        self, tasks: Sequence[str], predictions: PredictionLog, *, weighted: bool, group_by: str | None
    ) -> None:
        self._tasks, self._weighted, self._group_by = tuple(tasks), weighted, group_by
        self.predictions = predictions
        self.figures = TaskMetrics(tasks)
        self.rows_without_logit = self._rows_since_metrics = 0
        self.event_time_ms: int | None = None
        self.teacher_version: int | None = None
        self.logit_age_s: float | None = None

    def note(self, cut: Cut, judged: Judged) -> None:
        rows, batch = cut
        student = judged.results[STUDENT]
        self.figures.judge(batch, student)
        self.rows_without_logit += int((batch.label_mask & ~batch.teacher_mask).any(1).sum())
        self.event_time_ms = rows["event_time_ms"][-1].as_py()
        version = rows["teacher_version"][-1].as_py()
        if version is not None:
            self.teacher_version = version
            oldest = rows["scored_at_ms"][-1].as_py() - rows["event_time_ms"][-1].as_py()
            self.logit_age_s = max(0.0, oldest / 1000)
        twin = judged.results.get(TWIN)
        self.predictions.append(
            predictions_of(self._tasks, rows, batch, student, twin, weighted=self._weighted, group_by=self._group_by)
        )
        self._rows_since_metrics += rows.num_rows

    @property
    def metrics_due(self) -> bool:
        """Whether enough rows came for another line in MLflow; the count then starts again."""
        if self._rows_since_metrics < METRICS_EVERY_ROWS:
            return False
        self._rows_since_metrics = 0
        return True

    def state(self) -> dict[str, Tensor]:
        return self.figures.state()

    def meta(self) -> dict[str, Any]:
        return {"rows_without_logit": self.rows_without_logit, "rows_since_metrics": self._rows_since_metrics}

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.figures.load(tensors)
        self.rows_without_logit = meta["rows_without_logit"]
        self._rows_since_metrics = meta.get("rows_since_metrics", 0)  # format 1 did not store it
