"""A further teacher of a run: it learns the lake beside the first one, and scores every row into a logit set.

    lake ──► block, scored by the first teacher with v blocks learned ──► learn until v ──► score ──► logit set NAME

Both have learned the same blocks when they score a row, and neither the row: their logits may be compared, and a
student learns from one or the other (`logits: NAME`). A row's logits are on the disk before its teacher learns on, so a
restart scores what is missing with the same state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import FurtherTeacher
from pipelines.core.run_dir.paths import BesideRun, RunDir
from pipelines.live.training.set_writer import LogitSetWriter
from pipelines.live.training.unseen_labels import not_yet_learned
from pipelines.live.workers.report import Report
from pipelines.live.workers.teacher.candidate import CandidateTeacher
from pipelines.live.workers.worker import Orders, Worker
from streaming.errors import BadInput
from streaming.hashing import hash64
from streaming.lake.erasure.holes import Holes
from streaming.lake.logit_set import SetDescription, described
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.withdrawn import record_of
from streaming.store.files import make_folder, read_json, write_json

REGISTER_EVERY_S = 5.0
BEGUN = "begun.json"

log = logging.getLogger(__name__)


class FurtherTeacherWorker(Worker):
    kind = "further teacher"

    def __init__(self, config: Config, settings: FurtherTeacher, run_dir: RunDir) -> None:
        super().__init__(f"teacher-{settings.name}")
        self._config, self._name, self._run_dir = config, settings.name, run_dir
        own = settings.as_teacher.model_copy(update={"only": config.teacher.only})
        self._own_config = config.model_copy(update={"teacher": own})
        self._blocks: Iterator[pa.Table] = iter(())
        self._rows: pa.Table | None = None
        self._done = False

    def open(self) -> None:
        config, beside = self._own_config, self._run_dir.side_tables
        space = 1 + int(hash64(pa.array([f"teacher {self._name}"]))[0] % (2**31 - 2))
        folder = BesideRun(self._run_dir.further_teacher(self._name), self._run_dir)
        if (begun := read_json(folder.root / BEGUN)) is None:
            begun = {"withdrawals": len(record_of(beside))}
            make_folder(folder.root)
            write_json(folder.root / BEGUN, begun)
        self.candidate = CandidateTeacher(config, folder, space, begun["withdrawals"])
        self.candidate.open()
        self._lake = LakeReader(self._run_dir.lake, config.rows)
        one = described(beside, self._name)
        if one is not None and one.asked != {"teachers": self._name}:
            raise BadInput(
                f"teacher `{self._name}` of `teachers` has the name of a logit set of {one.teacher}; take another name"
            )
        self.writer = LogitSetWriter(beside, one or self._description(space))
        if one is None:
            self.writer.describe()
        self._register()
        self._done = self.writer.description.complete

    def _description(self, space: int) -> SetDescription:
        config, first = self._own_config, self._lake.first_lake_seq
        width = config.teacher.model.representation
        return SetDescription(
            name=self._name,
            lake=self._lake.id,
            first=first,
            last=first - 1,
            tasks=config.tasks,
            representation=width is not None and width == config.rows.teacher_embedding,
            teacher=f"the run's teacher `{self._name}`, each row before it was learned",
            version=None,
            snapshot="",
            space=space,
            known_rows=0,
            asked={"teachers": self._name},
            as_versioned=True,
        )

    def step(self) -> bool:
        """Learn a batch, or score a block."""
        candidate = self.candidate
        candidate.checkpointer.check()
        self._rows = self._next_block() if self._rows is None else self._rows
        if self._rows is None:
            return self._finish()
        version = self._rows["teacher_version"][0].as_py()
        if version is not None and candidate.place.version < version:
            candidate.orders = Orders()
            with self.watch("train"):
                return candidate.step()
        self._score(self._rows, version)
        self.rows += self._rows.num_rows
        self._rows = None
        return True

    def _next_block(self) -> pa.Table | None:
        with self.watch("read"):
            rows = next(self._blocks, None)
            if rows is None:
                self._lake.refresh()
                self._blocks = self._lake.blocks(self.writer.done)
                rows = next(self._blocks, None)
            return rows

    def _score(self, rows: pa.Table, version: int | None) -> None:
        config, last = self._own_config, rows["lake_seq"][-1].as_py()
        scored = self.writer.nothing(rows["lake_seq"])
        with self.watch("score"):
            if version is not None and self.candidate.place.version == version:
                answer = self.candidate.score(rows)
                upto = self.candidate.learned_upto_ms
                honest = not_yet_learned(rows, config.tasks, config.rows.groups, upto)
                scored = self.writer.rows(rows["lake_seq"], *answer, honest)
            elif version is not None:
                log.warning("rows up to lake_seq %d are not scored: version %d is learned past", last, version)
        with self.watch("commit"):
            self.writer.commit(scored, last)
        if time.monotonic() - self._registered_at >= REGISTER_EVERY_S:
            self._register()

    def _register(self) -> None:
        """Keep the lake's rows that are still to be learned or scored."""
        position = min(self.writer.done, self.candidate.saved_seq)
        Readers(self._run_dir.readers).register(self.name, position)
        self._registered_at = time.monotonic()

    def _finish(self) -> bool:
        """At the end of a bounded stream: the set is complete once every row is scored."""
        end = self.orders.end_seq
        if end is None or not Holes.of(self._run_dir.side_tables).cover(self.writer.done + 1, end):
            return False
        self.writer.complete()
        self._register()
        self._done = True
        return True

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        self.candidate.close()

    def abandon(self) -> None:
        self.candidate.abandon()

    def describe(self, report: Report) -> None:
        place, tally = self.candidate.place, self.candidate.tally
        report.lake_seq, report.teacher_version = self.writer.done, place.version
        report.ne, report.total_rows = tally.figures.ne, self.writer.done + 1
        report.windows = tally.figures.windows
        self._lake.refresh()
        report.lag_rows = max(0, self._lake.last_lake_seq - self.writer.done)
        report.note = self.candidate.checkpointer.note
