"""The data augmentation service: settled rows, scored by a teacher snapshot, into the lake and on to the teacher.

    topics -> Intake (decode, merge) -> Settlement (windows, labels) -> block -> score -> commit -> publish

A block is the unit of everything: it is scored by one snapshot version, committed to the lake in one commit together
with the positions it covers, and published to the examples topic after that. The order of a block's end:

    1. the settlement state is saved, and beside it the commit record: merge positions, late feedback, dead letters
    2. the lake commit: rows and the number of that state, atomically
    3. late feedback and dead letters are delivered from the record to their tables and their topic
    4. the block is published to the examples topic

A crash before 2 leaves the block undone, and it is made again from the state before; after 2, steps 3 and 4 are made up
from the record and the lake, and whatever was delivered already is passed over.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.threads import set_threads
from pipelines.config import Config, Topic
from pipelines.rules import Score, Wait, WithoutTeacher, lockstep_version, snapshot_for
from pipelines.run_dir import RunDir, stored_ends
from pipelines.training import not_yet_learned
from pipelines.workers import Ranks, Rendezvous, Report, Worker
from pipelines.workers.augmentation.scoring import scorer_of
from pipelines.workers.augmentation.snapshots import Snapshots
from streaming.delivery import CommitRecord, ExamplesPublisher, Outbox
from streaming.kafka import TopicReader
from streaming.lake import DEAD_LETTERS, LATE_FEEDBACK, Housekeeper, Lake, Readers
from streaming.messages import DEAD_LETTER_SCHEMA, EndOfStream, Kind
from streaming.position import NOTHING_YET, Partition
from streaming.settlement import InputTopic, Intake, SettledRows, Settlement, late_schema

DEAD_ROWS = 10_000
"""So many refused records are delivered at once, also when no row has settled."""

EPOCH_SHIFT = 32
"""State numbers rise over all writers: the writer's epoch in the upper bits, its commits counted in the lower."""

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
        """`at`: rank 0 of those that score together. `now_ms` is the wall's, for what is written down; what is waited
        for goes by `clock`, which never jumps."""
        super().__init__("augmentation")
        self._at = at
        self._config = config
        self._run_dir = run_dir
        self._until_end = until_end
        self._now_ms, self._clock = now_ms, clock
        self._parts: list[pa.RecordBatch] = []
        self._have, self._block_began = 0, 0.0
        self._more = self._finished_settling = self._done = False
        self._late: list[pa.RecordBatch] = []
        self._dead: list[pa.RecordBatch] = []
        self._dead_rows = self._committed_rows = self._inferences = 0
        self._committed_at = clock()
        self._note: str | None = None

    def open(self) -> None:
        config, kafka = self._config, self._config.kafka
        set_threads(config.resources.threads)
        self._ranks = Ranks(self._at)
        self._scorer = scorer_of(config, self._ranks.group)  # at once: the others wait for it
        self._lake = Lake(self._run_dir.lake, config.rows).open_writer()
        self._settlement = Settlement(config.rows, config.settlement, spill=self._states(self._lake.epoch))
        self._intake = self._make_intake()
        self._outbox = Outbox(self._run_dir.side_tables, kafka, kafka.dead_letters.topic, config.rows)
        merge_state = None
        if self._lake.state != NOTHING_YET:
            merge_state = self._restore(self._lake.state)
        self._intake.open(merge_state)
        examples = kafka.examples
        self._publisher = ExamplesPublisher(kafka, examples.topic, examples.partitions, config.rows, self._lake.id)
        self._publish_committed()
        self._readers = Readers(self._run_dir.readers)
        self._tell_published()
        self._housekeeper = Housekeeper(
            self._run_dir.lake,
            [self._run_dir.side_tables / name for name in (DEAD_LETTERS, LATE_FEEDBACK)],
            self._readers,
            config.lake,
            awaited=config.reader_names,
        )
        self._snapshots = Snapshots(self._run_dir.snapshots, self._scorer, now_ms=self._now_ms, clock=self._clock)
        if merge_state is None:
            self._commit(None)  # where the topics began: what is deleted from now on, unread, is missed

    def _make_intake(self) -> Intake:
        config, kafka = self._config, self._config.kafka
        configured: list[tuple[Topic, Kind]] = [(kafka.impressions, "impression"), (kafka.feedback, "feedback")]
        inputs = [InputTopic(topic.topic, topic.partitions, topic.codec, kind) for topic, kind in configured]
        ends: dict[Partition, int] = {}
        if self._until_end and config.source is None:
            ends = stored_ends(self._run_dir.end_offsets)
        return Intake(
            config.rows,
            TopicReader(kafka, [p for topic in inputs for p in topic.all], group=f"exfm-{inputs[0].topic}", ends=ends),
            inputs,
            buffer_rows=config.augmentation.buffer_rows,
            idle_s=None if config.pace.mode == "lockstep" else config.augmentation.idle_s,
            max_future_skew_s=config.settlement.max_future_skew_s,
            max_message_bytes=kafka.max_message_bytes,
            watch=self.watch,
        )

    def _states(self, epoch: int) -> Path:
        """States of one writer. Each has a folder of its own, so that one that was fenced can touch nobody else's."""
        return self._run_dir.checkpoints(self.name) / f"epoch-{epoch:06d}"

    def _restore(self, state: int) -> dict[str, Any]:
        """Back to the last commit; what it left behind is delivered, if it was not. Returns the merge's state.

        A lost state is an error. Made again from the topics and the lake it would not be the same: the topics are read
        from where the state says, ids admitted before that would be admitted again, and which partition was idle when
        stands nowhere else.
        """
        states = self._states(state >> EPOCH_SHIFT)
        self._settlement.load(states, str(state))
        record = CommitRecord.load(states, state)
        self._outbox.deliver(record)
        self._inferences = record.meta["teacher_inferences"]
        log.info("resumed after block %d, lake_seq %d", self._lake.last_block, self._lake.last_lake_seq)
        merge: dict[str, Any] = record.meta["merge"]
        return merge

    def _publish_committed(self) -> None:
        """Publish what a crash kept from being published."""
        if self._publisher.published_seq >= self._lake.last_lake_seq:
            return
        reader = Lake(self._run_dir.lake, self._config.rows).open_reader()
        after = self._publisher.published_seq
        if after + 1 < reader.first_lake_seq:  # the topic was emptied; what the lake let go, no reader needs any more
            log.warning(
                "rows %d to %d are published no more: deleted (retention)", after + 1, reader.first_lake_seq - 1
            )
            after = reader.first_lake_seq - 1
        for block in reader.blocks(after):
            self._publisher.publish(block.combine_chunks().to_batches()[0])

    def _tell_published(self) -> None:
        """The publisher is a reader of the lake: rows that are not on the topic yet are not deleted."""
        self._readers.register("examples topic", self._publisher.published_seq, lasting=True)

    # --- one step ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        if self._block_is_due():
            return self._finish_block()
        if self._progress_is_due():
            self._commit(None)
            return True
        if self._settlement_finished():
            self._end()
            return True
        return self._fill()

    def _go_on(self, mine: bool) -> bool:
        if not mine:
            self._scorer.leave()
        return mine

    def _block_is_due(self) -> bool:
        pace = self._config.pace
        if self._have >= pace.block_rows or (self._have and self._settlement_finished()):
            return True
        waited_s = self._clock() - self._block_began
        return pace.mode == "free" and self._have > 0 and waited_s >= pace.commit_interval_s

    def _progress_is_due(self) -> bool:
        """Between blocks: refused records are told, and in free pace positions are kept, also while nothing settles."""
        if self._have or self._finished_settling:
            return False
        waited_s = self._clock() - self._committed_at
        on_time = self._config.pace.mode == "free" and waited_s >= self._config.pace.commit_interval_s
        return self._dead_rows >= DEAD_ROWS or (on_time and self.rows > self._committed_rows)

    def _settlement_finished(self) -> bool:
        return self._finished_settling and not self._more

    def _fill(self) -> bool:
        """Settle the next rows of the merged order, or read more."""
        room = self._config.pace.block_rows - self._have
        if self._more:
            with self.watch("settle"):
                return self._take(self._settlement.release(room))
        try:
            chunk = self._intake.next_batch()
        except EndOfStream:
            with self.watch("settle"):
                self._finished_settling = True
                return self._take(self._settlement.finish(room))
        if chunk is None:
            return False
        with self.watch("settle"):
            self.rows += len(chunk)
            return self._take(self._settlement.step(chunk, room))

    def _take(self, settled: SettledRows) -> bool:
        self._more = settled.more
        if settled.batch.num_rows:
            if not self._have:
                self._block_began = self._clock()
            self._parts.append(settled.batch)
            self._have += settled.batch.num_rows
        if settled.late.num_rows:
            self._late.append(settled.late)
        if settled.dead.num_rows:
            self._dead.append(settled.dead)
            self._dead_rows += settled.dead.num_rows
        return True

    # --- a block's end -----------------------------------------------------------------------------------------

    def _finish_block(self) -> bool:
        number = self._lake.last_block + 1
        with self.watch("wait for teacher"):
            decision = self._decide(number)
            if isinstance(decision, Wait):
                self._note = decision.reason
                time.sleep(0.01)
                return False
            if isinstance(decision, Score) and not self._snapshots.load(decision.version):
                self._note = f"waiting for snapshot {decision.version}"
                time.sleep(0.01)
                return False
        if isinstance(decision, WithoutTeacher):
            self._note = f"stale_teacher: {decision.reason}"
        else:
            gone = f"stale_teacher: it has given up, and snapshot {self._snapshots.version} goes on scoring"
            self._note = gone if self.orders.teacher_gone else None
        rows = pa.concat_batches(self._parts)
        with self.watch("score"):
            block = self._augment(number, rows, scored=isinstance(decision, Score))
        self._commit(block)
        with self.watch("publish"):
            self._lake.check()
            self._publisher.publish(block)
            self._tell_published()
        return True

    def _decide(self, number: int) -> Score | Wait | WithoutTeacher:
        pace = self._config.pace
        if pace.mode == "lockstep":
            return Score(lockstep_version(number, pace.lag))
        newest = self._snapshots.load_newest()
        return snapshot_for(
            newest=newest,
            newest_age_s=self._snapshots.age_s,
            rows_since_newest=self._lake.last_lake_seq - self._snapshots.lake_seq,
            catching_up=self._intake.lag_rows() > pace.catchup_rows,
            max_rows_ahead=pace.max_rows_ahead,
            max_age_s=pace.max_age_s,
            teacher_gone=self.orders.teacher_gone,
        )

    def _augment(self, number: int, rows: pa.RecordBatch, *, scored: bool) -> pa.RecordBatch:
        count = rows.num_rows
        first = self._lake.last_lake_seq + 1
        logits = np.full((count, len(self._config.tasks)), np.nan, np.float32)
        if scored:
            for start in range(0, count, self._config.augmentation.score_rows):
                part = rows.slice(start, self._config.augmentation.score_rows)
                logits[start : start + part.num_rows] = self._scorer.score(part)
            self._inferences += count
        event_time = rows["event_time_ms"].to_numpy()
        lockstep = self._config.pace.mode == "lockstep"
        scored_at = int(event_time.max()) if lockstep else self._now_ms()
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns["lake_seq"] = pa.array(np.arange(first, first + count))
        columns["block"] = pa.array(np.full(count, number))
        columns["teacher_version"] = pa.array([self._snapshots.version if scored else None] * count, pa.int64())
        columns["scored_at_ms"] = pa.array(np.full(count, scored_at))
        columns["event_date"] = pc.strftime(pa.array(event_time, pa.timestamp("ms")), format="%Y-%m-%d")
        honest = not_yet_learned(rows, self._config.tasks, self._config.rows.groups)
        for index, task in enumerate(self._config.tasks):
            known = honest[:, index] & np.isfinite(logits[:, index])
            columns[f"teacher_logit_{task}"] = pa.array(logits[:, index], mask=~known)
        augmented = self._config.rows.augmented
        return pa.RecordBatch.from_arrays([columns[name] for name in augmented.names], schema=augmented)

    def _commit(self, block: pa.RecordBatch | None) -> None:
        epoch = self._lake.epoch
        number = max(self._lake.state, (epoch << EPOCH_SHIFT) - 1) + 1
        schema = late_schema(self._config.rows)
        record = CommitRecord(
            number,
            {"merge": self._intake.position(), "teacher_inferences": self._inferences},
            pa.Table.from_batches(self._late, schema),
            pa.Table.from_batches(self._dead, DEAD_LETTER_SCHEMA),
        )
        counts = self._counts()
        self._parts, self._have, self._late, self._dead, self._dead_rows = [], 0, [], [], 0
        self._committed_rows, self._committed_at = self.rows, self._clock()
        with self.watch("save state"):
            states = self._states(epoch)
            self._settlement.save(states, str(number), keep=[str(self._lake.state)])
            record.save(states)
        with self.watch("commit"):
            self._lake.commit(block, state=number, metadata={"counts": counts})
        with self.watch("deliver"):
            self._outbox.deliver(record)
            CommitRecord.prune(states, before=number - 1)
            if number == epoch << EPOCH_SHIFT:
                self._forget_earlier_writers(epoch)
            self._intake.show_lag()
        self._housekeeper.maybe()

    def _forget_earlier_writers(self, epoch: int) -> None:
        for states in self._run_dir.checkpoints(self.name).glob("epoch-*"):
            if states < self._states(epoch):
                shutil.rmtree(states)

    def _end(self) -> None:
        """A last commit without rows, for what the end of the stream left behind beside them."""
        self._commit(None)
        self._done = True

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        """Nothing to commit: an unfinished block is made again from the last commit's positions."""
        self._housekeeper.close()
        self._intake.close()
        self._outbox.close()
        self._publisher.close()
        self._ranks.close()

    def abandon(self) -> None:
        """What was made so far, if it died while it was opened: in the order of `open`."""
        with ExitStack() as stack:
            for name, let_go in (("_intake", "close"), ("_outbox", "abandon"), ("_publisher", "abandon"),
                                 ("_housekeeper", "close"), ("_ranks", "close")):  # fmt: skip
                if (part := getattr(self, name, None)) is not None:
                    stack.callback(getattr(part, let_go))

    # --- what is going on --------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, Any]:
        counters = self._settlement.counters()
        return counters | {
            "lake_rows": self._lake.last_lake_seq + 1 + self._have,
            "teacher_inferences": self._inferences,
        }

    def describe(self, report: Report) -> None:
        counts = self._counts()
        report.lake_seq, report.own_rows = self._lake.last_lake_seq, self._scorer.rows
        report.teacher_version = self._snapshots.version
        report.teacher_lag_rows = max(0, self._lake.last_lake_seq - self._snapshots.lake_seq)
        report.lag_rows = self._intake.lag_rows()
        if self._config.pace.mode == "free" and self._intake.watermark_ms > 0:
            report.lag_event_time_s = max(0.0, (self._now_ms() - self._intake.watermark_ms) / 1000)
        report.note = self._note or self._intake.note or self._housekeeper.trouble
        disk_bytes = self._settlement.disk_bytes
        report.counts = counts | {"state_bytes": self._settlement.state_bytes, "state_disk_bytes": disk_bytes}
        accounted = counts["impressions_read"] - counts["pending"][self._config.rows.groups[0].name]
        report.progress = (accounted, counts["impressions_read"])
