"""The teacher in its stream: learns every block of the examples topic, in order, and publishes snapshots.

    examples topic ──► feed (whole blocks, cut into steps) ──► engine ──► checkpointer: checkpoint, snapshot

Version v of a snapshot has learned the blocks 0 … v-1; the initial state is not published. In lockstep every block's
end is published, in free pace every `publish_every_rows` rows.

The teacher may be several processes, its ranks. Each reads partitions of its own and builds its share of every batch;
before a block all agree that they have it, and at its end each knows what all have learned (block.py):
counts, metrics and positions are those of all rows, on every rank. Rank 0 reports.
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch

from exfm.errors import Diverged
from exfm.features.batch import BatchBuilder
from exfm.features.representation import FIRST_SPACE
from exfm.machine import keep_memory, set_threads
from exfm.models.engine import TEACHER, TeacherEngine
from exfm.models.growth.refit import stored_teacher
from exfm.models.scorer import snapshot_of
from exfm.models.teacher import Teacher
from exfm.snapshots.changed import Baselines, Saved, bytes_of
from exfm.snapshots.checkpoint import Checkpoint
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.staging import Storable
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.lineage import accepted_identities
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.feeds.cuts import block_cuts
from pipelines.live.feeds.growth import block_growth
from pipelines.live.feeds.teacher import BlockReader, Step, TeacherFeed
from pipelines.live.training.account import Account
from pipelines.live.training.forgetting import Forgetting
from pipelines.live.training.live_metrics import figures_in, without_figures
from pipelines.live.workers.block_spans import BlockRows, BlockSpans, position_in, spans_of
from pipelines.live.workers.checkpointer import Checkpointer
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.teacher.block import AgreedBlock, BlockOffer, BlockTally, TakeFromLake, conclude
from pipelines.live.workers.teacher.initial_state import initial_state
from pipelines.live.workers.teacher.publisher import SnapshotPublisher
from pipelines.live.workers.worker import Worker, seconds_since
from streaming.delivery.reader import BlockPosition, ExamplesReader
from streaming.lake.erasure.holes import Holes
from streaming.lake.reader import LakeReader
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition

log = logging.getLogger(__name__)


class TeacherPlace(NamedTuple):
    """Position of the teacher: blocks learned (the version of its snapshot), their last `lake_seq`, the readers'
    positions of all ranks after it, and the latest event time of its last block (None: not known)."""

    version: int
    lake_seq: int
    positions: Positions
    event_time_ms: int | None = None


class TeacherWorker(Worker):
    kind = "teacher"

    def __init__(self, config: Config, run_dir: RunDir, at: Rendezvous = Rendezvous()) -> None:
        super().__init__("teacher")
        self._config, self._run_dir, self._at = config, run_dir, at
        self._held = ExitStack()  # the rank group and the engine, as far as they were opened
        # In lockstep, the checkpoint of every snapshot that may still be asked for.
        keep = max(2, config.pace.lag if config.pace.mode == "lockstep" else 0)
        self.checkpointer = Checkpointer(
            self.name, run_dir, self.watch, queue=config.resources.checkpoint_queue, keep=keep
        )
        self.feed: TeacherFeed | None = None
        self._block: AgreedBlock | None = None
        self.place = TeacherPlace(0, NOTHING_YET, {})
        self._saved_version = 0
        self.space = FIRST_SPACE
        self._lake_id = ""
        self._spans: BlockSpans | None = None

    # --- beginning ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        config, kafka = self._config, self._config.kafka
        self.resume()
        self._ranks.barrier()  # initialising or reading a large teacher takes some ranks longer
        if self.place.version >= config.teacher.first_version:
            self._publish_resumed()
        self._lake = LakeReader(self._run_dir.lake, config.rows)
        examples, mine = kafka.examples, self._mine
        where = (kafka, examples.topic, examples.partitions, config.rows, self._lake.id)
        reader = ExamplesReader(*where, mine, self._holes)
        reader.open(self._position)
        self._lake_id = self._lake.id
        if self._ranks.first and (spans := spans_of(config, self._run_dir, self.name, self._lake_id, self.watch)):
            self._spans = spans
            self._held.callback(spans.close)
        self._note_position()
        self.feed_from(reader, LakeReader(self._run_dir.lake, config.rows))
        self._ranks.barrier()

    def resume(self) -> None:
        """Resume engine and account from the last checkpoint."""
        config = self._config
        self._holes = Holes.of(self._run_dir.lake.parent)
        set_threads(config.resources.threads)
        keep_memory()
        self._ranks = Ranks(self._at)
        self._held.callback(self._ranks.close)
        self.engine = TeacherEngine(self._seeded(), identity=config.identity(self.name))
        self._held.callback(self.engine.close)
        keep = max(config.teacher.keep_snapshots, config.pace.lag + 2)
        self.publisher = SnapshotPublisher(
            self._run_dir,
            self.checkpointer,
            self._ranks,
            keep=keep,
            bits=config.teacher.publish_bits,
            policy=config.teacher.saves,
        )
        self._baselines = Baselines(config.teacher.saves)
        self.tally = BlockTally(config.tasks, self._ranks, config.teacher.learned_upto_ms)
        stored = self.checkpointer.open(
            self.engine, partial(accepted_identities, self._run_dir, config, self.name), self._ranks
        )
        meta = stored.meta if stored is not None else None
        most = config.resources.max_quarantined_in_a_row
        grave = config.losses.fail_share
        self.account = Account([TEACHER], config.tasks, most_in_a_row=most, grave_share=grave, meta=meta)
        self.checkpointer.write_quarantine(self.account.quarantine_state())
        if stored is not None:
            self._load(stored)
        elif (begun := config.teacher.init_from) is not None:
            self.engine.load(initial_state(config, begun))
            log.info("begins as the teacher of %s, which has learned %d rows", begun.path, begun.rows)
        at = (config.teacher_features, config.rows, self.place.version)
        self._forgetting = Forgetting(self._run_dir, self.name, *at)

    def _seeded(self) -> Teacher:
        """The teacher before it has learned anything."""
        config, teacher = self._config, self._config.teacher
        return Teacher(
            teacher.model,
            config.teacher_features,
            config.tasks,
            config.seed,
            group=self._ranks.group,
            sharding=teacher.sharding,
            batch_rows=teacher.batch_rows,
            full_batch=teacher.batch_rows,
        )

    def _load(self, stored: Checkpoint) -> None:
        tensors, meta = stored_teacher(stored, made_with_teacher(self._config)), stored.meta
        self.engine.load(without_figures(tensors))
        self.tally.figures.load(figures_in(tensors))
        self.tally.trained_rows = meta["trained_rows"][TEACHER]
        positions = {
            Partition(topic, partition): SourcePosition(offset, row)
            for topic, partition, offset, row in meta["positions"]
            if topic == self._config.kafka.examples.topic  # a run may get another one: it is read from its beginning
        }
        self.place = TeacherPlace(meta["version"], meta["lake_seq"], positions, meta.get("last_event_ms"))
        self._saved_version, self.space = meta["version"], meta.get("space", FIRST_SPACE)
        log.info("resumed after block %d, lake_seq %d", meta["version"] - 1, meta["lake_seq"])

    def feed_from(self, reader: BlockReader, lake: LakeReader) -> None:
        """Feed the engine from this reader of the topic, and missing rows from the lake."""
        config, teacher = self._config, self._config.teacher
        self._stop_reading()
        self.feed = TeacherFeed(
            reader,
            lake,
            BatchBuilder(config.teacher_features, config.tasks),
            partitions=config.kafka.examples.partitions,
            mine=self._mine,
            batches=teacher.batches,
            ahead=teacher.read_ahead,
            watch=self.watch.parallel() if teacher.read_ahead else self.watch,
        )

    @property
    def _mine(self) -> range:
        """The partitions of the examples topic that this rank reads."""
        return self._ranks.shard(self._config.kafka.examples.partitions)

    @property
    def _position(self) -> BlockPosition:
        """Position from which this rank's reader resumes, behind the last block that was learned."""
        mine = {p: at for p, at in self.place.positions.items() if p.partition in self._mine}
        return BlockPosition(self.place.version - 1, mine)

    # --- learning ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Learn one batch, or agree on the next block."""
        self.checkpointer.check()
        if self._block is None:
            end = self.orders.end_seq
            if end is not None and self._holes.cover(self.place.lake_seq + 1, end):
                return self.checkpointer.finish(self._save_last)
            self._block = self._agree()
            if self._block is None:
                self._publish_again()
            else:
                self.forget()
            return self._block is not None
        self._learn(self._block)
        if self._block.done:
            self._finish(self._block)
        return True

    def _agree(self) -> AgreedBlock | None:
        """The block that comes next, once every rank has its part of it. A collective."""
        assert self.feed is not None
        end, topic = self.orders.end_seq, self._config.kafka.examples
        if end is not None:
            self.feed.ask_for_end()
        with self.watch("wait for rows"):
            ready = self.feed.peek()
        at_end = self.feed.at_end
        if ready is None:
            offer = BlockOffer.nothing(topic.partitions, at_end)
        else:
            offer = BlockOffer.of(ready.share, ready.share.block.positions or self._position.positions, at_end)
        with self.watch("wait for ranks"):
            offers = [BlockOffer.decode(numbers) for numbers in self._ranks.all_gather(offer.encode())]
        conclusion = conclude(offers, self.place.lake_seq, self.place.version - 1, end, self._holes)
        if isinstance(conclusion, TakeFromLake):
            behind = self._position._replace(after_block=conclusion.after_block)
            self.feed.go_on_from_lake(self.place.lake_seq, conclusion.upto, behind)
            return None
        if conclusion is None:
            return None
        assert ready is not None
        positions = {Partition(topic.topic, p): SourcePosition(int(at)) for p, at in enumerate(conclusion.offsets)}
        cuts = block_cuts(conclusion.counts, ready.share.step_ends(self._config.teacher.batches))
        return AgreedBlock(ready.share, cuts, positions)

    def forget(self) -> None:
        """Forget what was asked before this block. A collective."""
        due = self._ranks.broadcast_text(lambda: json.dumps(self._forgetting.due(self.place.version)))
        for table, ids in json.loads(due):
            self.engine.forget(table, torch.tensor(ids))

    def _learn(self, block: AgreedBlock) -> None:
        """One step, which is a step of all ranks; a rank without rows for it takes part all the same."""
        step, rows = block.next_step, block.rows_of(block.next_step)
        block.next_step += 1
        ready = self._next_step_of(block)
        assert ready.step == step
        assert self.feed is not None
        self.feed.take()
        if not rows:  # few rows in many partitions
            return
        sent, block.sent = block.sent or ready.batch, None
        self._send_ahead(block)
        with self.watch("train"):
            result = self.engine.step(sent).results[TEACHER]
        with self.watch("metrics"):
            try:
                self.tally.note(ready, result, self.account, place=block.place_of(self._mine, step), rows=rows)
            except Diverged:  # people find what was left out, though no checkpoint holds it
                self.checkpointer.write_quarantine(self.account.quarantine_state())
                raise
        self.rows += rows
        self.publisher.rows_since += rows

    def _next_step_of(self, block: AgreedBlock) -> Step:
        assert self.feed is not None
        with self.watch("wait for rows"):
            ready = self.feed.peek(of_block=True)
        assert ready is not None
        assert ready.share is block.share
        return ready

    def _send_ahead(self, block: AgreedBlock) -> None:
        """Send the ids of the next step while this one computes; inside a block, where all ranks know that it comes.
        A collective."""
        assert self.feed is not None
        one_by_one = self._ranks.count == 1 or not self.feed.threaded
        if one_by_one or block.done or not block.rows_of(block.next_step):
            return
        ready = self._next_step_of(block)
        with self.watch("send ids"):
            block.sent = self.engine.prepare(ready.batch)

    def _finish(self, block: AgreedBlock) -> None:
        """A block's end: what all ranks learned is counted, a checkpoint and a snapshot follow where they are due."""
        self._block = None
        learned = block.share.block
        with self.watch("metrics"):
            self.tally.finish(self.account)
            event_time_ms = self.tally.latest_event_time_ms()
        self.place = TeacherPlace(learned.number + 1, learned.last_seq, block.positions, event_time_ms)
        if self._spans is not None:
            rows = learned.last_seq - learned.first_seq + 1
            self._spans.note([BlockRows(learned.number, rows, learned.first_seq, learned.last_seq)])
        self._note_position()
        config = self._config
        often = block_growth(config.pace.first_block_rows, config.teacher.publish_every_rows).size(learned.first_seq)
        publish = config.pace.mode == "lockstep" or self.publisher.rows_since >= often
        if publish or self.place.version % config.teacher.checkpoint_every_blocks == 0:
            self.checkpoint(publish=publish)
        self.log_metrics(self.place.lake_seq + 1, self.tally.figures.values())

    def _note_position(self) -> None:
        self.log_position = position_in(self._lake_id, self.place.lake_seq, self.place.version)

    def _save_last(self) -> None:
        if self.place.version != self._saved_version:
            self.checkpoint(publish=True)
        elif self.place.version != self.publisher.published:
            self.publish()

    @property
    def done(self) -> bool:
        return self.checkpointer.done

    def _go_on(self, mine: bool) -> bool:
        return bool(self._ranks.broadcast(mine))

    # --- what lasts --------------------------------------------------------------------------------------------

    def checkpoint(self, *, publish: bool = False) -> None:
        """Write a checkpoint; only at a block's end, since a partly learned block is learned again from its start."""
        version, seq, positions, _ = self.place
        if self._block is not None or version < self._config.teacher.first_version:
            return
        with self.watch("checkpoint"):
            snapshot_meta = self._meta()
            parent, of_snapshot = self._baselines.parent, self.publisher.renewed().parent if publish else None
            tensors, whole = self._copy(parent, of_snapshot, publish)
            account = self.account.meta({TEACHER: self.tally.trained_rows}, seq)
            meta = snapshot_meta | account | {"positions": [[*p, *at] for p, at in positions.items()]}
            learned = self.tally.spans.take() if publish else []

        def name_of(saved: Saved | None) -> str | None:
            return None if whole or saved is None else saved.name

        def publish_snapshot() -> None:
            if publish:
                snapshot, base = snapshot_of(tensors), name_of(of_snapshot)
                self.publisher.write(version, snapshot, snapshot_meta, parent=base, learned=learned)

        name, kind = version_name(version), "teacher-checkpoint"
        self.checkpointer.commit(name, tensors, meta, kind=kind, parent=name_of(parent), after=publish_snapshot)
        self._saved_version = version
        if publish:
            self.publisher.mark(version)

    def _copy(
        self, parent: Saved | None, of_snapshot: Saved | None, publish: bool
    ) -> tuple[dict[str, Storable | ChangedRows], bool]:
        """A copy of the state: what changed since both parents, or whole, and whether it is. The next one may hold what
        changes from here on."""
        tensors: dict[str, Storable | ChangedRows] = {}
        if parent is None or (publish and of_snapshot is None):
            tensors |= self.engine.state()
        else:
            tensors |= self.engine.changes(min(saved.clock for saved in (parent, of_snapshot) if saved is not None))
        whole = not any(isinstance(tensor, ChangedRows) for tensor in tensors.values())
        saved = Saved(version_name(self.place.version), self.engine.tick())
        self._baselines.saved(saved, bytes_of(tensors), whole=whole)
        if publish:
            self.publisher.baselines.saved(saved, bytes_of(snapshot_of(tensors)), whole=whole)
        return tensors | self.tally.figures.state(), whole

    def publish(self) -> None:
        """Publish the current state: at the start in case a crash prevented it, and at the end."""
        with self.watch("checkpoint"):
            tensors, meta = self.engine.snapshot(), self._meta()
        self.publisher.publish(self.place.version, tensors, meta)

    def _publish_resumed(self) -> None:
        """Publish the state that was resumed, unless it is published already. A collective."""
        if self._ranks.broadcast(self.publisher.holds_of_another_identity(self.place.version, self.engine.identity)):
            self.publisher.mark(self.place.version)
            self.publisher.log(self.place.version, self._meta())
        else:
            self.publish()

    def _publish_again(self) -> None:
        """Write a snapshot again that was found damaged and set aside. A collective."""
        version = self.publisher.damaged()
        if version is None:
            return
        log.warning("snapshot %s was found damaged: it is written again", version_name(version))
        if self._ranks.first:  # from what is on disk: no other rank is needed
            self.checkpointer.put(partial(self.publisher.write_again, version, self._meta()), alone=True)

    def _meta(self) -> dict[str, Any]:
        return {
            "config_hash": self.engine.identity,
            "version": self.place.version,
            "lake_seq": self.place.lake_seq,
            "last_event_ms": self.place.event_time_ms,
            "space": self.space,
            "learned": self.account.learned.state(),
            "made_with": made_with_teacher(self._config).model_dump(mode="json"),
        }

    def close(self) -> None:
        with self._held:
            try:
                self.checkpointer.close()
            finally:
                self._stop_reading()

    def abandon(self) -> None:
        try:
            self.checkpointer.abandon()
        finally:
            self._stop_reading()
            if self._spans is not None:
                self._spans.close()

    def _stop_reading(self) -> None:
        if self.feed is not None:
            self.feed.close()

    # --- reporting ---------------------------------------------------------------------------------------------

    def describe(self, report: Report) -> None:
        report.lake_seq, report.teacher_version = self.place.lake_seq, self.place.version
        report.own_rows, report.ne = self.tally.own_rows, self.tally.figures.ne
        report.windows = self.tally.figures.windows
        report.tables = self.engine.teacher.tables.figures()
        report.total_rows = self.account.rows
        report.note = "; ".join(filter(None, [self.checkpointer.note, *self.account.notes])) or None
        report.counts = self.account.counts((TEACHER,), {TEACHER: self.tally.trained_rows})
        if not self._ranks.first:
            return
        self.checkpointer.renew()
        self._lake.refresh()
        report.lag_rows = max(0, self._lake.last_lake_seq - self.place.lake_seq)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(self.tally.event_time_ms)
