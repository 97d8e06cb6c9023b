"""The teacher's snapshots, as augmentation sees them: one is loaded, and its age is known."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from exfm.errors import ModelError, NewerFormat
from exfm.tensors import checkpoint_names, set_checkpoint_aside
from pipelines.workers.augmentation.scoring import Scorer
from pipelines.workers.teacher import snapshot_name
from streaming.position import NOTHING_YET

log = logging.getLogger(__name__)


class Snapshots:
    """Versions in `folder`, loaded into `scorer` one at a time.

    A snapshot's age is what its file's time says, but never more than the time since we last looked and did not find
    it, and never less than nothing: a wall clock that jumps, here or at the teacher's, makes no snapshot stale. Only at
    the first look there is nothing but the file's time to go by.
    """

    def __init__(
        self,
        folder: Path,
        scorer: Scorer,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._scorer = folder, scorer
        self._now_ms, self._clock = now_ms, clock
        self.version: int | None = None
        self.lake_seq = NOTHING_YET  # the last row that the loaded version has learned
        self._made_at = self._looked_at = float("-inf")
        self._aged: int | None = None  # the version that `_made_at` is of

    def load_newest(self) -> int | None:
        """The version that is loaded: the newest that can be read; None where there is none yet."""
        for name in reversed(checkpoint_names(self._folder)):
            if self.load(int(name[1:])):
                break
        self._looked_at = self._clock()
        return self.version

    def load(self, version: int) -> bool:
        """Make the scorer this version's; False while it is not there yet."""
        if version == self.version:
            return True
        directory = self._folder / snapshot_name(version)
        if not directory.exists():
            return False
        self.version = None  # what is half loaded scores nothing
        try:
            meta = self._scorer.load(directory)
        except NewerFormat:
            raise
        except ModelError as error:  # the teacher writes it again, or a newer one
            if directory.exists():  # not pruned meanwhile
                log.error("%s; it is set aside as %s", error, set_checkpoint_aside(directory).name)
            return False
        self.version, self.lake_seq = version, meta["lake_seq"]
        if version != self._aged:  # else it is back, after a newer one that could not be read
            made_ms = (directory / "manifest.json").stat().st_mtime * 1000
            age_s = min(max(0.0, (self._now_ms() - made_ms) / 1000), self._clock() - self._looked_at)
            self._aged, self._made_at = version, self._clock() - age_s
        return True

    @property
    def age_s(self) -> float:
        """Of the loaded version."""
        return self._clock() - self._made_at
