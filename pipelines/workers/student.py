"""A vertical student in its stream: reads its rows from the lake, is judged on each batch, then learns it.

    lake --(verticals, tasks)--> batches cut at B rows or a block's end --> student, and its twin without the teacher

A batch ends after `batch_rows` rows that pass the filter, or at the end of a block, whichever is first. Blocks are a
column of the lake, so the cuts are the same in every replay.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from exfm.batch import Batch, BatchBuilder
from exfm.checkpoint import prune, save
from exfm.serving import check_parity, save_served
from exfm.step import StepResult
from exfm.student import Student
from exfm.threads import set_threads
from pipelines.config import Config
from pipelines.config import Student as StudentSettings
from pipelines.layout import RunDir
from pipelines.learned import Learned
from pipelines.predictions import PredictionLog
from pipelines.resume import last_checkpoint
from pipelines.task_metrics import TaskMetrics
from pipelines.workers.base import Report, Worker, seconds_since
from pipelines.workers.teacher import snapshot_name
from streaming.lake_reader import LakeReader
from streaming.position import NOTHING_YET

READ_ROWS = 32_768  # matching rows taken from the lake at a time
METRICS_EVERY_ROWS = 20_000

log = logging.getLogger(__name__)


class StudentWorker(Worker):
    kind = "student"

    def __init__(self, config: Config, settings: StudentSettings, run_dir: RunDir) -> None:
        super().__init__(f"student-{settings.name}")
        self._config = config
        self._settings = settings
        self._run_dir = run_dir
        self._done = False

    def open(self) -> None:
        config, settings = self._config, self._settings
        set_threads(config.resources.threads)
        self._tasks = config.student_tasks(settings)
        features = config.student_features(settings)
        self._student = Student(settings.model, features, self._tasks, config.seed)
        self._twin = (
            Student(settings.model.without_teacher(), features, self._tasks, config.seed) if settings.twin else None
        )
        self._build = BatchBuilder(features, self._tasks)
        self._learned = Learned(self._tasks)
        self._figures = TaskMetrics(self._tasks)
        self._without_logit = self._quarantined = self._quarantined_twin = 0
        self._event_time_ms: int | None = None
        self._seq = NOTHING_YET  # the last row learned, or passed over because it is not ours
        self._read_upto = NOTHING_YET
        self._saved_rows = self._logged_rows = 0
        self._teacher_version: int | None = None
        self._logit_age_s: float | None = None
        self._last_rows: pa.Table | None = None
        self._restore()
        self._predictions = PredictionLog(self._run_dir.predictions(settings.name))
        self._predictions.open(self._seq)
        self._lake = LakeReader(self._run_dir.lake, config.rows)
        labels, logits = ([f"{p}_{t}" for t in self._tasks] for p in ("label", "teacher_logit"))
        position = ["lake_seq", "block", "impression_id", "event_time_ms", "scored_at_ms", "teacher_version"]
        weight = [column.name for column in config.rows.columns if column.name == "sample_weight"]
        columns = dict.fromkeys([*position, *features.needs_columns(), *labels, *logits, *weight])
        self._columns = list(columns)
        groups = [g.name for g in config.rows.groups if any(t.name in self._tasks for t in g.tasks)]
        self._filter = pc.field("settlement").isin(groups)
        self._rows = self._lake.read(upto=NOTHING_YET, columns=self._columns).table

    # --- learning ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Learn one batch, or read more rows."""
        with self.watch("cut"):
            count = self._next_batch_rows()
        if count:
            self._learn(self._rows.slice(0, count))
            self._rows = self._rows.slice(count)
            return True
        if self.orders.end_seq is not None and self._read_upto >= self.orders.end_seq:
            self._end()
            return True
        with self.watch("read"):
            return self._read_more()

    def _next_batch_rows(self) -> int:
        """How many of the rows at hand make the next batch; 0 when that is not known yet."""
        if not self._rows.num_rows:
            return 0
        head = self._rows["block"].slice(0, self._settings.batch_rows + 1).to_numpy()
        same_block = int(np.searchsorted(head, head[0], side="right"))
        if same_block >= self._settings.batch_rows:
            return self._settings.batch_rows
        # Commits hold whole blocks: what was read up to the lake's end ends with a block.
        block_is_whole = same_block < len(head) or self._read_upto >= self._lake.last_lake_seq
        return same_block if block_is_whole else 0

    def _read_more(self) -> bool:
        self._lake.refresh()
        if self._read_upto >= self._lake.last_lake_seq:
            return False
        verticals = set(self._settings.row_filter)
        read = self._lake.read(
            self._read_upto, limit_rows=READ_ROWS, columns=self._columns, verticals=verticals, filter=self._filter
        )
        self._rows = pa.concat_tables([self._rows, read.table]).combine_chunks()
        self._read_upto = read.complete_upto
        return True

    def _learn(self, rows: pa.Table) -> None:
        with self.watch("batch"):
            batch = self._build(rows)
        with self.watch("train"):
            result = self._student.train_step(batch)
        twin = None
        if self._twin is not None:
            with self.watch("train twin"):
                twin = self._twin.train_step(batch)
        with self.watch("metrics"):
            self._judge(rows, batch, result, twin)
        self._last_rows = rows
        self._event_time_ms = rows["event_time_ms"][-1].as_py()
        self._seq = rows["lake_seq"][-1].as_py()
        self.rows += rows.num_rows
        self._saved_rows += rows.num_rows
        if self._saved_rows >= self._settings.checkpoint_every_rows:
            self.checkpoint()

    def _judge(self, rows: pa.Table, batch: Batch, result: StepResult, twin: StepResult | None) -> None:
        if result.finite:
            self._learned.add(rows)
        else:
            self._quarantined += rows.num_rows
            log.error("loss or gradient not finite: the batch up to lake_seq %d is left out", rows["lake_seq"][-1])
        if twin is not None and not twin.finite:
            self._quarantined_twin += rows.num_rows
            log.error(
                "the twin's loss or gradient is not finite: it leaves out the batch up to %s", rows["lake_seq"][-1]
            )
        self._figures.judge(batch, result)
        self._without_logit += int((batch.label_mask & ~batch.teacher_mask).any(1).sum())
        version = rows["teacher_version"][-1].as_py()
        if version is not None:
            self._teacher_version = version
            oldest = rows["scored_at_ms"][-1].as_py() - rows["event_time_ms"][-1].as_py()
            self._logit_age_s = max(0.0, oldest / 1000)
        self._predictions.append(_predictions(self._tasks, rows, result, twin))
        self._logged_rows += rows.num_rows
        if self._logged_rows >= METRICS_EVERY_ROWS:
            self._logged_rows = 0
            self.log_metrics(sum(self._learned.rows.values()), self._figures.values())

    def _end(self) -> None:
        self.checkpoint()
        self._done = True

    @property
    def done(self) -> bool:
        return self._done

    # --- what lasts --------------------------------------------------------------------------------------------

    def export(self) -> None:
        """Publish what is served: trunk and serving heads. Refused when its predictions differ from the student's."""
        with self.watch("export"):
            served = self._student.export()
            check_parity(self._student, served, self._build(self._rows_learned_last()))
            root = self._run_dir.served(self._settings.name)
            save_served(served, root, snapshot_name(self._seq + 1))
            prune(root, keep=2)

    def _rows_learned_last(self) -> pa.Table:
        """The last batch; after a restart, the row it ended with."""
        if self._last_rows is not None:
            return self._last_rows
        return self._lake.read(self._seq - 1, upto=self._seq, columns=self._columns).table

    def checkpoint(self) -> None:
        if self._seq == NOTHING_YET:
            return
        with self.watch("checkpoint"):
            self._predictions.flush()
            root = self._run_dir.checkpoints(self.name)
            tensors = {f"student/{k}": v for k, v in self._student.state().items()}
            if self._twin is not None:
                tensors |= {f"no_teacher/{k}": v for k, v in self._twin.state().items()}
            tensors |= self._figures.state()
            save(root, snapshot_name(self._seq + 1), tensors, self._meta(), kind="student-checkpoint")
            prune(root, keep=2)
        self.export()
        self._saved_rows = 0

    def _meta(self) -> dict[str, Any]:
        return {
            "config_hash": self._config.hash,
            "lake_seq": self._seq,
            "learned": self._learned.state(),
            "rows_without_logit": self._without_logit,
            "quarantined_rows": self._quarantined,
        }

    def _restore(self) -> None:
        stored = last_checkpoint(self._run_dir.checkpoints(self.name), self._config.hash)
        if stored is None:
            return
        tensors, meta = stored.tensors, stored.meta
        self._student.load_state(_under("student/", tensors))
        if self._twin is not None:
            self._twin.load_state(_under("no_teacher/", tensors))
        self._seq = self._read_upto = meta["lake_seq"]
        self._learned = Learned(self._tasks, meta["learned"])
        self._figures.load(tensors)
        self._without_logit, self._quarantined = meta["rows_without_logit"], meta["quarantined_rows"]
        log.info("resumed after lake_seq %d", self._seq)

    def close(self) -> None:
        if not self._done:
            self.checkpoint()

    def describe(self, report: Report) -> None:
        self._lake.refresh()
        caught_up = not self._rows.num_rows and self._read_upto >= self._lake.last_lake_seq
        report.lake_seq = self._read_upto if caught_up else self._seq
        report.lag_rows = max(0, self._lake.last_lake_seq - report.lake_seq)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(self._event_time_ms)
        report.teacher_version = self._teacher_version
        report.logit_age_s = self._logit_age_s
        report.ne = self._figures.ne
        report.counts = {
            "learned": self._learned.state(),
            "rows_without_logit": self._without_logit,
            "quarantined_rows": self._quarantined,
            "quarantined_rows_no_teacher": self._quarantined_twin,
        }


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _predictions(tasks: tuple[str, ...], rows: pa.Table, result: StepResult, twin: StepResult | None) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    for name in ("lake_seq", "impression_id", "event_time_ms"):
        columns[name] = rows[name].combine_chunks()
    for index, task in enumerate(tasks):
        columns[f"label_{task}"] = rows[f"label_{task}"].combine_chunks()
        columns[f"student_{task}"] = pa.array(result.logits[:, index])
        if twin is not None:
            columns[f"no_teacher_{task}"] = pa.array(twin.logits[:, index])
        columns[f"teacher_{task}"] = rows[f"teacher_logit_{task}"].combine_chunks()
    return pa.record_batch(columns)
