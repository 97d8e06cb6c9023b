"""A vertical student in its stream: an engine fed from the lake, judged on each batch before it learns it.

lake ──► feed (rows, cuts, tensors) ──► engine (student, twin) ──► record ──► keeper: predictions, checkpoint, export
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import Any

from exfm.errors import Diverged
from exfm.evaluate import IndexedBatch, progressive
from exfm.features.batch import Batch, BatchBuilder
from exfm.features.feature_cache import FeatureCache
from exfm.features.sampling import sample_negatives
from exfm.machine import set_threads
from exfm.models.engine import STUDENT, TWIN, StudentEngine
from exfm.models.growth.refit import MadeWith, fitted_student
from exfm.snapshots.checkpoint import Checkpoint
from exfm.snapshots.windows import whole_tensor
from pipelines.core.config.evolve import made_with_student
from pipelines.core.config.lineage import accepted_identities
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.feeds.own_rows import OwnRows
from pipelines.live.feeds.shared_cache import SharedCache
from pipelines.live.feeds.student import Cut, RowSource, StudentFeed
from pipelines.live.training.account import Account
from pipelines.live.training.live_metrics import FIGURES
from pipelines.live.training.predictions import PredictionLog
from pipelines.live.workers.checkpointer import Checkpointer
from pipelines.live.workers.report import Report
from pipelines.live.workers.student.champion_challenger import NAME as VERSIONS
from pipelines.live.workers.student.export import Exports
from pipelines.live.workers.student.increments import Increments
from pipelines.live.workers.student.provenance import Provenance
from pipelines.live.workers.student.record import StudentRecord
from pipelines.live.workers.student.versions import Versions
from pipelines.live.workers.student.warm import start_warm
from pipelines.live.workers.worker import Worker, seconds_since
from streaming.lake.source import LakeSource
from streaming.messages.source import EndOfStream
from streaming.schema import SAMPLE_WEIGHT

log = logging.getLogger(__name__)


class StudentWorker(Worker):
    kind = "student"

    def __init__(self, config: Config, settings: StudentSettings, run_dir: RunDir) -> None:
        super().__init__(f"student-{settings.name}")
        self._config, self._settings, self._run_dir = config, settings, run_dir
        # The last learned row is read again: the export is checked with it.
        self.checkpointer = Checkpointer(
            self.name, run_dir, self.watch, queue=config.resources.checkpoint_queue, rereads=1
        )
        self._own = config.own_rows(settings)
        self._position = self._saved_position = settings.first_seq - 1
        self._saved_rows = 0
        self._last_batch: Batch | None = None
        self.feed: StudentFeed | None = None
        self._shared_cache: SharedCache | None = None
        self.increments: Increments | None = None

    # --- beginning ---------------------------------------------------------------------------------------------

    def join(self, others: Collection[Worker]) -> None:
        students = [other for other in others if isinstance(other, StudentWorker) and other._shared_cache is not None]
        self._shared_cache = students[0]._shared_cache if students else None

    def open(self) -> None:
        grew = self.resume()
        if self._shared_cache is None:
            shared_bytes = self._config.resources.shared_rows_bytes
            self._shared_cache = SharedCache(self._run_dir.lake, self._config.rows, shared_bytes)
        self._lake = self._shared_cache.lake
        self.build = self._builder(self._shared_cache.stretches)
        self.record.predictions.open(self._position)
        if self._position >= self._settings.first_seq and not grew:
            self._export_again()
        self.checkpointer.put(self.versions.pending_write())  # what a crash kept from the ledger
        self.feed_from(self._lake_source())

    def resume(self) -> bool:
        """Resume engine, account and record from the last checkpoint. Returns whether they have grown since: an
        export of the same name then has the size they had."""
        config, settings = self._config, self._settings
        set_threads(config.resources.threads)
        self.engine = self._new_engine()
        folders = {STUDENT: self._run_dir.served(settings.name), TWIN: self._run_dir.served_twin(settings.name)}
        self._exports = Exports(self.engine, folders)
        self.build = self._builder()
        stored = self.checkpointer.open(self.engine, partial(accepted_identities, self._run_dir, config, self.name))
        if stored is None and settings.starts_from is not None:
            start_warm(self.engine, self._run_dir.roster.start(settings.name), config, settings)
            log.info("started with weights of %s", settings.starts_from)
        self.record = self._new_record()
        live = self._run_dir.live(settings.name)
        self.increments = Increments(
            self.engine.student, live, config.registry, self.watch, identity=config.identity(self.name)
        )
        meta = stored.meta if stored is not None else None
        self._provenance = Provenance(meta, meta["lake_seq"] if meta is not None else self._position)
        grew = stored is not None and self._load(stored)
        self.versions = Versions(config, settings, self._run_dir, self.engine)
        trial = {} if stored is None else {k: v for k, v in stored.tensors.items() if k.startswith(f"{VERSIONS}/")}
        self.versions.resume(meta, {name: whole_tensor(tensor) for name, tensor in trial.items()}, self._position)
        self.account = Account(
            self.engine.names,
            config.student_tasks(settings),
            most_in_a_row=config.resources.max_quarantined_in_a_row,
            grave_share=config.losses.fail_share,
            sampled=bool(settings.negative_rate),
            meta=meta,
        )
        self.checkpointer.write_quarantine(self.account.quarantine_state())
        return grew

    def _new_engine(self) -> StudentEngine:
        config, settings = self._config, self._settings
        return StudentEngine(
            settings.model,
            config.student_features(settings),
            config.student_tasks(settings),
            config.seed,
            twin=settings.twin,
            baselines=settings.baselines,
            learned_rows=settings.learned_rows,
            full_batch=settings.batch_rows,
            identity=config.identity(self.name),
            watch=self.watch,
        )

    def _new_record(self) -> StudentRecord:
        config, settings = self._config, self._settings
        return StudentRecord(
            config.student_tasks(settings),
            PredictionLog(self._run_dir.predictions(settings.name), config.resources.predictions_bytes),
            weighted=config.rows.weighted or bool(settings.negative_rate),
            metrics=config.metrics,
        )

    def _builder(self, stretches: FeatureCache | None = None) -> BatchBuilder:
        config, settings = self._config, self._settings
        features, tasks = config.student_features(settings), config.student_tasks(settings)
        return BatchBuilder(features, tasks, settings.negative_rate, feature_cache=stretches)

    def _load(self, stored: Checkpoint) -> bool:
        tensors, meta = stored.tensors, stored.meta
        now = made_with_student(self._config, self._settings)
        made_with = meta["made_with"]
        self.engine.load(tensors, partial(fitted_student, was=MadeWith.of_meta(made_with), now=now))
        self.record.load({k: whole_tensor(v) for k, v in tensors.items() if k.startswith(FIGURES)}, meta)
        self._position = self._saved_position = meta["lake_seq"]
        log.info("resumed after lake_seq %d", self._position)
        if grew := made_with != now.model_dump(mode="json"):
            self._provenance.grow(self._position, made_with)
        return grew

    def _lake_source(self) -> LakeSource:
        config, settings = self._config, self._settings
        wanted = config.settled_for(settings)
        own = OwnRows() if config.reads_all_rows(settings) else self._own
        return LakeSource(
            self._lake,
            batch_rows=config.resources.read_rows,
            columns=self._columns,
            verticals=set(own.verticals) or None,
            filter=wanted if own.condition is None else wanted & own.condition,
        )

    @property
    def _columns(self) -> list[str]:
        """The lake's columns that engine and record read, each once."""
        config, settings = self._config, self._settings
        columns = ["lake_seq", "block", "impression_id", "event_time_ms", "scored_at_ms", "teacher_version"]
        columns += config.student_features(settings).needs_columns()
        columns += [f"{kind}_{t}" for kind in ("label", "teacher_logit") for t in config.student_tasks(settings)]
        columns += [SAMPLE_WEIGHT] if config.rows.weighted else []
        columns += self._own.columns if config.reads_all_rows(settings) else []
        columns += [config.metrics.group_by] if config.metrics.group_by else []
        columns += config.metrics.cluster_by
        return list(dict.fromkeys(columns))

    def feed_from(self, source: RowSource) -> None:
        """Feed the engine from this source, starting at the last checkpoint."""
        config, settings = self._config, self._settings
        ahead, rates = config.resources.student_reads_ahead, settings.negative_rate
        tasks = config.student_tasks(settings)
        self._stop_reading()
        self.feed = StudentFeed(
            source,
            self.build,
            batches=settings.batches,
            own=self._own if config.reads_all_rows(settings) else None,
            label_rows=settings.label_rows,
            sampling=partial(sample_negatives, tasks=tasks, negative_rate=rates, seed=config.seed) if rates else None,
            ahead=ahead,
            watch=self.watch.parallel() if ahead else self.watch,
        )
        self.feed.end_at(self.orders.end_seq)
        self.feed.open(self._position, self.account.rows)

    # --- learning ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Learn one batch, if available."""
        self.checkpointer.check()
        if self.increments is not None:
            self.increments.publish()
        self.versions.read_decisions()
        assert self.feed is not None
        self.feed.end_at(self.orders.end_seq)
        try:
            with self.watch("wait for rows") if self.feed.threaded else nullcontext():
                cut = self.feed.read()
        except EndOfStream:
            return self.checkpointer.finish(self._save_last)
        if cut is None:
            self._pass_over()
            return False
        self.learn(cut)
        return True

    def learn(self, cut: Cut) -> None:
        """Judge and learn one batch, followed by a checkpoint if due."""
        own, every = cut.own_rows, self._settings.label_rows == "all"
        with self.watch("trial"):
            self.versions.judge(own)
        (settled,) = progressive(self.engine, [IndexedBatch(cut.batch, cut.batch.own_places)])
        judged = settled.judged
        assert judged is not None
        taught = cut.rows if every else own.rows
        with self.watch("metrics"):
            try:
                self.account.note(taught, judged, None if every else cut.batch.own_places)
            except Diverged:  # people find what was left out, though no checkpoint holds it
                self.checkpointer.write_quarantine(self.account.quarantine_state())
                raise
            self.record.note(own, judged, others=cut.rows.num_rows - own.rows.num_rows)
            if self.record.metrics_due:
                figures = {**self.record.values(), **self.engine.student.correction_figures()}
                self.log_metrics(sum(self.account.learned.rows.values()), figures)
        self._last_batch = cut.batch
        self._move_to(cut.rows["lake_seq"][-1].as_py())
        self.rows += cut.rows.num_rows
        self._saved_rows += taught.num_rows
        if self.increments is not None:
            self.increments.note(cut.batch, self._position, self.account.rows)
        with self.watch("trial"):
            self.versions.note(cut.rows)
        due = self.versions.decided or self.versions.due(self.account.rows)
        if due or self._saved_rows >= self._settings.checkpoint_every_rows:
            self.checkpoint()

    @property
    def position(self) -> int:
        """The last row before which every row was learned, or does not pass the filter. Rows that wait for their
        batch to fill come after it."""
        return self._position if self.feed is None else self.feed.passed(self._position)

    def _pass_over(self) -> None:
        """Move past rows of other verticals now and then; otherwise a student of a quiet vertical would keep the whole
        lake from its retention."""
        position = self.position
        if position > self._position and self.checkpointer.registered_long_ago:
            self._move_to(position)
            self.checkpoint()

    def _move_to(self, position: int) -> None:
        """Advance to `position`, and count what sampling left out up to there."""
        self._position = position
        if self.feed is not None:
            self.account.note_sampled_away(self.feed.left_out(position))

    def _save_last(self) -> None:
        if self._settings.negative_rate:  # count also what was left out behind the last row learned
            self._move_to(self.position)
        self.checkpoint()

    @property
    def done(self) -> bool:
        return self.checkpointer.done

    # --- what lasts --------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        if self._position == self._saved_position:
            return
        with self.watch("checkpoint"):
            name = version_name(self._position + 1)
            tensors = self.engine.state() | self.record.state()
            if self._last_batch is not None and self.versions.due(rows := self.account.rows):
                figures = self.record.figures.values()
                self.versions.publish(name, tensors, self._last_batch, rows, self._position, figures)
            tensors |= self.versions.state()
            meta = self._meta()
            predictions = self.record.take_predictions()
        export: Callable[[], None] = lambda: None  # nothing was learned since the last export  # noqa: E731
        if self._last_batch is not None:
            with self.watch("export"):
                export = self._exports.of(self._last_batch, name, tensors)
        before, register = partial(self.record.predictions.write, predictions), self.versions.pending_write()

        def after() -> None:
            export()
            register()

        self.checkpointer.commit(name, tensors, meta, kind="student-checkpoint", before=before, after=after)
        self._saved_position, self._saved_rows = self._position, 0

    def _meta(self) -> dict[str, Any]:
        made_with = made_with_student(self._config, self._settings)
        return {
            "config_hash": self.engine.identity,
            "lake_seq": self._position,
            "made_with": made_with.model_dump(mode="json"),
            **self._provenance.meta(),
            **self.account.meta(self.engine.trained_rows, self._position),
            **self.record.meta(),
            **self.versions.meta(),
        }

    def _export_again(self) -> None:
        """At the start: a crash may have come between the checkpoint and its export."""
        if self._position < self._lake.first_lake_seq:  # its rows were deleted while it was silent
            return
        rows = self._lake.read(self._position - 1, upto=self._position, columns=self._columns).table
        if rows.num_rows:
            name, tensors = version_name(self._position + 1), self.engine.state()
            with self.watch("export"):
                self.checkpointer.put(self._exports.of(self.build(rows), name, tensors))

    def close(self) -> None:
        self._stop_reading()
        try:
            if self.checkpointer.unfinished:
                self.checkpoint()
            if self.increments is not None:
                self.increments.close()
        finally:
            self.checkpointer.close()

    def abandon(self) -> None:
        self._stop_reading()
        if self.increments is not None:
            self.increments.abandon()
        self.checkpointer.abandon()

    def _stop_reading(self) -> None:
        if self.feed is not None:
            self.feed.close()

    # --- reporting ---------------------------------------------------------------------------------------------

    def describe(self, report: Report) -> None:
        self._lake.refresh()
        report.lake_seq = self.position
        reached = self._position if self.feed is None else self.feed.reached(self._position)
        report.lag_rows = max(0, self._lake.last_lake_seq - reached)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(self.record.event_time_ms)
        report.teacher_version = self.record.teacher_version
        report.logit_age_s = self.record.logit_age_s
        report.ne = self.record.figures.ne
        report.total_rows = self.account.rows
        if self._settings.label_rows == "own":  # the account has rows whose labels are learned
            report.total_rows += self.record.other_rows
        notes = [self.checkpointer.note, *self.account.notes, self.record.figures.heavy]
        notes += [] if self.increments is None else [self.increments.notice]
        report.note = "; ".join(filter(None, notes)) or None
        report.alarm = self.alarm
        report.versions = self.versions.as_json()
        report.counts = self.counts()
        self.checkpointer.renew()

    @property
    def alarm(self) -> str | None:
        """Refused export or version that a person has to look at."""
        return self.versions.alarm or self._exports.alarm

    def counts(self) -> dict[str, Any]:
        """Rows that student and twin learned and left out, for the summary."""
        counts = self.account.counts((STUDENT, TWIN), self.engine.trained_rows)
        counts |= {"rows_without_logit": self.record.rows_without_logit}
        counts |= {"other_rows": self.record.other_rows} if self._config.reads_all_rows(self._settings) else {}
        return counts
