"""The data augmentation service: settled rows, scored by a teacher snapshot, into the lake and on to the teacher.

    settled      SettledFeed: topics decoded, merged, labels joined
      ─► block      OpenBlock, until it is due
      ─► scored     a snapshot's logits for its rows, as the lake stores them
      ─► committed  BlockCommit: lake, late feedback, dead letters, examples topic

A block is the unit of everything: one snapshot version scores it, one lake commit stores it together with the positions
it covers, and it is published to the examples topic after that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from exfm.machine import keep_memory, set_threads
from pipelines.core.config.kept_columns import keep_columns
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.scoring_snapshot import (
    NOTHING_LEARNED,
    Score,
    Wait,
    WithoutTeacher,
    lockstep_version,
    snapshot_for,
)
from pipelines.live.training.freshness import LearnedToLogit, PublishedVersions, figures_of
from pipelines.live.workers.augmentation.block import AugmentedBlock, OpenBlock, ScoredBlock, augment
from pipelines.live.workers.augmentation.feed import FeedStatus, SteadyClock
from pipelines.live.workers.augmentation.forgetting import AsOfForgetting
from pipelines.live.workers.augmentation.scoring import Scorer, scorer_of
from pipelines.live.workers.augmentation.shards import PartitionedScorer, ShardGroup, ShardHost
from pipelines.live.workers.augmentation.shared_block import SharedBlock
from pipelines.live.workers.augmentation.snapshots import Snapshots
from pipelines.live.workers.augmentation.stream import OpenStream, open_stream
from pipelines.live.workers.block_spans import BlockRows, BlockSpans, position_in, spans_of
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Worker
from streaming.intake.intake import UNSEEN_S
from streaming.intake.merge import END_OF_TIME
from streaming.lake.withdrawn import record_asked
from streaming.messages.undeclared import NewColumns

METRICS_EVERY_ROWS = 20_000
"""Rows learned between two lines of freshness in MLflow; they are in the teacher's run."""

log = logging.getLogger(__name__)


