"""A vertical student in its stream: reads its rows from the lake, is judged on each batch, then learns it.

lake --> batches (student_rows.py) --> student, and its twin without the teacher --> checkpoint, export
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from torch import Tensor

from exfm.data import Batch, BatchBuilder, sample_negatives
from exfm.growth import MadeWith, fitted_student
from exfm.models import ServedStudent, Student, check_logits, load_student, save_served
from exfm.step import StepResult
from exfm.tensors import Checkpoint, TensorSource, prune_checkpoints, whole_tensor
from pipelines.config import Config, made_with_student
from pipelines.config import Student as StudentSettings
from pipelines.run_dir import RunDir
from pipelines.training import Ahead, Learned, LeftOutBySampling, PredictionLog, TaskMetrics, predictions_of
from pipelines.workers import REGISTER_EVERY_S, ModelWorker, Report, seconds_since
from pipelines.workers.student.rows import Cut, StudentRows
from pipelines.workers.teacher import snapshot_name
from streaming.lake import LakeReader
from streaming.messages import EndOfStream
from streaming.position import NOTHING_YET
from streaming.schema import SAMPLE_WEIGHT

METRICS_EVERY_ROWS = 20_000
WAIT_S = 0.05
"""So long a step waits for a batch that a thread makes ready."""

log = logging.getLogger(__name__)

S = TypeVar("S")


class StudentWorker(ModelWorker):
    kind = "student"
    _rereads = 1  # its export is checked with it

    def __init__(self, config: Config, settings: StudentSettings, run_dir: RunDir) -> None:
        super().__init__(f"student-{settings.name}", config, run_dir)
        self._settings = settings
        self._tasks = config.student_tasks(settings)
        self._features = config.student_features(settings)
        self._made_with = made_with_student(config, settings)
        self._grew = False  # since its last checkpoint, whose export is of the size it had

    def open(self) -> None:
        config = self._config
        self.take_up()
        self._predictions = PredictionLog(self._run_dir.predictions(self._settings.name))
        self._predictions.open(self._seq)
        self._lake = LakeReader(self._run_dir.lake, config.rows)
        labels, logits = ([f"{p}_{t}" for t in self._tasks] for p in ("label", "teacher_logit"))
        position = ["lake_seq", "block", "impression_id", "event_time_ms", "scored_at_ms", "teacher_version"]
        weight = [SAMPLE_WEIGHT] if config.rows.weighted else []
        group = [config.metrics.group_by] if config.metrics.group_by else []
        columns = dict.fromkeys([*position, *self._features.needs_columns(), *labels, *logits, *weight, *group])
        self._columns = list(columns)
        groups = [g.name for g in config.rows.groups if any(t.name in self._tasks for t in g.tasks)]
        ahead, rate = config.resources.read_ahead, self._settings.negative_rate
        self._given = StudentRows(
            LakeReader(self._run_dir.lake, config.rows) if ahead else self._lake,  # each is for one thread
            self._build,
            self.watch.beside() if ahead else self.watch,
            batch_rows=self._settings.batch_rows,
            read_rows=config.resources.read_rows,
            columns=self._columns,
            verticals=set(self._settings.row_filter),
            settlements=groups,
            sampling=partial(sample_negatives, tasks=self._tasks, negative_rate=rate, seed=config.seed)
            if rate
            else None,
        )
        self._given.open(self._seq)
        if self._seq != NOTHING_YET and not self._grew:
            self._export_again()
        self._given.end_at(self.orders.end_seq)
        self._ahead = Ahead(self.name, self._given.next, ahead)

    def take_up(self) -> None:
        """Student and twin as their last checkpoint left them."""
        settings, seed = self._settings, self._config.seed
        self._student = Student(settings.model, self._features, self._tasks, seed)
        self._twin: Student | None = None
        rng = {"student/rng": self._student.random.state}
        if settings.twin:
            self._twin = Student(settings.model.without_teacher(), self._features, self._tasks, seed)
            rng["no_teacher/rng"] = self._twin.random.state
        self._served = ServedStudent(settings.model.trunk, settings.model.width, self._features, self._tasks)
        self._build = BatchBuilder(self._features, self._tasks, settings.negative_rate)
        self._learned = Learned(self._tasks)
        self._left_out = LeftOutBySampling(self._tasks)
        self._figures = TaskMetrics(self._tasks)
        self._without_logit = self._seen_rows = 0
        self._saved_rows = self._logged_rows = 0
        self._event_time_ms: int | None = None
        self._teacher_version: int | None = None
        self._logit_age_s: float | None = None
        self._last_batch: Batch | None = None
        stored = self._begin(rng)
        self._set_up_quarantine([name.removesuffix("/rng") for name in rng], self._tasks, stored)
        self._restore(stored)

    # --- learning ----------------------------------------------------------------------------------------------

    def _train(self) -> bool:
        """Learn one batch, if there is one."""
        self._given.end_at(self.orders.end_seq)
        try:
            cut = self._take()
        except EndOfStream:
            return self._end()
        if cut is None:
            self._pass_over()
            return False
        self._learn(cut.rows, cut.batch)
        return True

    def _take(self) -> Cut | None:
        if not self._ahead.threaded:
            return self._ahead.take()
        with self.watch("wait for rows"):
            return self._ahead.take(WAIT_S)

    def _passed(self) -> int:
        """Every row up to here was learned, or is not ours."""
        given = self._given.given_upto  # looked at first: what was given before that lies ready by now, or was learned
        return self._seq if self._ahead.ready else max(given, self._seq)

    def _pass_over(self) -> None:
        """Be done with rows that are not ours, now and then: or a student of a quiet vertical would keep the whole lake
        from its retention."""
        position = self._passed()
        if position <= self._seq or time.monotonic() - self._registered_at < REGISTER_EVERY_S:
            return
        self._move_to(position)
        self.checkpoint()

    def _move_to(self, position: int) -> None:
        """Be done with the rows up to here, those among them that sampling left out."""
        self._seq = position
        if self._settings.negative_rate and (lost := self._given.left_out.take(position)) is not None:
            self._left_out.add(lost)

    def _learn(self, rows: pa.Table, batch: Batch) -> None:
        with self.watch("train"):
            result = self._student.train_step(batch)
        twin = None
        if self._twin is not None:
            with self.watch("train twin"):
                twin = self._twin.train_step(batch)
        with self.watch("metrics"):
            self._judge(rows, batch, result, twin)
        self._last_batch = batch
        self._event_time_ms = rows["event_time_ms"][-1].as_py()
        self._move_to(rows["lake_seq"][-1].as_py())
        self.rows += rows.num_rows
        self._saved_rows += rows.num_rows
        if self._saved_rows >= self._settings.checkpoint_every_rows:
            self.checkpoint()

    def _judge(self, rows: pa.Table, batch: Batch, result: StepResult, twin: StepResult | None) -> None:
        self._seen_rows += rows.num_rows
        if result.finite:
            self._learned.add(rows)
        self._judge_step("student", rows, result)
        if twin is not None:
            self._judge_step("no_teacher", rows, twin)
        self._figures.judge(batch, result)
        self._without_logit += int((batch.label_mask & ~batch.teacher_mask).any(1).sum())
        version = rows["teacher_version"][-1].as_py()
        if version is not None:
            self._teacher_version = version
            oldest = rows["scored_at_ms"][-1].as_py() - rows["event_time_ms"][-1].as_py()
            self._logit_age_s = max(0.0, oldest / 1000)
        weighted = self._config.rows.weighted or bool(self._settings.negative_rate)
        group_by = self._config.metrics.group_by
        self._predictions.append(
            predictions_of(self._tasks, rows, batch, result, twin, weighted=weighted, group_by=group_by)
        )
        self._logged_rows += rows.num_rows
        if self._logged_rows >= METRICS_EVERY_ROWS:
            self._logged_rows = 0
            figures = {**self._figures.values(), **self._student.guidance()}
            self.log_metrics(sum(self._learned.rows.values()), figures)

    def _save_last(self) -> None:
        if self._settings.negative_rate:  # what was left out behind the last row learned is counted too
            self._move_to(self._passed())
        self.checkpoint()

    # --- what lasts --------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        if self._seq == self._saved_seq:
            return
        with self.watch("checkpoint"):
            name, tensors, meta = snapshot_name(self._seq + 1), self._tensors(), self._meta()
            predictions = self._predictions.take()
        parity = None if self._last_batch is None else self._parity(self._last_batch)

        def write() -> None:
            self._predictions.write(predictions)
            self._save_checkpoint(name, tensors, meta)
            if parity is not None:  # else nothing was learned since the export that is there
                self._save_export(name, tensors, *parity)
            self._finish_checkpoint()

        self._put(write)
        self._saved_seq = self._seq
        self._saved_rows = 0

    def _parity(self, batch: Batch) -> tuple[Batch, np.ndarray]:
        """A batch and what the student says of it now: what the export must say of it too."""
        with self.watch("export"):
            return batch, self._student.score(batch)

    def _save_export(self, name: str, tensors: Mapping[str, Tensor], batch: Batch, logits: np.ndarray) -> None:
        """In the writer's thread: publish what is served, trunk and serving heads. Refused where its predictions are
        not those of the student that it was copied from."""
        load_student(self._served, _under("student/", tensors))
        check_logits(logits, self._served, batch)
        root = self._run_dir.served(self._settings.name)
        save_served(self._served, root, name)
        prune_checkpoints(root, keep=2)

    def _export_again(self) -> None:
        """At the start: a crash may have come between the checkpoint and its export."""
        if self._seq < self._lake.first_lake_seq:  # it was silent for so long that its rows were let go
            return
        rows = self._lake.read(self._seq - 1, upto=self._seq, columns=self._columns).table
        if rows.num_rows:
            name, tensors, parity = snapshot_name(self._seq + 1), self._tensors(), self._parity(self._build(rows))
            self._put(lambda: self._save_export(name, tensors, *parity))

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"student/{k}": v for k, v in self._student.state().items()}
        if self._twin is not None:
            tensors |= {f"no_teacher/{k}": v for k, v in self._twin.state().items()}
        return tensors | self._figures.state()

    def _meta(self) -> dict[str, Any]:
        left_out = {"left_out_by_sampling": self._left_out.state()} if self._settings.negative_rate else {}
        return (
            self._checkpoint_meta(self._trained_rows(), self._seen_rows)
            | left_out
            | {
                "learned": self._learned.state(),
                "made_with": self._made_with.model_dump(mode="json"),
                "rows_without_logit": self._without_logit,
                "rows_since_metrics": self._logged_rows,
            }
        )

    def _restore(self, stored: Checkpoint | None) -> None:
        if stored is None:
            return
        tensors, meta = stored.tensors, stored.meta
        self._grew = meta.get("made_with") != self._made_with.model_dump(mode="json")
        self._student.load_state(self._fitted(_under("student/", tensors), meta))
        if self._twin is not None:
            self._twin.load_state(self._fitted(_under("no_teacher/", tensors), meta))
        self._seen_rows = meta["rows"]
        self._learned = Learned(self._tasks, meta["learned"])
        self._left_out = LeftOutBySampling(self._tasks, meta.get("left_out_by_sampling"))
        self._figures.load({k: whole_tensor(v) for k, v in tensors.items() if k.startswith("metrics/")})
        self._without_logit = meta["rows_without_logit"]
        self._logged_rows = meta.get("rows_since_metrics", 0)  # format 1 began to count anew
        log.info("resumed after lake_seq %d", self._seq)

    def _stop_reading(self) -> None:
        if (ahead := getattr(self, "_ahead", None)) is not None:
            ahead.close()

    def _fitted(self, tensors: Mapping[str, TensorSource], meta: Mapping[str, Any]) -> dict[str, TensorSource]:
        told = meta.get("made_with")  # a release before this did not say: it loads where nothing differs
        return dict(tensors) if told is None else fitted_student(tensors, MadeWith.told(told), self._made_with)

    def close(self) -> None:
        self._stop_reading()
        try:
            if not self._ending and self._writer is not None:
                self.checkpoint()
        finally:
            super().close()

    def abandon(self) -> None:
        self._stop_reading()
        super().abandon()

    def describe(self, report: Report) -> None:
        super().describe(report)
        self._lake.refresh()
        report.lake_seq = self._passed()
        report.lag_rows = max(0, self._lake.last_lake_seq - report.lake_seq)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(self._event_time_ms)
        report.teacher_version = self._teacher_version
        report.logit_age_s = self._logit_age_s
        report.ne = self._figures.ne

    def _trained_rows(self) -> dict[str, int]:
        models = {"student": self._student, "no_teacher": self._twin}
        return {name: model.rows for name, model in models.items() if model is not None}

    def _counts(self) -> dict[str, Any]:
        left_out = {name: quarantine.rows for name, quarantine in self._quarantines.items()}
        sampling = {"left_out_by_sampling": self._left_out.rows} if self._settings.negative_rate else {}
        return sampling | {
            "learned": self._learned.state(),
            "rows_without_logit": self._without_logit,
            "trained_rows": self._trained_rows()["student"],
            "quarantined_rows": left_out["student"],
            "quarantined_rows_no_teacher": left_out.get("no_teacher", 0),
        }


def _under(prefix: str, tensors: Mapping[str, S]) -> dict[str, S]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
