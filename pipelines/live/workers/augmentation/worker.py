"""The data augmentation service: settled rows, scored by a teacher snapshot, into the lake and on to the teacher.

    topics ─► SettledFeed (decode, merge, join labels) ─► OpenBlock ─► score, augment ─► BlockCommit

A block is the unit of everything: one snapshot version scores it, one lake commit stores it together with the positions
it covers, and it is published to the examples topic after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from exfm.machine import keep_memory, set_threads
from pipelines.core.config.kept_columns import keep_columns, with_kept_columns
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.place import original_of
from pipelines.live.rules.scoring_snapshot import Score, Wait, WithoutTeacher, lockstep_version, snapshot_for
from pipelines.live.workers.augmentation.augment import augment
from pipelines.live.workers.augmentation.clock import SteadyClock
from pipelines.live.workers.augmentation.commit import BlockCommit, states_folder
from pipelines.live.workers.augmentation.feed import SettledFeed, intake_of
from pipelines.live.workers.augmentation.open_block import OpenBlock
from pipelines.live.workers.augmentation.scoring import scorer_of
from pipelines.live.workers.augmentation.snapshots import Snapshots
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Worker
from streaming.delivery.outbox import Outbox
from streaming.delivery.publisher import ExamplesPublisher
from streaming.delivery.repairing import repair
from streaming.delivery.trimming import ExamplesTrimmer
from streaming.errors import BadInput
from streaming.intake.intake import UNSEEN_S, Intake
from streaming.intake.merge import END_OF_TIME, with_partitions
from streaming.kafka.identity import SourceWatch
from streaming.lake.housekeeping import Housekeeper
from streaming.lake.readers import Readers
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK
from streaming.lake.writer import LakeTable
from streaming.messages.dead_letters import Kind
from streaming.messages.undeclared import NewColumns
from streaming.position import names_of
from streaming.settlement.admission import Verticals
from streaming.settlement.settlement import Settlement

log = logging.getLogger(__name__)


class AugmentationWorker(Worker):
    kind = "augmentation"

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        *,
        until_end: bool,
        at: Rendezvous = Rendezvous(),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at`: rank 0 of those that score together. `now_ms` is wall time, for what is stored; waits are measured by
        `clock`, which never jumps."""
        super().__init__("augmentation")
        self._given = self._config = config
        self._run_dir = run_dir
        self._until_end, self._at = until_end, at
        self._now_ms, self._clock = now_ms, clock
        self._steady, self._warnings = SteadyClock(now_ms, clock), dict[str, str]()
        self._ranks_held = ExitStack()
        self._on_close, self._on_abandon = ExitStack(), ExitStack()
        self._note: str | None = None
        self._waits_for_teacher = False
        self._done = False

    def open(self) -> None:
        set_threads(self._given.resources.threads)
        keep_memory()
        ranks = Ranks(self._at)
        self._ranks_held.callback(ranks.close)
        scorer = scorer_of(self._given, ranks.group)  # at once: the other ranks wait for it
        self._snapshots = Snapshots(self._run_dir.snapshots, scorer, now_ms=self._now_ms, clock=self._clock)
        self._open_stream()

    def _open_stream(self) -> None:
        """Everything between topics and lake, from the last commit on, with the columns that the run has by now."""
        self._config = config = with_kept_columns(self._given, self._run_dir)
        kafka, run_dir = config.kafka, self._run_dir
        lake = LakeTable(run_dir.lake, config.rows, config.lake.layout).open_writer()
        verticals = Verticals(config.declared_verticals, config.lake.max_verticals)
        states = states_folder(run_dir, lake.epoch)
        settlement = Settlement(config.rows, config.settlement, spill=states, verticals=verticals)
        inputs = {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)}
        self._sources = SourceWatch(kafka, inputs, clock=self._clock)
        outbox = Outbox(run_dir.side_tables, kafka, kafka.dead_letters.topic, config.rows)
        self._hold(outbox.close, outbox.abandon)
        examples = kafka.examples
        publisher = ExamplesPublisher(
            kafka, examples.topic, examples.partitions, config.rows, lake.id, original=original_of(run_dir.root)
        )
        self._hold(publisher.close, publisher.abandon)
        self._feed = SettledFeed(self._new_intake(publisher), settlement, self.watch)
        self._feed.rows_read = self.rows
        self._hold(self._feed.close)
        for repaired in repair(run_dir.lake, config.rows, kafka, examples.topic, examples.partitions):
            log.warning("%s", repaired)
            self._note = repaired
        self._block_commit = BlockCommit(run_dir, lake, settlement, outbox, publisher, self.watch)
        resumed = self._block_commit.resume()
        self._housekeeper = self._new_housekeeper()
        self._hold(self._housekeeper.close)
        keep, self._trimmer = kafka.examples_keep_rows, None
        if keep is not None:
            self._trimmer = ExamplesTrimmer(kafka, examples.topic, examples.partitions, keep)
        self._block = self._new_block(self._clock(), read_before=self.rows)
        self._begin(resumed)

    def _new_intake(self, publisher: ExamplesPublisher) -> Intake:
        return intake_of(
            self._config,
            self._run_dir,
            until_end=self._until_end,
            watch=self.watch,
            now_ms=self._steady,
            clock=self._clock,
            row_bytes=publisher.row_bytes,
        )

    def _new_housekeeper(self) -> Housekeeper:
        config, run_dir = self._config, self._run_dir
        return Housekeeper(
            run_dir.lake,
            [run_dir.side_tables / name for name in (DEAD_LETTERS, LATE_FEEDBACK)],
            Readers(run_dir.readers),
            config.lake,
            awaited=config.reader_names,
            clock=lambda: self._now_ms() / 1000,
        )

    def _begin(self, resumed: dict[str, Any] | None) -> None:
        """Read on from the last commit, `resumed`; partitions that were added since from their first offset on.

        Where partitions begin is committed at once: messages that are deleted unread from then on are missed."""
        if resumed is None:
            self._feed.open(None)
            self._commit(None)
            return
        self._snapshots.inferences = resumed["teacher_inferences"]
        self._warnings = resumed["warnings"] | self._warnings
        self._steady.restore(resumed["clock_ms"])
        added = self._sources.open(resumed["sources"])
        if added and self._feed.settlement.watermark_ms == END_OF_TIME:
            raise BadInput(
                f"this run has read its topics to their end, and {names_of(added)} came after that: it takes no rows "
                "in any more; start a new run for them"
            )
        self._feed.open(with_partitions(resumed["merge"], added))
        if added:
            log.info("%s: added since the last commit, read from the first offset on", names_of(added))
            self._commit(None)

    def _hold(self, close: Callable[[], None], abandon: Callable[[], None] | None = None) -> None:
        self._on_close.callback(close)
        self._on_abandon.callback(abandon or close)

    # --- one step ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        self._sources.look()
        self._feed.settlement.verticals.declare(self.orders.verticals)
        pace, now_s = self._config.pace, self._clock()
        if self._block.is_due(pace, now_s, at_end=self._feed.finished):
            return self._finish_block()
        if not self._feed.at_end and self._block.progress_is_due(pace, now_s, self.rows):
            self._commit(None)
            return True
        if self._feed.finished:
            self._commit(None)  # late feedback and dead letters that came after the last row
            self._done = True
            return True
        return self._fill()

    def _go_on(self, mine: bool) -> bool:
        if not mine:
            self._snapshots.scorer.leave()
        return mine

    def _fill(self) -> bool:
        """Settle the next rows, or read more."""
        try:
            settled = self._feed.next(self._block.rows_left, self._block.bytes_left)
        except NewColumns as new:
            self._keep(new)
            return True
        if settled is None:
            return False
        self.rows = self._feed.rows_read
        self._block.add(settled, self._clock())
        return True

    def _keep(self, new: NewColumns) -> None:
        """Columns came that the schema does not name: remember them, and read again from the last commit with them.
        Rows without them are null either way, so nothing depends on when they were noticed."""
        keep_columns(self._run_dir, new.columns)
        log.warning("impressions have new columns, kept from now on: %s", new)
        self._on_close.close()
        self._on_abandon.pop_all()  # of what is closed
        self._open_stream()
        self._note = f"kept, null in rows before them: {new}"

    # --- a block's end -----------------------------------------------------------------------------------------

    def _finish_block(self) -> bool:
        number = self._block_commit.lake.last_block + 1
        with self.watch("load"):
            decision = self._decide(number)
            if isinstance(decision, Score) and not self._snapshots.load(decision.version):
                which = f"snapshot {decision.version}" if decision.version else "the teacher's first snapshot"
                decision = Wait(f"waiting for {which}")
        self._waits_for_teacher = isinstance(decision, Wait)
        if isinstance(decision, Wait):
            self._note = decision.reason
            with self.watch("wait for teacher"):
                time.sleep(0.01)
            return False
        self._note = self._about(decision)
        with self.watch("score"):
            block = self._scored(number, self._block.rows(), scored=isinstance(decision, Score))
        self._commit(block)
        return True

    def _decide(self, number: int) -> Score | Wait | WithoutTeacher:
        pace = self._config.pace
        if pace.mode == "lockstep":
            return Score(lockstep_version(number, pace.lag))
        newest = self._snapshots.load_newest()
        return snapshot_for(
            newest=newest,
            newest_age_s=self._snapshots.age_s,
            rows_since_newest=self._block_commit.lake.last_lake_seq - self._snapshots.lake_seq,
            catching_up=self._feed.intake.known_lag_rows > pace.catchup_rows,
            max_rows_ahead=pace.max_rows_ahead,
            max_age_s=pace.max_age_s,
            teacher_gone=self.orders.teacher_gone,
        )

    def _about(self, decision: Score | WithoutTeacher) -> str | None:
        """Note for the user on a block's teacher."""
        if isinstance(decision, WithoutTeacher):
            return f"stale_teacher: {decision.reason}"
        if self.orders.teacher_gone:
            return f"stale_teacher: it has given up; snapshot {self._snapshots.version} keeps scoring"
        return None

    def _scored(self, number: int, rows: pa.RecordBatch, *, scored: bool) -> pa.RecordBatch:
        """The block `number` as the lake stores it; with `scored`, its logits are the loaded snapshot's."""
        logits = np.full((rows.num_rows, len(self._config.tasks)), np.nan, np.float32)
        if scored:
            logits = self._snapshots.score(rows, self._config.augmentation.score_rows)
        lockstep = self._config.pace.mode == "lockstep"
        return augment(
            rows,
            logits,
            self._config.rows,
            block=number,
            first_seq=self._block_commit.lake.last_lake_seq + 1,
            teacher_version=self._snapshots.version if scored else None,
            scored_at_ms=int(rows["event_time_ms"].to_numpy().max()) if lockstep else self._now_ms(),
        )

    def _commit(self, block: pa.RecordBatch | None) -> None:
        """Commit `block`, which has the open block's rows, or progress alone."""
        counts = self._counts()
        self._feed.check_accounts()
        opened_s, read_before = self._clock(), self.rows
        meta = {
            "merge": self._feed.position(),
            "sources": self._sources.state(),
            "teacher_inferences": self._snapshots.inferences,
            "warnings": self._warnings,
            "clock_ms": self._steady() if self._config.reads_live else 0,
        }
        self._block_commit.commit(block, self._block, meta=meta, counts=counts)
        self._block.clear()
        self._block = self._new_block(opened_s, read_before)
        self._feed.intake.show_lag()
        self._housekeeper.maybe()
        self._trim()
        if self._clock() - opened_s >= UNSEEN_S:
            self._feed.intake.await_all()

    def _trim(self) -> None:
        """Delete from the examples topic what every reader of the lake has learned."""
        if self._trimmer is None or not self._trimmer.due(self._block_commit.lake.last_lake_seq):
            return
        held = self._housekeeper.floor()
        if held is not None:
            self._trimmer.trim(held.position)

    def _new_block(self, opened_s: float, read_before: int) -> OpenBlock:
        """The block that follows the last commit. Its size follows from the rows before it, in every start alike."""
        size = self._config.pace.blocks.size(self._block_commit.lake.last_lake_seq + 1)
        folder = states_folder(self._run_dir, self._block_commit.lake.epoch) / "open-block"
        return OpenBlock(size, opened_s, read_before, self._config.rows, folder)

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        """Close without committing: an unfinished block is rebuilt from the last commit's positions."""
        self._on_close.close()
        self._ranks_held.close()

    def abandon(self) -> None:
        self._on_abandon.close()
        self._ranks_held.close()

    # --- the report --------------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, Any]:
        for name, words in (self._feed.intake.warnings | self._steady.warnings).items():
            if name not in self._warnings:
                self._warnings[name] = words
                log.warning("%s", words)
        warnings = [*self._warnings.values(), *filter(None, [self._ahead()])]
        return self._feed.settlement.counters() | {
            "lake_rows": self._block_commit.lake.last_lake_seq + 1 + self._block.num_rows,
            "teacher_inferences": self._snapshots.inferences,
            "offsets": {kind: self._feed.intake.offsets(kind) for kind in get_args(Kind)},
            **({"warnings": warnings} if warnings else {}),
        }

    def _ahead(self) -> str | None:
        """Note on a record from the future that moved event time."""
        watermark_ms = self._feed.intake.watermark_ms
        if not self._config.reads_live or watermark_ms == END_OF_TIME:
            return None
        ahead_s = (watermark_ms - self._steady()) / 1000
        if 1000 * ahead_s <= self._config.settlement.horizon_ms(self._config.rows):
            return None
        return (
            f"event time is {ahead_s:,.0f} s in the future: a record moved it, and what comes now is refused as too "
            "old; stop the run, and see what `exfm mend watermark` would do"
        )

    def _awaited(self, counts: dict[str, Any]) -> str | None:
        """Reason why a lake has no rows yet."""
        if self._block_commit.lake.last_lake_seq >= 0 or self._feed.at_end:
            return None
        config, settlement = self._config, self._feed.settlement
        if self._block.num_rows:
            return f"the first block fills: {self._block.num_rows:,} of {self._block.size:,} rows"
        if not counts["impressions_read"]:
            if (held := self._feed.intake.held) is not None:
                return held
            return f"waiting for the first impression on topic `{config.kafka.impressions.topic}`"
        window_s, passed_s = settlement.first_wait_s
        return (
            f"waiting for the first window to close: {window_s:,g} s of event time, of which {passed_s:,.0f} s have "
            f"passed ({counts['impressions_read']:,} impressions read)"
        )

    def describe(self, report: Report) -> None:
        counts, lake_seq = self._counts(), self._block_commit.lake.last_lake_seq
        intake, settlement = self._feed.intake, self._feed.settlement
        report.lake_seq, report.own_rows = lake_seq, self._snapshots.scorer.rows
        report.teacher_version = self._snapshots.version
        report.teacher_lag_rows = max(0, lake_seq - self._snapshots.lake_seq)
        report.lag_rows, report.waits_for_teacher = intake.lag_rows(), self._waits_for_teacher
        if self._config.pace.mode == "free" and intake.watermark_ms > 0:
            report.lag_event_time_s = max(0.0, (self._now_ms() - intake.watermark_ms) / 1000)
        trouble = self._housekeeper.trouble or (None if self._trimmer is None else self._trimmer.trouble)
        report.note = self._ahead() or self._note or intake.note or trouble or self._awaited(counts)
        report.total_rows = counts["impressions_read"] + counts["feedback_read"]
        bytes_held = {"state_bytes": settlement.state_bytes, "state_disk_bytes": settlement.disk_bytes}
        report.counts = counts | bytes_held | {"dead_letter_examples": settlement.letters.examples}
        accounted = counts["impressions_read"] - counts["pending"][self._config.rows.groups[0].name]
        report.progress = (accounted, counts["impressions_read"])
