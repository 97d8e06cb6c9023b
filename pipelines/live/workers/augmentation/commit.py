"""Commit of a block: its rows reach the lake, and all deliveries that follow happen exactly once."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.block import AugmentedBlock, OpenBlock, ScoredBlock
from pipelines.live.workers.augmentation.feed import Feed
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.delivery.outbox import CommitRecord, Outbox
from streaming.delivery.publisher import ExamplesPublisher
from streaming.errors import DataLost
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.identifiers import STATE
from streaming.lake.delta.log import unfinished
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.writer import LakeWriter
from streaming.position import NOTHING_YET
from streaming.store.working_copy import brought_up

EPOCH_SHIFT = 32
"""State numbers rise over all writers: the writer's epoch in the upper bits, its commits counted in the lower."""

LOOKS = 3
"""A live run may replace a record while it is read: how often the newest one is tried."""

log = logging.getLogger(__name__)


def first_state(epoch: int) -> int:
    """Number of the first state that a writer of this epoch saves."""
    return epoch << EPOCH_SHIFT


def states_folder(run_dir: RunDir, epoch: int) -> Path:
    """Folder of one writer's states. Each has its own folder, so that a fenced writer cannot touch those of its
    successor."""
    return run_dir.checkpoints("augmentation") / f"epoch-{epoch:06d}"


def folder_of_state(run_dir: RunDir, number: int) -> Path:
    """Folder of a state by its number, whoever wrote it."""
    return states_folder(run_dir, number >> EPOCH_SHIFT)


def committed_meta(run_dir: RunDir) -> dict[str, Any] | None:
    """State that a resumed run continues from: `merge`, the merged positions of the input topics at the last commit
    (`watermark_ms`, and for each partition [topic, number, offset, row, greatest event time]), and `sources`, the
    topics' identities. None before the first commit. Raises DataLost where the record is damaged."""
    for attempt in range(LOOKS):
        there = run_dir.lake.is_dir() and unfinished(run_dir.lake) is None
        state = TableFiles(run_dir.lake).identifier(STATE) if there else None
        if state is None or state == NOTHING_YET:
            break
        try:
            return CommitRecord.load(folder_of_state(run_dir, state), state).meta
        except DataLost:  # or replaced meanwhile by the run's next commits
            if attempt == LOOKS - 1:
                raise
    return None


class BlockCommit:
    """Commits blocks, one after another. A commit has four steps:

    1. the settlement state is saved, with the commit record: merge positions, late feedback, dead letters
    2. the lake commit: rows and the number of that state, atomically
    3. late feedback and dead letters are delivered from the record to their tables and their topic
    4. the block is published to the examples topic

    A crash before 2 leaves the block undone, and it is made again from the state before. After a crash behind 2,
    `resume` completes 3 and 4 from the record and the lake; whatever was delivered already is skipped.
    """

    def __init__(
        self,
        run_dir: RunDir,
        lake: LakeWriter,
        feed: Feed,
        outbox: Outbox,
        publisher: ExamplesPublisher,
        watch: Stopwatch,
    ) -> None:
        self.lake = lake
        self._run_dir = run_dir
        self.states = states_folder(run_dir, lake.epoch)
        self._feed = feed
        self._outbox, self._publisher = outbox, publisher
        self._readers = Readers(run_dir.readers)
        self._watch = watch

    def resume(self) -> dict[str, Any] | None:
        """Load the settlement state of the last commit and complete that commit. Returns the `meta` of its record, or
        None for a new lake.

        A lost state is an error. It cannot be made again from the topics and the lake: the topics are read from where
        the state says, ids admitted before that would be admitted again, and only the state says which partition was
        idle when.
        """
        meta: dict[str, Any] | None = None
        if (state := self.lake.state) != NOTHING_YET:
            brought_up(folder_of_state(self._run_dir, state))
            self._feed.load(state)
            record = CommitRecord.load(folder_of_state(self._run_dir, state), state)
            self._outbox.deliver(record)
            meta = record.meta
            log.info("resumed after block %d, lake_seq %d", self.lake.last_block, self.lake.last_lake_seq)
        self._publish_committed()
        return meta

    def commit(
        self, block: ScoredBlock | None, closed: OpenBlock, *, meta: dict[str, Any], counts: Mapping[str, Any]
    ) -> None:
        """Commit a block, or only progress. `meta`: what `resume` returns after a crash."""
        number = max(self.lake.state + 1, first_state(self.lake.epoch))
        record = CommitRecord(number, meta, closed.late(), closed.dead())
        self._save_state(record)  # 1
        self._commit_rows(block, number, counts)  # 2
        self._deliver(record)  # 3
        self._publish(block)  # 4

    def _save_state(self, record: CommitRecord) -> None:
        with self._watch("save state"):
            self._feed.save(record.number, keep=self.lake.state)
            record.save(self.states)

    def _commit_rows(self, block: ScoredBlock | None, number: int, counts: Mapping[str, Any]) -> None:
        with self._watch("commit"):
            if block is None:
                self.lake.commit(None, state=number, metadata={"counts": counts})
            else:
                block.commit(self.lake, number, {"counts": counts})

    def _deliver(self, record: CommitRecord) -> None:
        with self._watch("deliver"):
            self._outbox.deliver(record)
            CommitRecord.prune(self.states, before=record.number - 1)
            if record.number == first_state(self.lake.epoch):
                self._forget_earlier_writers()

    def _forget_earlier_writers(self) -> None:
        for states in self.states.parent.glob("epoch-*"):
            if states < self.states:
                shutil.rmtree(states)

    def _publish(self, block: ScoredBlock | None) -> None:
        if block is None:
            return
        with self._watch("publish"):
            self.lake.check()
            block.publish(self._publisher)
            self._register_published()

    def _publish_committed(self) -> None:
        """Publish what a crash kept from being published."""
        if self._publisher.published_seq < self.lake.last_lake_seq:
            reader = LakeReader(self._run_dir.lake, self.lake.schema)
            after = self._publisher.published_seq
            if after + 1 < reader.first_lake_seq:  # the topic was emptied, and no reader needs what the lake deleted
                log.warning(
                    "rows %d to %d are published no more: deleted (retention)", after + 1, reader.first_lake_seq - 1
                )
                after = reader.first_lake_seq - 1
            for block in reader.blocks(after):
                AugmentedBlock(block.combine_chunks().to_batches()[0]).publish(self._publisher)
        self._register_published()

    def _register_published(self) -> None:
        """The publisher is a reader of the lake: rows that are not on the topic yet are not deleted."""
        self._readers.register("examples topic", self._publisher.published_seq, lasting=True)
