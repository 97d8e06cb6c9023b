"""A teacher that learns a run's lake beside the run's own teacher, into a folder of its own.

It is the worker itself, fed by the lake in place of the examples topic: the same blocks, the same steps. Its
checkpoints and snapshots lie and are named as the run's, so they can take their place.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from exfm.features.batch import BatchBuilder
from exfm.models.scorer import TeacherAnswer, TeacherScorer
from exfm.snapshots.quantised_state import as_read
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import BesideRun
from pipelines.live.workers.checkpointer import needed_after
from pipelines.live.workers.teacher.worker import TeacherPlace, TeacherWorker
from pipelines.live.workers.worker import Orders
from streaming.delivery.reader import Block, BlockPosition
from streaming.lake.reader import LakeReader
from streaming.lake.withdrawn import Withdrawn


class LakeBlocks:
    """The blocks of a lake, read as the examples topic is: those that were committed by the last look. Withdrawn rows
    are in their place, without labels."""

    def __init__(self, lake: LakeReader, after: int, withdrawn: Withdrawn) -> None:
        """`after`: the `lake_seq` behind which the first block begins."""
        self._lake, self._after, self._withdrawn = lake, after, withdrawn
        self._blocks: Iterator[pa.Table] = iter(())

    def next_batch(self, max_wait_s: float = 0.0) -> Block | None:
        rows = next(self._blocks, None)
        if rows is None:
            self._lake.refresh()
            self._blocks = self._lake.blocks(self._after)
            rows = next(self._blocks, None)
        if rows is None:
            return None
        seq = rows["lake_seq"]
        self._after = seq[-1].as_py()
        rows = self._withdrawn.unlabelled(rows, self._lake.schema)
        return Block(rows["block"][0].as_py(), seq[0].as_py(), self._after, rows, {})

    def at_end(self) -> bool:
        return True

    def seek(self, position: BlockPosition) -> None:
        raise AssertionError("a lake has no gaps")

    def close(self) -> None:
        pass


class CandidateTeacher(TeacherWorker):
    """A teacher of this config, trained on the lake of a run. `space`: of its representation, where it begins.
    `withdrawals`: how many of the lake it knows (None: all that there are)."""

    def __init__(self, config: Config, folder: BesideRun, space: int, withdrawals: int | None = None) -> None:
        super().__init__(config, folder)
        self.space = space
        self._withdrawn = Withdrawn(folder.lake.parent, withdrawals)
        features, tasks, model = config.teacher_features, config.tasks, config.teacher.model
        self._build, self._scorer = BatchBuilder(features, tasks), TeacherScorer(model, features, tasks)
        self._scored_by: int | None = None

    def open(self) -> None:
        self.resume()
        if self.place.version >= self._config.teacher.first_version:
            self._publish_resumed()
        lake, rows = self._run_dir.lake, self._config.rows
        self._lake = LakeReader(lake, rows)
        if self._lake.first_lake_seq > 0 and not self.place.version:
            self._begin_later()
        blocks = LakeBlocks(LakeReader(lake, rows), self.place.lake_seq, self._withdrawn)
        self.feed_from(blocks, LakeReader(lake, rows))

    def _begin_later(self) -> None:
        """Begin behind the first block that the lake still has, since of that rows may be gone."""
        blocks = self._lake.blocks()
        if (first := next(blocks, None)) is not None:
            self.place = TeacherPlace(first["block"][0].as_py() + 1, first["lake_seq"][-1].as_py(), {})

    @property
    def saved_seq(self) -> int:
        """The last row that no checkpoint needs again."""
        return needed_after(self.checkpointer.checkpoints, keep=2)

    @property
    def learned_upto_ms(self) -> int | None:
        """Event time up to which it had learned rows before the lake's."""
        return self._config.teacher.learned_upto_ms

    def learn_until(self, version: int) -> None:
        """Learn the blocks before `version`, which the lake has; of one at its end all rows may be erased."""
        while self.place.version < version and not self._ends_with_a_hole():
            self.step()

    def _ends_with_a_hole(self) -> bool:
        """True if the lake has rows behind the last that was learned, and all of them are erased."""
        if not self._holes.rows:
            return False
        self._lake.refresh()
        end = self._lake.last_lake_seq
        return self.place.lake_seq < end and self._holes.cover(self.place.lake_seq + 1, end)

    def learn_upto(self, last: int) -> None:
        """Learn all rows up to this `lake_seq`, and leave checkpoint and snapshot of that state."""
        self.orders = Orders(end_seq=last)
        while not self.done:
            self.step()

    def score(self, rows: pa.Table) -> TeacherAnswer:
        """The answer for rows by the snapshot of the blocks that it has learned, as augmentation would load it."""
        if self._scored_by != self.place.version:
            bits = self._config.teacher.publish_bits
            self._scorer.load(as_read(self.engine.snapshot(), bits))
            self._scored_by = self.place.version
        step = self._config.augmentation.score_rows
        parts = [self._scorer.answer(self._build(rows.slice(at, step))) for at in range(0, rows.num_rows, step)]
        return TeacherAnswer.together(parts)
