"""A vertical student in its stream: an engine fed from the lake, judged on each batch before it learns it.

lake ──► feed (rows, cuts, tensors) ──► engine (student, twin) ──► record ──► checkpointer: predictions, checkpoint,
                                                                              export

It may be several processes, its ranks: each holds the whole student and reads the lake by itself, and they share the
work of every step (exfm/models/student.py). This is rank 0, which also judges, saves and publishes; the others do as it
says (further_rank.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from exfm.errors import Diverged, ModelError
from exfm.evaluate import IndexedBatch, progressive
from exfm.features.batch import Batch, BatchBuilder
from exfm.machine import set_threads
from exfm.models.engine import STUDENT, TWIN
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.feeds.student import RowSource, StudentBatch, StudentFeed
from pipelines.live.training.forgetting import Forgetting, ToForget
from pipelines.live.training.freshness import figures_of
from pipelines.live.workers.block_spans import BlockSpans, blocks_in, position_in, spans_of
from pipelines.live.workers.checkpointer import Checkpointer
from pipelines.live.workers.ranks import ALONE, Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.rounds import Lead
from pipelines.live.workers.student.export import Exports
from pipelines.live.workers.student.further_rank import NO_BATCH, offer_of
from pipelines.live.workers.student.increments import Increments
from pipelines.live.workers.student.reading import SharedCache, batch_builder, lake_columns, lake_source, student_feed
from pipelines.live.workers.student.state import StudentState, resumed_student
from pipelines.live.workers.worker import Worker, seconds_since
from streaming.errors import StreamingError
from streaming.lake.logit_set import GrowingLogitSet
from streaming.lake.withdrawn import Withdrawn
from streaming.messages.source import EndOfStream

COMPARE_S = 30.0
"""How often ranks compare what they hold, beside each checkpoint."""


class StudentWorker(Worker):
    kind = "student"

    state: StudentState
    build: BatchBuilder
    _exports: Exports
    _saved_position: int

    def __init__(
        self,
        config: Config,
        settings: StudentSettings,
        run_dir: RunDir,
        at: Rendezvous = Rendezvous(),
        *,
        withdrawals: int | None = None,
    ) -> None:
        """`withdrawals`: how many of the lake it knows where it begins; None: all that there are."""
        super().__init__(f"student-{settings.name}")
        self._at, self._ranks = at, ALONE
        self._unagreed: StudentBatch | None = None
        self._compared_rows, self._compared_s = 0, time.monotonic()
        self._withdrawals = withdrawals
        self._config, self._settings, self._run_dir = config, settings, run_dir
        # The last learned row is read again: the export is checked with it.
        self.checkpointer = Checkpointer(
            self.name, run_dir, self.watch, queue=config.resources.checkpoint_queue, rereads=1
        )
        self._saved_rows = 0
        self._last_batch: Batch | None = None
        self.feed: StudentFeed | None = None
        self.increments: Increments | None = None
        self._shared_cache: SharedCache | None = None
        self._to_forget: list[ToForget] = []
        self._lake_id = ""
        self._spans: BlockSpans | None = None

    # --- beginning ---------------------------------------------------------------------------------------------

    def join(self, others: Collection[Worker]) -> None:
        caches = [other._shared_cache for other in others if isinstance(other, StudentWorker) and other._shared_cache]
        self._shared_cache = caches[0] if caches else None

    def open(self) -> None:
        self.resume()
        config, settings = self._config, self._settings
        if self._shared_cache is None:
            self._shared_cache = SharedCache(self._run_dir.lake, config.rows, config.resources.shared_rows_bytes)
        self._lake = self._shared_cache.lake
        self.build = batch_builder(config, settings, self._shared_cache.features)
        self.state.record.predictions.open(self.state.position)
        if self.state.position >= settings.first_seq and not self.state.grew:
            self._export_again()
        self.checkpointer.put(self.state.versions.pending_write())  # what a crash kept from the ledger
        source = lake_source(config, settings, self._lake, self._withdrawn)
        logits = source.logits
        honest = logits is None or isinstance(logits, GrowingLogitSet)
        self._leakage = None if logits is None or honest else logits.description.leakage
        self.feed_from(source)
        self._lake_id = self._lake.id
        self._spans = self._new_spans()
        self._ranks.barrier()

    def _new_spans(self) -> BlockSpans | None:
        return spans_of(self._config, self._run_dir, self.name, self._lake_id, self.watch)

    _leakage: str | None = None
    """The mark of figures where the teacher whose logits it learns from had learned the rows."""

    def resume(self) -> None:
        """Resume from the last checkpoint, without a feed."""
        config, settings, run_dir = self._config, self._settings, self._run_dir
        set_threads(config.resources.threads)
        self.build = batch_builder(config, settings)
        self._ranks = Ranks(self._at)
        self._lead = Lead(self._ranks.lines)
        self.state = resumed_student(
            config, settings, run_dir, self.checkpointer, self.watch, self._withdrawals, self._ranks
        )
        self._saved_position = self.state.position
        began, features = self.state.position + 1, config.student_features(settings)
        self._forgetting = Forgetting(run_dir, self.name, features, config.rows, began)
        self._withdrawn = Withdrawn(run_dir.lake.parent, self.state.provenance.withdrawals)
        engine, folder = self.state.engine, run_dir.live(settings.name)
        folders = {STUDENT: run_dir.served(settings.name), TWIN: run_dir.served_twin(settings.name)}
        self._exports = Exports(engine, folders)
        self.increments = Increments(engine.student, folder, config.registry, self.watch, identity=engine.identity)

    def feed_from(self, source: RowSource) -> None:
        """Feed the engine from this source, starting at the last checkpoint."""
        self._stop_reading()
        self.feed = student_feed(self._config, self._settings, source, self.build, self.watch)
        self.feed.end_at(self.orders.end_seq)
        self.feed.open(self.state.position, self.state.account.rows)

    # --- learning ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Learn one batch, if available."""
        self.checkpointer.check()
        if self.increments is not None:
            self.increments.publish()
        self.state.versions.read_decisions()
        assert self.feed is not None
        self.feed.end_at(self.orders.end_seq)
        try:
            with self.watch("wait for rows") if self.feed.threaded else nullcontext():
                batch = self._unagreed or self.feed.read()
        except EndOfStream:
            return self.checkpointer.finish(self._save_last)
        if batch is None:
            self._pass_over()
            return False
        self._unagreed = None if self._agree(batch) else batch
        if self._unagreed is not None:
            return False
        self.learn(batch)
        if self._spans is not None:
            self._spans.note(blocks_in(batch.rows))
        self.log_position = position_in(self._lake_id, self.state.position, batch.rows["block"][-1].as_py())
        return True

    def _agree(self, batch: StudentBatch) -> bool:
        """True if every rank has this batch, and learns it now, after what is to be forgotten. A collective.

        Raises StreamingError where a rank has another one."""
        if self._ranks.group is None:
            return True
        self._to_forget += self._forgetting.due(_first_seq(batch))
        self._lead.order({"do": "learn", "end_seq": self.orders.end_seq, "forget": self._to_forget})
        with self.watch("wait for ranks"):
            offers = self._ranks.all_gather(offer_of(batch)).tolist()
        if offers == offers[:1] * len(offers):
            return True
        if all(offer in (offers[0], NO_BATCH) for offer in offers):
            return False
        raise StreamingError(f"the ranks of {self.name} have read different rows (last lake_seq, rows): {offers}")

    def _compare(self) -> None:
        """Raise ModelError where ranks hold another student than this one. A collective."""
        self._compared_rows, self._compared_s = self.state.account.rows, time.monotonic()
        if self._ranks.group is not None:
            self._lead.order({"do": "compare"})
            sums = self._ranks.all_gather([self.state.engine.checksum()])[:, 0].tolist()
            if len(set(sums)) > 1:
                raise ModelError(
                    f"the ranks of {self.name} hold different weights (checksums {sums}): they have to run on one type "
                    "of processor, with one version of the software; or set ranks: 1"
                )

    def _go_on(self, mine: bool) -> bool:
        if not mine:
            if self._compared_rows != self.state.account.rows and time.monotonic() - self._compared_s >= COMPARE_S:
                self._compare()
            self._lead.leave()
        return mine

    def learn(self, batch: StudentBatch) -> None:
        """Judge and learn one batch, followed by a checkpoint if due."""
        state, own, every = self.state, batch.own_rows, self._settings.label_rows == "all"
        if self._ranks.group is None:
            self._to_forget += self._forgetting.due(_first_seq(batch))
        for table, ids in self._to_forget:
            state.engine.forget(table, torch.tensor(ids))
            if self.increments is not None:
                self.increments.forget(table, torch.tensor(ids))
        self._to_forget = []
        with self.watch("trial"):
            champion = state.versions.judge(own)
        (settled,) = progressive(state.engine, [IndexedBatch(batch.tensors, batch.tensors.own_places)])
        judged = settled.judged
        assert judged is not None
        taught = batch.rows if every else own.rows
        with self.watch("metrics"):
            try:
                state.account.note(taught, judged, None if every else batch.tensors.own_places)
            except Diverged:  # people find what was left out, though no checkpoint holds it
                self.checkpointer.write_quarantine(state.account.quarantine_state())
                raise
            state.record.note(own, judged, champion, others=batch.rows.num_rows - own.rows.num_rows)
            if state.record.metrics_due:
                figures = {**state.record.values(), **state.engine.student.correction_figures()}
                figures |= {} if state.record.behind is None else figures_of(state.record.behind.as_json())
                self.log_metrics(sum(state.account.learned.rows.values()), figures)
        self._last_batch = batch.tensors
        self._move_to(batch.rows["lake_seq"][-1].as_py())
        self.rows += batch.rows.num_rows
        self._saved_rows += taught.num_rows
        if self.increments is not None:
            self.increments.note(batch.tensors, state.position, state.account.rows)
        with self.watch("trial"):
            state.versions.note(batch.rows)
        due = state.versions.decided or state.versions.due(state.account.rows)
        if due or self._saved_rows >= self._settings.checkpoint_every_rows:
            self._compare()
            self.checkpoint()

    @property
    def position(self) -> int:
        """The last row before which every row was learned, or does not pass the filter. Rows that wait for their
        batch to fill come after it."""
        if self.feed is None or self._unagreed is not None:
            return self.state.position
        return self.feed.passed(self.state.position)

    def _pass_over(self) -> None:
        """Move past rows of other verticals now and then; otherwise a student of a quiet vertical would keep the whole
        lake from its retention."""
        position = self.position
        if position > self.state.position and self.checkpointer.registered_long_ago:
            self._move_to(position)
            self._compare()
            self.checkpoint()

    def _move_to(self, position: int) -> None:
        """Advance to `position`, and count what sampling left out up to there."""
        self.state.position = position
        if self.feed is not None:
            self.state.account.note_sampled_away(self.feed.left_out(position))

    def _save_last(self) -> None:
        self._compare()
        if self._settings.negative_rate:  # count also what was left out behind the last row learned
            self._move_to(self.position)
        self.checkpoint()

    @property
    def done(self) -> bool:
        return self.checkpointer.done

    # --- what lasts --------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        state = self.state
        if state.position == self._saved_position:
            return
        with self.watch("checkpoint"):
            name = version_name(state.position + 1)
            tensors = state.engine.state() | state.record.state()
            if self._last_batch is not None and state.versions.due(rows := state.account.rows):
                figures = state.record.figures.values()
                state.versions.publish(name, tensors, self._last_batch, rows, state.position, figures)
            tensors |= state.versions.state()
            meta = state.meta()
            predictions = state.record.take_predictions()
        export: Callable[[], None] = lambda: None  # nothing was learned since the last export  # noqa: E731
        if self._last_batch is not None:
            with self.watch("export"):
                export = self._exports.of(self._last_batch, name, tensors)
        before, register = partial(state.record.predictions.write, predictions), state.versions.pending_write()

        def after() -> None:
            export()
            register()

        self.checkpointer.commit(name, tensors, meta, kind="student-checkpoint", before=before, after=after)
        self._saved_position, self._saved_rows = state.position, 0

    def _export_again(self) -> None:
        """At the start: a crash may have come between the checkpoint and its export."""
        position = self.state.position
        if position < self._lake.first_lake_seq:  # its rows were deleted while it was silent
            return
        columns = lake_columns(self._config, self._settings)
        rows = self._lake.read(position - 1, upto=position, columns=columns).table
        if rows.num_rows:
            name, tensors = version_name(position + 1), self.state.engine.state()
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
            self._close_spans()
            self._ranks.close()

    def abandon(self) -> None:
        self._stop_reading()
        if self.increments is not None:
            self.increments.abandon()
        self.checkpointer.abandon()
        self._close_spans()
        self._ranks.close()

    def _close_spans(self) -> None:
        if self._spans is not None:
            self._spans.close()

    def _stop_reading(self) -> None:
        if self.feed is not None:
            self.feed.close()

    # --- reporting ---------------------------------------------------------------------------------------------

    def describe(self, report: Report) -> None:
        state, record = self.state, self.state.record
        self._lake.refresh()
        report.lake_seq = self.position
        feed = None if self._unagreed is not None else self.feed
        reached = state.position if feed is None else feed.reached(state.position)
        report.lag_rows = max(0, self._lake.last_lake_seq - reached)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(record.event_time_ms)
        report.teacher_version = record.teacher_version
        report.logit_age_s = record.logit_age_s
        report.freshness = None if record.behind is None else record.behind.as_json()
        report.ne, report.windows = record.figures.ne, record.figures.windows
        report.tables = state.engine.student.net.tables.figures()
        report.total_rows = state.account.rows
        if self._settings.label_rows == "own":  # the account has rows whose labels are learned
            report.total_rows += record.other_rows
        notes = [self.checkpointer.note, *state.account.notes, record.figures.heavy]
        notes += [] if self.increments is None else [self.increments.notice]
        notes.append(self._leakage)
        report.note = "; ".join(filter(None, notes)) or None
        report.alarm = self.alarm
        report.versions = state.versions.as_json()
        report.counts = self.counts()
        self.checkpointer.renew()

    @property
    def alarm(self) -> str | None:
        """Refused export or version that a person has to look at."""
        return self.state.versions.alarm or self._exports.alarm

    def counts(self) -> dict[str, Any]:
        """Rows that student and twin learned and left out, for the summary."""
        account, record = self.state.account, self.state.record
        counts = account.counts((STUDENT, TWIN), self.state.engine.trained_rows)
        counts |= {"rows_without_logit": record.rows_without_logit}
        counts |= {"other_rows": record.other_rows} if self._config.reads_all_rows(self._settings) else {}
        return counts


def _first_seq(batch: StudentBatch) -> int:
    first: int = batch.rows["lake_seq"][0].as_py()
    return first
