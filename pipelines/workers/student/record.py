"""What a student's worker writes down of every step: live figures, predictions, and how old the teacher's logits
are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from exfm.models import STUDENT, Judged
from pipelines.config import MetricsSettings
from pipelines.feeds import Cut
from pipelines.training import PredictionLog, TaskMetrics, predictions_of

METRICS_EVERY_ROWS = 20_000
FIGURES = "metrics"
"""The beginning of the names of a record's tensors in a checkpoint."""


class Record:
    """The record of one student over its whole life: `state` and `meta` travel in its checkpoints.

    Only the student's own rows are judged. `other_rows`: those of other verticals that it read to learn from them.
    `event_time_ms`: of the last row. `teacher_version`, `logit_age_s`: of the last logit; None before the first.
    """

    def __init__(
        self, tasks: Sequence[str], predictions: PredictionLog, *, weighted: bool, metrics: MetricsSettings
    ) -> None:
        self._tasks, self._weighted, self._metrics = tuple(tasks), weighted, metrics
        self.predictions = predictions
        self.figures = TaskMetrics(tasks)
        self.as_shown = TaskMetrics(tasks, f"{FIGURES}_as_shown")
        self.rows_without_logit = self.other_rows = self._rows_since_metrics = 0
        self.event_time_ms: int | None = None
        self.teacher_version: int | None = None
        self.logit_age_s: float | None = None

    def note(self, own: Cut, judged: Judged, *, others: int = 0) -> None:
        """One step, over these own rows and `others`."""
        rows, batch = own
        self.other_rows += others
        if not rows.num_rows:
            return
        student = judged.results[STUDENT]
        self.figures.judge(batch, student)
        if STUDENT in judged.as_shown:
            self.as_shown.judge(batch, student._replace(logits=judged.as_shown[STUDENT]))
        self.rows_without_logit += int((batch.label_mask & ~batch.teacher_mask).any(1).sum())
        self.event_time_ms = rows["event_time_ms"][-1].as_py()
        version = rows["teacher_version"][-1].as_py()
        if version is not None:
            self.teacher_version = version
            oldest = rows["scored_at_ms"][-1].as_py() - rows["event_time_ms"][-1].as_py()
            self.logit_age_s = max(0.0, oldest / 1000)
        logged = predictions_of(
            self._tasks,
            rows,
            batch,
            judged.results,
            weighted=self._weighted,
            group_by=self._metrics.group_by,
            cluster_by=self._metrics.cluster_by,
            as_shown=judged.as_shown,
        )
        self.predictions.append(logged)
        self._rows_since_metrics += rows.num_rows

    @property
    def metrics_due(self) -> bool:
        """Whether enough rows came for another line in MLflow; the count then starts again."""
        if self._rows_since_metrics < METRICS_EVERY_ROWS:
            return False
        self._rows_since_metrics = 0
        return True

    def values(self) -> dict[str, float | None]:
        """Everything worth a line in MLflow."""
        shown = {f"{name}_as_shown": value for name, value in self.as_shown.values().items() if value is not None}
        return self.figures.values() | shown

    def state(self) -> dict[str, Tensor]:
        return self.figures.state() | self.as_shown.state()

    def meta(self) -> dict[str, Any]:
        return {
            "rows_without_logit": self.rows_without_logit,
            "rows_since_metrics": self._rows_since_metrics,
            "other_rows": self.other_rows,
        }

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.figures.load(tensors)
        self.as_shown.load(tensors)
        self.rows_without_logit = meta["rows_without_logit"]
        self._rows_since_metrics = meta.get("rows_since_metrics", 0)  # format 1 did not store it
        self.other_rows = meta.get("other_rows", 0)  # there were none before
