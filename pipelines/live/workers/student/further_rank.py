"""A rank of a student beyond the first: it reads the rows that rank 0 reads, and takes part in every step.

    rank 0, the worker                         the other ranks
    has a batch       ──learn────────────►     have it, too, or not yet
                      ◄──offers, together──►   all have it: they take the step, else rank 0 asks again
    saves             ──compare──────────►
                      ◄──checksums─────────►   of what each holds

Every rank holds the whole student, alike to the bit, so what lasts is rank 0's affair only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from exfm.snapshots.checkpoint import Checkpoint, open_checkpoint
from exfm.snapshots.windows import TensorSource
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.rounds import FurtherRank
from pipelines.live.workers.student.reading import SharedCache, batch_builder, lake_source, student_feed
from pipelines.live.workers.student.state import begin, engine_of
from streaming.lake.withdrawn import Withdrawn
from streaming.messages.source import EndOfStream

NO_BATCH, AT_END = [-1, 0], [-2, 0]
"""Offers of a rank that has no batch yet, and of one whose stream has ended."""


def offer_of(batch: StudentBatch | None) -> list[int]:
    """Offer of a rank that has this batch: its last `lake_seq`, and its rows."""
    return NO_BATCH if batch is None else [batch.rows["lake_seq"][-1].as_py(), batch.rows.num_rows]


class StudentRank(FurtherRank):
    kind = "student"

    def __init__(self, config: Config, settings: StudentSettings, run_dir: RunDir, at: Rendezvous) -> None:
        super().__init__(f"student-{settings.name}", config, run_dir, at)
        self._settings = settings
        self._batch: StudentBatch | None = None

    def open(self) -> None:
        super().open()
        config, settings, run_dir = self._config, self._settings, self._run_dir
        begun = json.loads(self._ranks.broadcast_text(lambda: ""))
        stored: Checkpoint[TensorSource] | None = None
        if begun["checkpoint"] is not None:
            stored = open_checkpoint(run_dir.checkpoints(f"student-{settings.name}") / begun["checkpoint"])
        self.engine = engine_of(config, settings, self.watch, self._ranks.group, baselines=False)
        begin(self.engine, stored, config, settings, run_dir)
        cache = SharedCache(run_dir.lake, config.rows, config.resources.shared_rows_bytes)
        withdrawn = Withdrawn(run_dir.lake.parent, begun["withdrawals"])
        source = lake_source(config, settings, cache.lake, withdrawn)
        build = batch_builder(config, settings, cache.features)
        self.feed = student_feed(config, settings, source, build, self.watch)
        self._held.callback(self.feed.close)
        position = settings.first_seq - 1 if stored is None else stored.meta["lake_seq"]
        self.feed.open(position, 0 if stored is None else stored.meta["rows"])
        self._ranks.barrier()

    def _obey(self, order: Any, parts: Sequence[memoryview]) -> None:
        if order["do"] == "compare":
            self._ranks.all_gather([self.engine.checksum()])
            return
        self.feed.end_at(order["end_seq"])
        try:
            with self.watch("wait for rows"):
                self._batch = self._batch or self.feed.read()
            mine = offer_of(self._batch)
        except EndOfStream:
            mine = AT_END
        with self.watch("wait for ranks"):
            offers = self._ranks.all_gather(mine).tolist()
        if self._batch is not None and all(offer == mine for offer in offers):
            batch, self._batch = self._batch, None
            for table, ids in order["forget"]:
                self.engine.forget(table, torch.tensor(ids))
            self.engine.step(batch.tensors)
            self.rows += batch.rows.num_rows
            self.feed.left_out(mine[0])  # rank 0 counts them