class AugmentationWorker(Worker):
    kind = "augmentation"

    stream: OpenStream
    block: OpenBlock
    """Settled rows since the last commit."""
    _snapshots: Snapshots
    _steps: Iterator[bool]

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
        self._config, self._run_dir, self._at = config, run_dir, at
        self._now_ms, self._clock = now_ms, clock
        self._steady = SteadyClock(now_ms, clock)
        self._new_stream = partial(
            open_stream,
            config,
            run_dir,
            until_end=until_end,
            watch=self.watch,
            steady=self._steady,
            now_ms=now_ms,
            clock=clock,
        )
        self._new_host = partial(
            ShardHost, config, run_dir, at, self.watch, until_end=until_end, steady=self._steady, clock=clock
        )
        self._closing, self._abandoning = ExitStack(), ExitStack()
        self._warnings = dict[str, str]()
        self._note: str | None = None
        self._waits_for_teacher = self._done = False
        self._rows_at_metrics = 0
        self._spans: BlockSpans | None = None
        self._side_tables = run_dir.side_tables

    def open(self) -> None:
        set_threads(self._config.resources.threads)
        keep_memory()
        by_partition = self._config.settlement.by == "partition"
        ranks = Ranks(self._at, collectives=not by_partition)
        self._closing.callback(ranks.close)
        self._abandoning.callback(ranks.close)
        scorer: Scorer
        shards: ShardGroup | None = None
        if by_partition:
            shards = ShardGroup(self._new_host(), ranks.lines)
            scorer = PartitionedScorer(shards)
        else:
            scorer = scorer_of(self._config, ranks)  # at once: the other ranks wait for it
        versions = PublishedVersions(self._run_dir.teacher_versions, spans=True)
        self._freshness = LearnedToLogit(versions, self._now_ms)
        self._snapshots = Snapshots(
            self._run_dir.snapshots, scorer, now_ms=self._now_ms, clock=self._clock, freshness=self._freshness
        )
        self._open_stream(shards)
        if shards is not None:
            shards.leave()
        self._spans = spans_of(self._config, self._run_dir, self.name, self.stream.commits.lake.id, self.watch)
        if self._spans is not None:
            self._closing.callback(self._spans.close)
            self._abandoning.callback(self._spans.close)

    def _open_stream(self, shards: ShardGroup | None) -> None:
        self.stream = stream = self._new_stream(rows_read=self.rows, shards=shards)
        self._shards = shards
        self._note_position()
        self._closing.callback(stream.close)
        self._abandoning.callback(stream.abandon)
        self._note = stream.repaired or self._note
        if stream.resumed is not None:
            self._snapshots.inferences = stream.resumed["teacher_inferences"]
            self._warnings = stream.resumed["warnings"] | self._warnings
            if "freshness" in stream.resumed:  # a run of before had none
                self._freshness.load(stream.resumed["freshness"])
        self.block = self._new_block(self._clock(), read_before=self.rows)
        self._forgetting = AsOfForgetting(self._run_dir, stream.config, stream.feed)
        self._forgetting.look()
        self._steps = self._augment()
        if stream.begins:
            self._commit(None)

    # --- settled → blocks → scored → committed -----------------------------------------------------------------

    def step(self) -> bool:
        self.stream.sources.look()
        self.stream.feed.declare(self.orders.verticals)
        for withdrawn in record_asked(self._side_tables, self.stream.last_lake_seq + 1):
            log.warning("%s are withdrawn from lake_seq %d on: %s", withdrawn.words, withdrawn.at, withdrawn.why)
        try:
            return next(self._steps)
        except NewColumns as new:
            self._keep(new)
            return True

    def _augment(self) -> Iterator[bool]:
        """Every step of the service, one turn of the loop for each commit. Yields after each step whether it had
        something to do."""
        while True:
            while not self._block_ends():
                yield self._settle()  # settled → block
            rows = None
            if self.block.num_rows:  # block → scored
                while isinstance(decision := self._decide(), Wait):
                    yield self._wait()
                rows = self._scored(decision)
            ended = self.stream.feed.finished and rows is None
            self._commit(rows)  # scored → committed; at the end, what came after the last row
            self._done = ended
            yield True

    def _block_ends(self) -> bool:
        """True if the open block is to be committed: its rows, or progress without rows."""
        pace, now_s, feed = self.stream.config.pace, self._clock(), self.stream.feed
        if self.block.is_due(pace, now_s, at_end=feed.finished) or feed.finished:
            return True
        return not feed.at_end and self.block.progress_is_due(pace, now_s, self.rows, rows_due=feed.rows_due)

    def _settle(self) -> bool:
        """Settle the next rows, or read more."""
        settled = self.stream.feed.next(self.block.rows_left, self.block.bytes_left)
        if settled is None:
            return False
        self.rows = self.stream.feed.rows_read
        self.block.add(settled, self._clock())
        return True

    def _decide(self) -> Score | Wait | WithoutTeacher:
        """Choose the snapshot that scores the open block, and load it."""
        number = self.stream.commits.lake.last_block + 1
        with self.watch("load"):
            decision = self._choose(number)
            if isinstance(decision, Score) and not self._snapshots.load(decision.version):
                decision = Wait(f"waiting for snapshot {decision.version}")
        self._waits_for_teacher = isinstance(decision, Wait)
        self._note = self._about(decision)
        return decision

    def _choose(self, number: int) -> Score | Wait | WithoutTeacher:
        pace = self._config.pace
        if pace.mode == "lockstep":
            version = lockstep_version(number, pace.lag, first=self._config.teacher.first_version)
            return NOTHING_LEARNED if version is None else Score(version)
        newest = self._snapshots.load_newest()
        return snapshot_for(
            newest=newest,
            newest_age_s=self._snapshots.age_s,
            rows_since_newest=self.stream.last_lake_seq - self._snapshots.lake_seq,
            catching_up=self.stream.feed.known_lag_rows > pace.catchup_rows,
            max_rows_ahead=pace.max_rows_ahead,
            max_age_s=pace.max_age_s,
            teacher_gone=self.orders.teacher_gone,
        )

    def _about(self, decision: Score | Wait | WithoutTeacher) -> str | None:
        """Note for the user on a block's teacher."""
        if isinstance(decision, Wait):
            return decision.reason
        if isinstance(decision, WithoutTeacher):
            return f"stale_teacher: {decision.reason}" if decision.stale else None  # none yet is no trouble
        if self.orders.teacher_gone:
            return f"stale_teacher: it has given up; snapshot {self._snapshots.version} keeps scoring"
        return None

    def _wait(self) -> bool:
        with self.watch("wait for teacher"):
            time.sleep(0.01)
        return False

    def _scored(self, decision: Score | WithoutTeacher) -> ScoredBlock:
        """The open block as the lake stores it, with the logits of the loaded snapshot, or without logits."""
        has_teacher = isinstance(decision, Score)
        with self.watch("score"):
            rows, scored = self.block.rows(), None
            if has_teacher:
                scored = self._snapshots.score(rows, self._config.augmentation.score_rows)
            lockstep = self._config.pace.mode == "lockstep"
            how: dict[str, Any] = {
                "block": self.stream.commits.lake.last_block + 1,
                "first_seq": self.stream.last_lake_seq + 1,
                "teacher_version": self._snapshots.version if has_teacher else None,
                "scored_at_ms": int(rows["event_time_ms"].to_numpy().max()) if lockstep else self._now_ms(),
                "space": self._snapshots.space,
                "learned_upto_ms": self._config.teacher.learned_upto_ms,
            }
            if self._shards is not None:
                return SharedBlock(self._shards, rows, how)
            return AugmentedBlock(augment(rows, scored, self.stream.config.rows, **how))

    def _commit(self, rows: ScoredBlock | None) -> None:
        """Commit the open block, scored, or progress without rows, and open the next one."""
        stream, feed = self.stream, self.stream.feed
        self._forgetting.note()
        counts = self._counts(feed.status())
        opened_s, read_before = self._clock(), self.rows
        meta = {
            "merge": feed.position(),
            "sources": stream.sources.state(),
            "teacher_inferences": self._snapshots.inferences,
            "warnings": self._warnings,
            "freshness": self._freshness.state(),
            "clock_ms": self._steady() if self._config.reads_live else 0,
        }
        lake, first = stream.commits.lake, stream.last_lake_seq + 1
        stream.commits.commit(rows, self.block, meta=meta, counts=counts)
        if self._spans is not None:
            last = lake.last_lake_seq
            self._spans.note([BlockRows(lake.last_block, last - first + 1, first, last)] if rows else [], root=True)
        self._note_position()
        if (learned := self._freshness.delays_s.rows) - self._rows_at_metrics >= METRICS_EVERY_ROWS:
            self._rows_at_metrics = learned
            self.log_metrics(stream.last_lake_seq + 1, dict(figures_of(self._freshness_shown)))
        self.block.clear()
        self.block = self._new_block(opened_s, read_before)
        self._forgetting.look()
        feed.show_lag()
        stream.tidy()
        if self._clock() - opened_s >= UNSEEN_S:
            feed.await_all()

    def _note_position(self) -> None:
        lake = self.stream.commits.lake
        self.log_position = position_in(lake.id, lake.last_lake_seq, lake.last_block + 1)

    def _new_block(self, opened_s: float, read_before: int) -> OpenBlock:
        """The block that follows the last commit. Its size follows from the rows before it, in every start alike."""
        config, commits = self.stream.config, self.stream.commits
        size = config.pace.blocks.size(self.stream.last_lake_seq + 1)
        return OpenBlock(size, opened_s, read_before, config.rows, commits.states / "open-block")

    def _keep(self, new: NewColumns) -> None:
        """Columns came that the schema does not name: remember them, and read again from the last commit with them.
        Rows without them are null either way, so nothing depends on when they were noticed."""
        keep_columns(self._run_dir, new.columns)
        log.warning("impressions have new columns, kept from now on: %s", new)
        self.stream.close()
        self._open_stream(self._shards)
        self._note = f"kept, null in rows before them: {new}"

    # --- rounds and the end ------------------------------------------------------------------------------------

    def _go_on(self, mine: bool) -> bool:
        if not mine:
            self.stream.feed.status()  # what the report says of other ranks, before they leave the round
            self._snapshots.scorer.leave()
        return mine

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        """Close without committing: an unfinished block is rebuilt from the last commit's positions."""
        self._closing.close()

    def abandon(self) -> None:
        self._abandoning.close()

    # --- the report --------------------------------------------------------------------------------------------

    def _counts(self, feed: FeedStatus) -> dict[str, Any]:
        for name, words in feed.warnings.items():
            if name not in self._warnings:
                self._warnings[name] = words
                log.warning("%s", words)
        warnings = [*self._warnings.values(), *filter(None, [self._ahead(feed.watermark_ms)])]
        return feed.counters | {
            "lake_rows": self.stream.last_lake_seq + 1 + self.block.num_rows,
            "teacher_inferences": self._snapshots.inferences,
            "offsets": feed.offsets,
            **({"warnings": warnings} if warnings else {}),
        }

    def _ahead(self, watermark_ms: int) -> str | None:
        """Note on a record from the future that moved event time."""
        if not self._config.reads_live or watermark_ms == END_OF_TIME:
            return None
        ahead_s = (watermark_ms - self._steady()) / 1000
        if 1000 * ahead_s <= self._config.settlement.horizon_ms(self._config.rows):
            return None
        return (
            f"event time is {ahead_s:,.0f} s in the future: a record moved it, and what comes now is refused as too "
            "old; stop the run, and see what `exfm mend watermark` would do"
        )

    def _awaited(self, feed: FeedStatus) -> str | None:
        """Reason why a lake has no rows yet."""
        if self.stream.last_lake_seq >= 0 or self.stream.feed.at_end:
            return None
        if self.block.num_rows:
            return f"the first block fills: {self.block.num_rows:,} of {self.block.size:,} rows"
        if not feed.counters["impressions_read"]:
            if feed.held.words is not None:
                return feed.held.words
            return f"waiting for the first impression on topic `{self._config.kafka.impressions.topic}`"
        window_s, passed_s = feed.first_wait_s
        return (
            f"waiting for the first window to close: {window_s:,g} s of event time, of which {passed_s:,.0f} s have "
            f"passed ({feed.counters['impressions_read']:,} impressions read)"
        )

    @property
    def _freshness_shown(self) -> dict[str, Any]:
        return {"learned_to_logit_s": self._freshness.delays_s.as_json()}

    def describe(self, report: Report) -> None:
        feed = self.stream.feed.status()
        counts, lake_seq = self._counts(feed), self.stream.last_lake_seq
        report.lake_seq, report.own_rows = lake_seq, self._snapshots.scorer.rows
        report.teacher_version = self._snapshots.version
        report.teacher_lag_rows = max(0, lake_seq - self._snapshots.lake_seq)
        report.teacher_age_s = None if self._snapshots.version is None else self._snapshots.age_s
        report.freshness = self._freshness_shown
        report.lag, report.waits_for_teacher = feed.lag, self._waits_for_teacher
        report.reached_ms = feed.reached_ms
        report.lag_rows = None if feed.lag is None else sum(feed.lag.values())
        if 0 < feed.watermark_ms < END_OF_TIME:
            report.watermark_ms = feed.watermark_ms
        if self._config.pace.mode == "free" and feed.watermark_ms > 0:
            report.lag_event_time_s = max(0.0, (self._now_ms() - feed.watermark_ms) / 1000)
        ahead = self._ahead(feed.watermark_ms)
        report.note = ahead or self._note or feed.note or feed.held.note or self.stream.trouble or self._awaited(feed)
        report.total_rows = counts["impressions_read"] + counts["feedback_read"]
        bytes_held = dict(zip(("state_bytes", "state_disk_bytes"), feed.bytes, strict=True))
        report.counts = counts | bytes_held | {"dead_letter_examples": feed.examples}
        accounted = counts["impressions_read"] - counts["pending"][self._config.rows.groups[0].name]
        report.progress = (accounted, counts["impressions_read"])
