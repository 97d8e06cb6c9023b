"""A student's state: the student, and what its checkpoint holds besides; resumed from the last checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from exfm.models.engine import Judged, StudentEngine
from exfm.models.growth.refit import MadeWith, fitted_student
from exfm.parallel.group import RankGroup
from exfm.parallel.parts import BatchParts
from exfm.snapshots.checkpoint import Checkpoint
from exfm.snapshots.windows import TensorSource, whole_tensor
from pipelines.core.config.evolve import made_with_student
from pipelines.core.config.identity import STUDENT as STUDENTS_WORKER
from pipelines.core.config.lineage import accepted_identities
from pipelines.core.config.sections import MetricsSettings
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.training.account import Account
from pipelines.live.training.freshness import PublishedVersions, TeacherBehind
from pipelines.live.training.live_metrics import FIGURES, TaskMetrics
from pipelines.live.training.machine import software
from pipelines.live.training.predictions import CHAMPION, Predicted, PredictionLog, logged_columns, predictions_of
from pipelines.live.workers.checkpointer import Checkpointer
from pipelines.live.workers.ranks import ALONE, Ranks
from pipelines.live.workers.stopwatch import Stopwatch
from pipelines.live.workers.student.champion_challenger import NAME as VERSIONS
from pipelines.live.workers.student.versions import Versions
from pipelines.live.workers.student.warm import start_warm
from streaming.lake.withdrawn import record_of

METRICS_EVERY_ROWS = 20_000
PROVENANCE = "past"

log = logging.getLogger(__name__)


@dataclass
class StudentState:
    """Student and bookkeeping, as one checkpoint holds them.

    position   the last row before which every row was learned, or passed over
    grew       the tables have grown since the last checkpoint: an export of the same name has the size they had
    """

    engine: StudentEngine
    account: Account
    record: StudentRecord
    versions: Versions
    provenance: Provenance
    made_with: MadeWith
    position: int
    grew: bool

    def meta(self) -> dict[str, Any]:
        """The meta of a checkpoint."""
        return {
            "config_hash": self.engine.identity,
            "lake_seq": self.position,
            "made_with": self.made_with.model_dump(mode="json"),
            **self.provenance.meta(),
            **self.account.meta(self.engine.trained_rows, self.position),
            **self.record.meta(),
            **self.versions.meta(),
        }


def resumed_student(
    config: Config,
    settings: StudentSettings,
    run_dir: RunDir,
    checkpointer: Checkpointer,
    watch: Stopwatch,
    withdrawals: int | None = None,
    ranks: Ranks = ALONE,
) -> StudentState:
    """Open the checkpointer and resume from its last checkpoint, with larger tables where the settings have grown.
    Without a checkpoint the student begins with its seed's weights, or with those that `starts_from` names, and knows
    the first `withdrawals` of the lake (None: all that there are). Tells the other `ranks` where they begin."""
    if withdrawals is None:
        withdrawals = len(record_of(run_dir.lake.parent))
    name, tasks, made_with = checkpointer.name, config.student_tasks(settings), made_with_student(config, settings)
    engine = engine_of(config, settings, watch, ranks.group, baselines=settings.baselines)
    record = StudentRecord(
        tasks,
        PredictionLog(run_dir.predictions(settings.name), config.resources.predictions_bytes),
        weighted=config.rows.weighted or bool(settings.negative_rate),
        metrics=config.metrics,
        versions=None if settings.logits is not None else PublishedVersions(run_dir.teacher_versions),
    )
    stored = checkpointer.open(engine, partial(accepted_identities, run_dir, config, name))
    meta = None if stored is None else stored.meta
    position = settings.first_seq - 1 if meta is None else meta["lake_seq"]
    provenance = Provenance(meta, position, withdrawals, settings.ranks)
    saved = None if meta is None else version_name(position + 1)
    ranks.broadcast_text(lambda: json.dumps({"checkpoint": saved, "withdrawals": provenance.withdrawals}))
    grew, trial = False, dict[str, Tensor]()
    begin(engine, stored, config, settings, run_dir)
    if stored is not None:
        was = stored.meta["made_with"]
        whole = {k: whole_tensor(v) for k, v in stored.tensors.items() if k.startswith((FIGURES, f"{VERSIONS}/"))}
        record.load({k: v for k, v in whole.items() if k.startswith(FIGURES)}, stored.meta)
        trial = {k: v for k, v in whole.items() if not k.startswith(FIGURES)}
        log.info("resumed after lake_seq %d", position)
        if grew := was != made_with.model_dump(mode="json"):
            provenance.grow(position, was)
    versions = Versions(config, settings, run_dir, engine)
    versions.resume(meta, trial, position)
    account = Account(
        engine.names,
        tasks,
        most_in_a_row=config.resources.max_quarantined_in_a_row,
        grave_share=config.losses.fail_share,
        sampled=bool(settings.negative_rate),
        meta=meta,
    )
    checkpointer.write_quarantine(account.quarantine_state())
    return StudentState(engine, account, record, versions, provenance, made_with, position, grew)


def engine_of(
    config: Config, settings: StudentSettings, watch: Stopwatch, group: RankGroup | None, *, baselines: bool
) -> StudentEngine:
    """The student before it has learned anything; of several ranks, if there is a group of them."""
    return StudentEngine(
        settings.model,
        config.student_features(settings),
        config.student_tasks(settings),
        config.seed,
        twin=settings.twin,
        baselines=baselines,
        learned_rows=settings.learned_rows,
        full_batch=settings.batch_rows,
        parts=BatchParts(settings.ranks, group),
        identity=config.identity(STUDENTS_WORKER + settings.name),
        watch=watch,
    )


def begin(
    engine: StudentEngine,
    stored: Checkpoint[TensorSource] | None,
    config: Config,
    settings: StudentSettings,
    run_dir: RunDir,
) -> None:
    """Load the checkpoint; without one, the weights that the student starts from, if it does."""
    if stored is not None:
        was, now = MadeWith.of_meta(stored.meta["made_with"]), made_with_student(config, settings)
        engine.load(stored.tensors, partial(fitted_student, was=was, now=now))
    elif settings.starts_from is not None:
        start_warm(engine, run_dir.roster.start(settings.name), config, settings)
        log.info("started with weights of %s", settings.starts_from)


class StudentRecord:
    """Record of one student over its whole life; `state` and `meta` are stored in its checkpoints.

    Only the student's own rows are judged. `other_rows`: those of other verticals that it read to learn from them.
    `event_time_ms`: of the last row. `teacher_version`, `logit_age_s`: of the last logit; None before the first.
    `behind`: how far the teacher was behind each row; None where its logits are not those that were logged.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        predictions: PredictionLog,
        *,
        weighted: bool,
        metrics: MetricsSettings,
        versions: PublishedVersions | None = None,
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
        self._versions = versions
        self.behind = None if versions is None else TeacherBehind(versions)

    def note(self, own: StudentBatch, judged: Judged, champion: np.ndarray | None = None, *, others: int = 0) -> None:
        """Record one step over own rows, with the number of `others`. `champion`: logits (B, T) of the version that is
        served; None where it was not asked for."""
        rows, batch = own
        self.other_rows += others
        if not rows.num_rows:
            return
        self.figures.judge(batch, judged.results, champion)
        self.rows_without_logit += int((batch.label_mask.numpy() > batch.teacher_mask.numpy()).any(1).sum())
        self.event_time_ms = rows["event_time_ms"][-1].as_py()
        version = rows["teacher_version"][-1].as_py()
        if version is not None:
            self.teacher_version = version
            oldest = rows["scored_at_ms"][-1].as_py() - rows["event_time_ms"][-1].as_py()
            self.logit_age_s = max(0.0, oldest / 1000)
        if self.behind is not None:
            places = rows.select(["teacher_version", "lake_seq", "event_time_ms"])
            places = places.filter(pc.is_valid(places["teacher_version"]))
            self.behind.note(*(column.to_numpy() for column in places.columns))
        logits = {model: result.logits for model, result in judged.results.items()}
        logits |= {} if champion is None else {CHAMPION: champion}
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
            "freshness": None if self.behind is None else self.behind.state(),
        }

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        self.figures.load(tensors)
        self.rows_without_logit = meta["rows_without_logit"]
        self._rows_since_metrics = meta["rows_since_metrics"]
        self.other_rows = meta["other_rows"]
        if self._versions is not None:
            self.behind = TeacherBehind(self._versions, meta.get("freshness"))


