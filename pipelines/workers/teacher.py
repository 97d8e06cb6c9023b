"""The teacher in its stream: learns every block of the examples topic, in order, and publishes snapshots.

    examples topic --> whole blocks --> batches cut inside a block --> train --> checkpoint --> snapshot

Version v of a snapshot has learned the blocks 0 … v-1; version 0 is the seeded initial state. In lockstep every block's
end is published, in free pace every `publish_every_rows` rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from torch import Tensor

from exfm.batch import BatchBuilder
from exfm.checkpoint import Stored, load, names, prune, save
from exfm.pieces import Pieces
from exfm.teacher import Teacher
from exfm.teacher_scorer import snapshot_of
from pipelines.config import Config
from pipelines.layout import RunDir
from pipelines.learned import Learned
from pipelines.task_metrics import TaskMetrics
from pipelines.workers.base import Rendezvous, Report, seconds_since
from pipelines.workers.model import ModelWorker
from streaming.examples import Block, BlockPosition, ExamplesReader
from streaming.lake_reader import LakeReader
from streaming.position import NOTHING_YET, Partition, Positions, SourcePosition

log = logging.getLogger(__name__)


def snapshot_name(version: int) -> str:
    return f"v{version:08d}"


class TeacherWorker(ModelWorker):
    kind = "teacher"

    def __init__(self, config: Config, run_dir: RunDir, at: Rendezvous = Rendezvous()) -> None:
        super().__init__("teacher", config, run_dir)
        self._block: Block | None = None
        self._missed: Iterator[Block] = iter(())
        self._next_row = 0
        self._version = self._saved_version = 0
        self._published_version: int | None = None
        self._event_time_ms: int | None = None
        self._rows_since_publish = 0

    def open(self) -> None:
        config, kafka = self._config, self._config.kafka
        self.take_up()
        self._publish()
        self._lake = LakeReader(self._run_dir.lake, config.rows)
        examples = kafka.examples
        self._reader = ExamplesReader(kafka, examples.topic, examples.partitions, config.rows, self._lake.id)
        self._reader.open(BlockPosition(self._version - 1, self._positions))

    def take_up(self) -> None:
        """The teacher as its last checkpoint left it."""
        config = self._config
        self._teacher = Teacher(config.teacher.model, config.features, config.tasks, config.seed)
        self._build = BatchBuilder(config.features, config.tasks)
        self._learned = Learned(config.tasks)
        self._trained_rows = 0
        self._judge = TaskMetrics(config.tasks)
        self._positions: Positions = {}
        stored = self._begin({"rng": self._teacher.random.state})
        self._set_up_quarantine(["teacher"], config.tasks, stored)
        self._restore(stored)

    # --- learning ----------------------------------------------------------------------------------------------

    def _train(self) -> bool:
        """Learn one batch, or fetch the next block."""
        if self._block is None:
            if self.orders.end_seq is not None and self._seq >= self.orders.end_seq:
                return self._end()
            with self.watch("read"):
                self._block = self._next_block()
            self._next_row = 0
            if self._block is None:
                self._reissue()
            return self._block is not None
        stop = min(self._next_row + self._config.teacher.batch_rows, self._block.rows.num_rows)
        self._learn(self._block.rows.slice(self._next_row, stop - self._next_row))
        self._next_row = stop
        if stop == self._block.rows.num_rows:
            self._block_end(self._block)
        return True

    def _next_block(self) -> Block | None:
        missed = next(self._missed, None)
        if missed is not None:
            return missed
        block = self._reader.next_batch(0.05)
        if block is not None and block.first_seq > self._seq + 1:
            # The topic no longer holds what comes next; the lake does.
            self._missed = chain(self._from_lake(self._seq, block.first_seq - 1), [block])
            return next(self._missed)
        end = self.orders.end_seq
        if block is None and end is not None and self._seq < end and self._reader.at_end():
            self._missed = self._from_lake(self._seq, end)  # all was published, and is no longer on the topic
            return next(self._missed, None)
        return block

    def _from_lake(self, after: int, upto: int) -> Iterator[Block]:
        log.info("the examples topic has no longer lake_seq %d to %d: they come from the lake", after + 1, upto)
        self._lake.refresh()
        for rows in self._lake.blocks(after, upto):
            seq = rows["lake_seq"]
            yield Block(rows["block"][0].as_py(), seq[0].as_py(), seq[-1].as_py(), rows, dict(self._positions))

    def _learn(self, rows: pa.Table) -> None:
        with self.watch("batch"):
            batch = self._build(rows)
        with self.watch("train"):
            result = self._teacher.train_step(batch)
        with self.watch("metrics"):
            if result.finite:
                self._learned.add(rows)
                self._trained_rows += rows.num_rows
            self._judge_step("teacher", rows, result)
            self._judge.judge(batch, result)
        self._seq = rows["lake_seq"][-1].as_py()
        self._event_time_ms = rows["event_time_ms"][-1].as_py()
        self.rows += rows.num_rows
        self._rows_since_publish += rows.num_rows

    def _block_end(self, block: Block) -> None:
        self._block = None
        self._version = block.number + 1
        self._positions = block.positions
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
            tensors: dict[str, Tensor | Pieces] = {**self._teacher.state(), **self._judge.state()}
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

    def _save_snapshot(self, name: str, tensors: Mapping[str, Tensor | Pieces], meta: Mapping[str, Any]) -> None:
        """In the writer's thread."""
        root = self._run_dir.snapshots
        save(root, name, tensors, meta, kind="teacher-snapshot")
        prune(root, keep=max(self._config.teacher.keep_snapshots, self._config.pace.lag + 2))

    def _save_last(self) -> None:
        if self._version != self._saved_version:
            self.checkpoint(publish=True)
        elif self._version != self._published_version:
            self._publish()

    def _reissue(self) -> None:
        """Write a snapshot again that was found damaged and set aside, from the checkpoint it was made with."""
        for damaged in self._run_dir.snapshots.glob(".damaged-v*"):
            name = damaged.name.removeprefix(".damaged-")
            if (self._run_dir.snapshots / name).exists() or self._writer is None or not self._writer.idle:
                continue
            if name == snapshot_name(0):
                config = self._config
                teacher = Teacher(config.teacher.model, config.features, config.tasks, config.seed)
                first = {"version": 0, "lake_seq": NOTHING_YET, "learned": Learned(config.tasks).state()}
                tensors, meta = teacher.snapshot(), self._meta() | first
                teacher.close()
            elif name in names(self._checkpoints):
                stored = load(self._checkpoints / name)
                tensors = dict(snapshot_of(stored.tensors))
                meta = {key: stored.meta[key] for key in self._meta()}
            else:
                continue
            log.warning("snapshot %s was found damaged: it is written again", name)
            self._put(partial(self._save_snapshot, name, tensors, meta))

    @property
    def _kept_checkpoints(self) -> int:
        """In lockstep, of every snapshot that may still be asked for."""
        return max(2, self._config.pace.lag if self._config.pace.mode == "lockstep" else 0)

    def _meta(self) -> dict[str, Any]:
        return {
            "config_hash": self._config.hash,
            "version": self._version,
            "lake_seq": self._seq,
            "learned": self._learned.state(),
        }

    def _restore(self, stored: Stored | None) -> None:
        if stored is None:
            return
        tensors, meta = stored.tensors, stored.meta
        self._teacher.load_state({k: v for k, v in tensors.items() if not k.startswith("metrics/")})
        self._judge.load(tensors)
        self._version = self._saved_version = meta["version"]
        self._learned = Learned(self._config.tasks, meta["learned"])
        self._trained_rows = meta["trained_rows"]["teacher"]
        self._positions = {
            Partition(topic, partition): SourcePosition(offset, row)
            for topic, partition, offset, row in meta["positions"]
        }
        log.info("resumed after block %d, lake_seq %d", self._version - 1, self._seq)

    def close(self) -> None:
        """Every block's end was put on its way when it was reached, as far as the config asks: it is on disk after."""
        try:
            super().close()
        finally:
            self._reader.close()
            self._teacher.close()

    def describe(self, report: Report) -> None:
        super().describe(report)
        self._lake.refresh()
        report.lag_rows = max(0, self._lake.last_lake_seq - self._seq)
        if self._config.pace.mode == "free":
            report.lag_event_time_s = seconds_since(self._event_time_ms)
        report.teacher_version = self._version
        report.ne = self._judge.ne

    def _counts(self) -> dict[str, Any]:
        return {
            "learned": self._learned.state(),
            "trained_rows": self._trained_rows,
            "quarantined_rows": self._quarantines["teacher"].rows,
        }
