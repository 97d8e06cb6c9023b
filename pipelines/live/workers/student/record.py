"""Record of a student's steps: live figures, predictions, and the age of the teacher's logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from torch import Tensor

from exfm.models.engine import STUDENT, Judged
from pipelines.core.config.sections import MetricsSettings
from pipelines.live.feeds.student import Cut
from pipelines.live.training.live_metrics import TaskMetrics
from pipelines.live.training.predictions import Predicted, PredictionLog, logged_columns, predictions_of

METRICS_EVERY_ROWS = 20_000


class StudentRecord:
    """Record of one student over its whole life; `state` and `meta` are stored in its checkpoints.

    Only the student's own rows are judged. `other_rows`: those of other verticals that it read to learn from them.
    `event_time_ms`: of the last row. `teacher_version`, `logit_age_s`: of the last logit; None before the first.
    """

    def __init__(
        self, tasks: Sequence[str], predictions: PredictionLog, *, weighted: bool, metrics: MetricsSettings
    ) -> None:
        self._tasks, self._weighted, self._metrics = tuple(tasks), weighted, metrics
        self.predictions = predictions
        self._logged = logged_columns(tasks, metrics.group_by, metrics.cluster_by)
        self._waiting: list[Predicted] = []
        self.figures = TaskMetrics(tasks)
        self.rows_without_logit = self.other_rows = self._rows_since_metrics = 0
        self.event_time_ms: int | None = None
        self.teacher_version: int | None = None
        self.logit_age_s: float | None = None

    def note(self, own: Cut, judged: Judged, *, others: int = 0) -> None:
        """Record one step over own rows, with the number of `others`."""
        rows, batch = own
        self.other_rows += others
        if not rows.num_rows:
            return
        student = judged.results[STUDENT]
        self.figures.judge(batch, student)
        self.rows_without_logit += int((batch.label_mask.numpy() > batch.teacher_mask.numpy()).any(1).sum())
        self.event_time_ms = rows["event_time_ms"][-1].as_py()
        version = rows["teacher_version"][-1].as_py()
        if version is not None:
            self.teacher_version = version
            oldest = rows["scored_at_ms"][-1].as_py() - rows["event_time_ms"][-1].as_py()
            self.logit_age_s = max(0.0, oldest / 1000)
        logits = {model: result.logits for model, result in judged.results.items()}
        weights = batch.label_weights.numpy() if self._weighted else None
        self._waiting.append(Predicted(rows.select(self._logged), logits, weights))
        self._rows_since_metrics += rows.num_rows

    def take_predictions(self) -> list[pa.RecordBatch]:
        """Take the predictions since the last call, for `predictions.write`. Columns are made once for all steps: of
        one step's they cost as much in calls alone."""
        if self._waiting:
            of, metrics = Predicted.joined(self._waiting), self._metrics
            logged = predictions_of(self._tasks, of, group_by=metrics.group_by, cluster_by=metrics.cluster_by)
            self.predictions.append(logged)
            self._waiting = []
        return self.predictions.take()

    @property
    def metrics_due(self) -> bool:
        """True if enough rows came for another line in MLflow; resets the count."""
        if self._rows_since_metrics < METRICS_EVERY_ROWS:
            return False
        self._rows_since_metrics = 0
        return True

    def values(self) -> dict[str, float | None]:
        """Metrics for MLflow."""
        return self.figures.values()

    def state(self) -> dict[str, Tensor]:
        return self.figures.state()

    def meta(self) -> dict[str, Any]:
        return {
            "rows_without_logit": self.rows_without_logit,
            "rows_since_metrics": self._rows_since_metrics,
            "other_rows": self.other_rows,
        }

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.figures.load(tensors)
        self.rows_without_logit = meta["rows_without_logit"]
        self._rows_since_metrics = meta["rows_since_metrics"]
        self.other_rows = meta["other_rows"]