class Provenance:
    """Provenance of a student's bits beyond rows and settings, so that a replay which verifies the student grows it at
    the same rows. `learned_by`: versions and machine, each from behind a `lake_seq` on. `grown`: behind which
    `lake_seq` the tables grew, and what they were made with before. `withdrawals`: how many the lake had when it began.
    An entry of `learned_by` has the number of `ranks` where there were several. `rewound`: whether it was trained
    beside a run, without versions, before it took its place.

    >>> past = Provenance(None, position=-1)
    >>> past.grow(41, {"seed": 1})
    >>> past.meta()["past"]["grown"]
    [{'after': 41, 'was': {'seed': 1}}]
    >>> len(Provenance(past.meta(), position=99).learned_by)  # the same software goes on
    1
    """

    def __init__(self, meta: Mapping[str, Any] | None, position: int, withdrawals: int = 0, ranks: int = 1) -> None:
        """`meta`: of the checkpoint at `position`; None: the student begins there, with `withdrawals`."""
        stored: Mapping[str, Any] = {"learned_by": [], "grown": []} if not meta else meta[PROVENANCE]
        self.learned_by: list[dict[str, Any]] = list(stored["learned_by"])
        self.grown: list[dict[str, Any]] = list(stored["grown"])
        self.withdrawals: int = stored.get("withdrawals", 0) if meta else withdrawals
        self.rewound: bool = stored.get("rewound", False)
        entry: dict[str, Any] = software() | ({"ranks": ranks} if ranks > 1 else {})
        if not self.learned_by or {k: v for k, v in self.learned_by[-1].items() if k != "after"} != entry:
            self.learned_by.append({"after": position, **entry})

    def grow(self, position: int, was: Mapping[str, Any]) -> None:
        """Record that the tables grew at `position`; `was`: their earlier `made_with`."""
        self.grown.append({"after": position, "was": dict(was)})

    def meta(self) -> dict[str, Any]:
        past: dict[str, Any] = {"learned_by": self.learned_by, "grown": self.grown}
        past |= {"withdrawals": self.withdrawals} if self.withdrawals else {}
        return {PROVENANCE: past | ({"rewound": True} if self.rewound else {})}
