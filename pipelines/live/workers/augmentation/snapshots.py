"""Snapshots of the teacher for augmentation: loads one, and tracks its age."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from exfm.errors import ModelError, OtherFormat
from exfm.features.representation import FIRST_SPACE
from exfm.models.scorer import TeacherAnswer
from exfm.snapshots.checkpoint import checkpoint_names, set_checkpoint_aside
from pipelines.core.run_dir.paths import version_name
from pipelines.live.training.freshness import LearnedToLogit
from pipelines.live.workers.augmentation.scoring import Scorer
from streaming.position import NOTHING_YET
from streaming.store.working_copy import put_tree

log = logging.getLogger(__name__)


class Snapshots:
    """Versions in `folder`, loaded into `scorer` one at a time.

    A snapshot's age is taken from its file's time, bounded by zero and by the time since the last look that did not
    find it: a wall clock that jumps, here or on the teacher's machine, makes no snapshot stale. Only the first look has
    nothing but the file's time.
    """

    def __init__(
        self,
        folder: Path,
        scorer: Scorer,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        freshness: LearnedToLogit | None = None,
    ) -> None:
        """`freshness`: notes each version that has scored."""
        self.scorer, self._freshness = scorer, freshness
        self._folder = folder
        self._now_ms, self._clock = now_ms, clock
        self.inferences = 0  # rows scored; the worker stores and restores the count
        self.version: int | None = None
        self.lake_seq = NOTHING_YET  # the last row that the loaded version has learned
        self.space = FIRST_SPACE  # of its representation
        self._made_at = self._looked_at = float("-inf")
        self._aged: int | None = None  # the version that `_made_at` belongs to

    def load_newest(self) -> int | None:
        """Load the newest readable version; returns the loaded one, or None if there is none yet."""
        for name in reversed(checkpoint_names(self._folder)):
            if self.load(int(name[1:])):
                break
        self._looked_at = self._clock()
        return self.version

    def load(self, version: int) -> bool:
        """Load this version into the scorer; False if it is not published yet."""
        if version == self.version:
            return True
        directory = self._folder / version_name(version)
        if not directory.exists():
            return False
        put_tree(directory)  # rows that it scores outlive this machine, and so does it
        self.version = None  # a scorer that is half loaded scores nothing
        try:
            meta = self.scorer.load(directory)
        except OtherFormat:
            raise
        except ModelError as error:  # the teacher writes it again, or a newer one
            if directory.exists():  # it was not pruned meanwhile
                log.error("%s; it is set aside as %s", error, set_checkpoint_aside(directory).name)
            return False
        self.version, self.lake_seq, self.space = version, meta["lake_seq"], meta.get("space", FIRST_SPACE)
        if version != self._aged:  # otherwise it returns, after a newer one that could not be read
            made_ms = (directory / "manifest.json").stat().st_mtime * 1000
            age_s = min(max(0.0, (self._now_ms() - made_ms) / 1000), self._clock() - self._looked_at)
            self._aged, self._made_at = version, self._clock() - age_s
        return True

    def score(self, rows: pa.RecordBatch, part_rows: int) -> TeacherAnswer | None:
        """The loaded version's answer for the rows, at most `part_rows` at once."""
        answer = self.scorer.score(rows, part_rows)
        self.inferences += rows.num_rows
        if self._freshness is not None and self.version is not None:
            self._freshness.note(self.version)
        return answer

    @property
    def age_s(self) -> float:
        """The age of the loaded version."""
        return self._clock() - self._made_at
