"""The teacher in its stream: learns every block of the examples topic, in order, and publishes snapshots.

    examples topic --> whole blocks --> batches cut inside a block --> train --> checkpoint --> snapshot

Version v of a snapshot has learned the blocks 0 … v-1; version 0 is the seeded initial state. In lockstep every block's
end is published, in free pace every `publish_every_rows` rows.

It may be several processes, its ranks. Each reads partitions of its own and builds its share of every batch
(`Batches`); before a block they agree that all of them have it (`_agree`), and at its end each knows what all have
learned (`BlockTally`): counts, metrics and positions are those of all rows, on every rank. Rank 0 tells the world.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from exfm.data import BatchBuilder
from exfm.errors import ModelError
from exfm.growth import stored_teacher
from exfm.models import SentBatch as Sent
from exfm.models import Teacher, snapshot_of
from exfm.tensors import (
    Checkpoint,
    Storable,
    TensorPieces,
    checkpoint_names,
    open_checkpoint,
    prune_checkpoints,
    read_manifest,
    whole_tensor,
)
from pipelines.config import Config, made_with_teacher
from pipelines.run_dir import RunDir
from pipelines.training import Learned, TaskMetrics
from pipelines.workers import ModelWorker, Ranks, Rendezvous, Report, seconds_since
from pipelines.workers.teacher.batches import Agreed, Batches, Prepared, cuts
from pipelines.workers.teacher.tally import BlockTally
from streaming.delivery import BlockPosition, ExamplesReader, check_whole
from streaming.errors import StreamingError
from streaming.lake import LakeReader
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition

log = logging.getLogger(__name__)


def snapshot_name(version: int) -> str:
    return f"v{version:08d}"


class TeacherWorker(ModelWorker):
    kind = "teacher"

    def __init__(self, config: Config, run_dir: RunDir, at: Rendezvous = Rendezvous()) -> None:
        super().__init__("teacher", config, run_dir)
        self._at = at
        self._made_with = made_with_teacher(config)
        self._block: Agreed | None = None
        self._ready: Prepared | None = None
        self._sent: Sent | None = None
        self._next_step = self._own_rows = 0
        self._version = self._saved_version = 0
        self._published_version: int | None = None
        self._event_time_ms: int | None = None
        self._rows_since_publish = 0

    def open(self) -> None:
        config, kafka = self._config, self._config.kafka
        self.take_up()
        self._ranks.meet()  # a large teacher takes one longer to draw, or to read, than another
        if self._ranks.lead(self._published_before_it_grew()):
            self._published_version = self._version
        else:
            self._publish()
        self._lake = LakeReader(self._run_dir.lake, config.rows)
        examples, mine = kafka.examples, self._mine
        reader = ExamplesReader(kafka, examples.topic, examples.partitions, config.rows, self._lake.id, mine)
        reader.open(self._position)
        self._batches = self._batches_from(reader, LakeReader(self._run_dir.lake, config.rows))
        self._ranks.meet()

    def take_up(self) -> None:
        """The teacher as its last checkpoint left it."""
        config = self._config
        self._ranks = Ranks(self._at)
        self._mine = self._ranks.share(config.kafka.examples.partitions)
        self._teacher = self._seeded()
        self._build = BatchBuilder(config.features, config.tasks)
        self._learned = Learned(config.tasks)
        self._trained_rows = 0
        self._judge = TaskMetrics(config.tasks)
        self._tally = BlockTally(config.tasks, self._ranks)
        self._positions: Positions = {}
        stored = self._begin({"rng": self._teacher.random.state})
        self._set_up_quarantine(["teacher"], config.tasks, stored)
        self._restore(stored)

    def _seeded(self) -> Teacher:
        """As it is before it has learned anything."""
        config, teacher = self._config, self._config.teacher
        return Teacher(
            teacher.model,
            config.features,
            config.tasks,
            config.seed,
            group=self._ranks.group,
            sharding=teacher.sharding,
            batch_rows=teacher.batch_rows,
        )

    def _batches_from(self, reader: ExamplesReader, lake: LakeReader) -> Batches:
        config = self._config.teacher
        return Batches(
            reader,
            lake,
            self._build,
            partitions=self._config.kafka.examples.partitions,
            mine=self._mine,
            batch_rows=config.batch_rows,
            ahead=config.read_ahead,
            watch=self.watch.beside() if config.read_ahead else self.watch,
        )

    @property
    def _position(self) -> BlockPosition:
        """Where this rank's reader goes on behind the last block that was learned."""
        mine = {p: at for p, at in self._positions.items() if p.partition in self._mine}
        return BlockPosition(self._version - 1, mine)

    # --- learning ----------------------------------------------------------------------------------------------

    def _train(self) -> bool:
        """Learn one batch, or agree on the next block."""
        if self._block is None:
            if self.orders.end_seq is not None and self._seq >= self.orders.end_seq:
                return self._end()
            self._block = self._agree()
            self._next_step = 0
            if self._block is None:
                self._reissue()
            return self._block is not None
        self._learn(self._block, self._next_step)
        self._next_step += 1
        if self._next_step == len(self._block.cuts) - 1:
            self._block_end(self._block)
        return True

    def _next_batch(self) -> Prepared | None:
        """This rank's next batch: of the block at hand there always is one, of the next one only once it is here."""
        if self._ready is None:
            with self.watch("wait for rows"):
                self._ready = self._batches.read(of_block=self._block is not None)
        return self._ready

    def _agree(self) -> Agreed | None:
        """The block that comes next, once every rank has its part of it; what the topic no longer holds comes from the
        lake. A collective: from what all ranks tell, all conclude the same."""
        end, topic = self.orders.end_seq, self._config.kafka.examples
        if end is not None:
            self._batches.ask_for_end()
        ready = self._next_batch()
        offsets = np.zeros(topic.partitions, np.int64)
        counts, number, first, last = np.zeros_like(offsets), NOTHING_YET, NOTHING_YET, NOTHING_YET
        if ready is not None:
            block, counts = ready.portion.block, ready.portion.counts
            number, first, last = block.number, block.first_seq, block.last_seq
            for partition, at in (block.positions or self._position.positions).items():
                offsets[partition.partition] = at.offset
        with self.watch("wait for ranks"):
            told = self._ranks.tell([number, first, last, self._batches.at_end, *counts, *offsets])
        have, firsts, ends = told[:, 0] != NOTHING_YET, told[:, 1], told[:, 3] != 0
        if have.all():
            if firsts.max() > self._seq + 1:
                behind = int(told[firsts.argmax(), 0]) - 1
                self._go_on_from_lake(int(firsts.max()) - 1, behind)
                return None
            if ready is None or firsts.min() <= self._seq:
                raise StreamingError(f"a rank has lake_seq {firsts.min()} at hand, {self._seq + 1} comes next")
            counts, offsets = told[:, 4:].sum(0).reshape(2, -1)
            check_whole(number, first, last, int(counts.sum()))
            positions = {Partition(topic.topic, p): SourcePosition(int(at)) for p, at in enumerate(offsets)}
            return Agreed(ready.portion, cuts(counts, self._config.teacher.batch_rows, last - first + 1), positions)
        if end is not None and (have | ends).all():
            self._go_on_from_lake(end, self._version - 1)  # all was published, and is no longer on the topic
        return None

    def _go_on_from_lake(self, upto: int, behind: int) -> None:
        self._ready = None
        self._batches.go_on_from_lake(self._seq, upto, self._position._replace(after_block=behind))

    def _learn(self, block: Agreed, step: int) -> None:
        """One step, which is one of all ranks; one that has no rows for it takes part all the same."""
        ready, rows = self._next_batch(), block.rows_of(step)
        self._ready = None
        assert ready is not None
        assert ready.portion is block.portion
        assert ready.step == step
        if not rows:  # so few rows in so many partitions
            return
        sent, self._sent = self._sent or ready.batch, None
        self._send_ahead(block, step + 1)
        with self.watch("train"):
            result = self._teacher.train_step(sent)
        with self.watch("metrics"):
            start, stop = block.cuts[step : step + 2, : self._mine.start].sum(1).tolist()
            self._tally.add(ready, result, place=stop - start, rows=rows)
            if result.finite:
                self._trained_rows += rows
                self._quarantines["teacher"].well()
            else:
                with self._told_if_hopeless():
                    self._tally.leave_out(self._quarantines["teacher"], ready, result)
        self._seq += rows
        self._event_time_ms = ready.rows["event_time_ms"][-1].as_py() if ready.rows.num_rows else self._event_time_ms
        self.rows += rows
        self._own_rows += ready.rows.num_rows
        self._rows_since_publish += rows

    def _send_ahead(self, block: Agreed, step: int) -> None:
        """Have the ids of a step travel while the one before it computes; inside a block, where all know that it comes.
        A collective."""
        one_by_one = self._ranks.count == 1 or not self._batches.threaded
        if one_by_one or step == len(block.cuts) - 1 or not block.rows_of(step):
            return
        ready = self._next_batch()
        assert ready is not None
        with self.watch("send ids"):
            self._sent = self._teacher.prepare(ready.batch)

    def _block_end(self, agreed: Agreed) -> None:
        self._block = None
        self._version = agreed.portion.block.number + 1
        self._seq, self._positions = agreed.portion.block.last_seq, agreed.positions
        with self.watch("metrics"):
            self._tally.finish(self._judge, self._learned)
        lockstep = self._config.pace.mode == "lockstep"
        publish = lockstep or self._rows_since_publish >= self._config.teacher.publish_every_rows
        if publish or self._version % self._config.teacher.checkpoint_every_blocks == 0:
            self.checkpoint(publish=publish)
        self.log_metrics(self._seq + 1, self._judge.values())

    # --- what lasts --------------------------------------------------------------------------------------------

    def checkpoint(self, *, publish: bool = False) -> None:
        """Only at a block's end: a half learned block is learned again from its start."""
        if self._block is not None or self._version == 0:
            return
        with self.watch("checkpoint"):
            name, snapshot_meta = snapshot_name(self._version), self._meta()
            tensors: dict[str, Tensor | TensorPieces] = {**self._teacher.state(), **self._judge.state()}
            positions = [[*partition, *position] for partition, position in self._positions.items()]
            rows = {"teacher": self._trained_rows}
            meta = snapshot_meta | self._checkpoint_meta(rows, self._seq + 1) | {"positions": positions}

        def write() -> None:
            self._save_checkpoint(name, tensors, meta)
            if publish:
                self._save_snapshot(name, snapshot_of(tensors), snapshot_meta)
            self._finish_checkpoint()

        self._put(write)
        self._saved_version = self._version
        if publish:
            self._rows_since_publish = 0
            self._published_version = self._version

    def _publish(self) -> None:
        """The state as it is: at the start what a crash may have kept from being published, at the end the last."""
        with self.watch("checkpoint"):
            name, tensors, meta = snapshot_name(self._version), self._teacher.snapshot(), self._meta()
        self._put(lambda: self._save_snapshot(name, tensors, meta))
        self._rows_since_publish = 0
        self._published_version = self._version

    def _save_snapshot(
        self, name: str, tensors: Mapping[str, Storable], meta: Mapping[str, Any], *, alone: bool = False
    ) -> None:
        """In the writer's thread. `alone`: this rank has it all."""
        root = self._run_dir.snapshots
        self._save(root, name, tensors, meta, kind="teacher-snapshot", alone=alone)
        if self._ranks.first:
            prune_checkpoints(root, keep=max(self._config.teacher.keep_snapshots, self._config.pace.lag + 2))

    def _save_last(self) -> None:
        if self._version != self._saved_version:
            self.checkpoint(publish=True)
        elif self._version != self._published_version:
            self._publish()

    def _reissue(self) -> None:
        """Write a snapshot again that was found damaged and set aside, from the checkpoint it was made with. What is
        there is for rank 0 to see."""
        version = self._ranks.lead(self._damaged() if self._ranks.first else 0)
        if version == NOTHING_YET:
            return
        assert self._writer is not None
        name = snapshot_name(version)
        log.warning("snapshot %s was found damaged: it is written again", name)
        tensors: Mapping[str, Storable]
        if version == 0:
            teacher = self._seeded()
            first = {"version": 0, "lake_seq": NOTHING_YET, "learned": Learned(self._config.tasks).state()}
            tensors, meta = teacher.snapshot(), self._meta() | first
            teacher.close()
            self._ranks.meet()
            self._put(partial(self._save_snapshot, name, tensors, meta))
        elif self._ranks.first:  # from what is on disk: no rank is needed for it
            stored = open_checkpoint(self._checkpoints / name)
            tensors = snapshot_of(stored.tensors)
            meta = {key: stored.meta[key] for key in self._meta() if key in stored.meta}
            self._writer.put(partial(self._save_snapshot, name, tensors, meta, alone=True))

    def _damaged(self) -> int:
        """The version of a snapshot that was set aside and can be written again; -1 where there is none."""
        if self._writer is None or not self._writer.idle:
            return NOTHING_YET
        for damaged in self._run_dir.snapshots.glob(".damaged-v*"):
            name = damaged.name.removeprefix(".damaged-")
            there = name == snapshot_name(0) or name in checkpoint_names(self._checkpoints)
            if there and not (self._run_dir.snapshots / name).exists():
                return int(name[1:])
        return NOTHING_YET

    @property
    def _kept_checkpoints(self) -> int:
        """In lockstep, of every snapshot that may still be asked for."""
        return max(2, self._config.pace.lag if self._config.pace.mode == "lockstep" else 0)

    def _meta(self) -> dict[str, Any]:
        return {
            "config_hash": self._config.identity(self.name),
            "version": self._version,
            "lake_seq": self._seq,
            "learned": self._learned.state(),
            "made_with": self._made_with.model_dump(mode="json"),
        }

    def _published_before_it_grew(self) -> bool:
        """Whether this version's snapshot is there, of a config that this one came from: readers fit it by the same
        rule as we did, and no name is written twice."""
        if snapshot_name(self._version) not in checkpoint_names(self._run_dir.snapshots):
            return False
        try:
            meta = read_manifest(self._run_dir.snapshots / snapshot_name(self._version))["meta"]
        except ModelError:  # whoever reads it sets it aside, and it is written again
            return False
        return bool(meta["config_hash"] != self._config.identity(self.name))

    def _restore(self, stored: Checkpoint | None) -> None:
        if stored is None:
            return
        tensors, meta = stored_teacher(stored, self._made_with), stored.meta
        self._teacher.load_state({k: v for k, v in tensors.items() if not k.startswith("metrics/")})
        self._judge.load({k: whole_tensor(v) for k, v in tensors.items() if k.startswith("metrics/")})
        self._version = self._saved_version = meta["version"]
        self._learned = Learned(self._config.tasks, meta["learned"])
        self._trained_rows = meta["trained_rows"]["teacher"]
        self._positions = {
            Partition(topic, partition): SourcePosition(offset, row)
            for topic, partition, offset, row in meta["positions"]
        }
        log.info("resumed after block %d, lake_seq %d", self._version - 1, self._seq)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._teacher.close()
            self._ranks.close()

    def _let_go(self) -> None:
        super()._let_go()
        if (batches := getattr(self, "_batches", None)) is not None:  # else it died while it was opened
            batches.close()

    def describe(self, report: Report) -> None:
        super().describe(report)
        report.own_rows = self._own_rows
        report.teacher_version = self._version
        report.ne = self._judge.ne
        if not self._ranks.first:
            return
        self._lake.refresh()
        report.lag_rows = max(0, self._lake.last_lake_seq - self._seq)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(self._event_time_ms)

    def _counts(self) -> dict[str, Any]:
        return {
            "learned": self._learned.state(),
            "trained_rows": self._trained_rows,
            "quarantined_rows": self._quarantines["teacher"].rows,
        }
