"""A student's increments: what it learned since the last, published every second or so of wall time for servers that
follow it live (exfm/snapshots/increments). They are no part of its state: nothing that it learns or checkpoints depends
on them.

    step ──► note: a reference to the batch          due ──► copies of what was touched ──► a thread: the file, the head

A student that starts begins with a full version, and so it does after trouble with the disk, which costs increments and
never a step. One that starts again from a checkpoint is behind what it had published: that goes on answering, and it
begins when it has learned as much again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from exfm.errors import ModelError
from exfm.features.batch import Batch
from exfm.models.changes import Touched, changes_of
from exfm.models.student import Student
from exfm.snapshots.increments.chain import Chain, ChainWriter
from exfm.snapshots.increments.increment import Full, probe_of, take_full
from pipelines.core.config.sections import RegistrySettings
from pipelines.core.run_dir.lease import Lease
from pipelines.core.run_dir.paths import version_name
from pipelines.live.training.writer import Watch, Writer

LOOK_S = 0.5
"""So often it is looked up whether anybody wants increments."""
AGAIN_S = 10.0
"""After trouble, before the next full version."""

log = logging.getLogger(__name__)


class Increments:
    """Publishes one student's increments into the folder `root`. `trouble`: why none is published; None where
    nothing is wrong. `identity`: of the student's settings; what was published under others is not waited for."""

    def __init__(
        self,
        student: Student,
        root: Path,
        settings: RegistrySettings,
        watch: Watch,
        clock: Callable[[], float] = time.time,
        *,
        identity: str = "",
    ) -> None:
        self._identity = identity
        self._ahead: tuple[str, int] | None = None  # what was published before this start, as long as that knows more
        self._looked_ahead = False
        self._student, self._root, self._settings, self._watch, self._clock = student, root, settings, watch, clock
        self._lease = Lease(root / "wanted")
        self._touched = Touched(student.features)
        self._writer: Writer | None = None
        self._chain: ChainWriter | None = None  # the writer's thread has it
        self._begun = self._on = False
        self._looked = self._published = self._not_before = float("-inf")
        self._stepped: list[float] = []  # first and last step that no increment has
        self._rows = 0  # of batches noted since
        self._last: tuple[Batch, int, int] | None = None
        self.trouble: str | None = None

    def note(self, batch: Batch, position: int, learned_rows: int) -> None:
        """Record a learned batch, up to this `lake_seq`."""
        self._last = batch, position, learned_rows
        if not self._on:
            return
        now = self._clock()
        self._stepped = [self._stepped[0] if self._stepped else now, now]
        self._rows += len(batch)
        if self._begun:
            self._touched.note(batch.sparse)

    def forget(self, table: str, ids: Tensor) -> None:
        """Record ids (I,) that the student forgot: their rows changed, too."""
        if self._begun:
            self._touched.note_ids(table, ids)

    def publish(self, *, at_end: bool = False) -> None:
        """Publish the increment if it is due, wanted, and the previous one has been written. Never waits."""
        now = self._clock()
        if now - self._looked >= LOOK_S:
            self._look(now)
        if not self._on or self._last is None or now < self._not_before:
            return
        if self._writer is not None and not self._writer.idle:
            return
        if self._begun and self.trouble is None:
            rows, seconds = self._settings.increments_every_rows, self._settings.increments_every_s
            due = now - self._published >= seconds or (rows is not None and self._rows >= rows)
            if self._stepped and (at_end or due):
                self._add(*self._last, now)
        elif not self._behind(self._last[1]):
            self._begin(*self._last, now)

    def _look(self, now: float) -> None:
        self._looked = now
        asked = self._settings.increments
        on = asked == "always" or (asked == "wanted" and self._lease.still(now))
        if self._on and not on:  # what is touched from now on is not counted
            self._begun, self._stepped, self._rows = False, [], 0
            self._touched.take()
        self._on = on

    @property
    def notice(self) -> str | None:
        """Reason why servers lag behind the student; None if they do not."""
        if self._ahead is None:
            return self.trouble
        version, last = self._ahead
        return f"servers that follow it live keep {version} until lake_seq {last:,} is learned again"

    def _behind(self, position: int) -> bool:
        """True if less was learned than is published already."""
        if not self._looked_ahead:
            self._looked_ahead, self._ahead = True, self._published_before()
        if self._ahead is not None and position >= self._ahead[1]:
            self._ahead = None
        return self._ahead is not None

    def _published_before(self) -> tuple[str, int] | None:
        """The version published last by the same student, and its last `lake_seq`; None where there is none, or it
        cannot be read."""
        try:
            newest = Chain(self._root).newest()
        except (ModelError, OSError):
            return None
        if newest is None or newest[1].get("student") != self._identity:
            return None
        return newest[0], newest[1]["lake_seq"]

    def _begin(self, batch: Batch, position: int, learned_rows: int, now: float) -> None:
        with self._watch("increment"):
            full = take_full(self._student, self._touched, probe_of(self._student, batch))
        about, version = self._about(position, learned_rows, now), version_name(position + 1)

        def write() -> None:
            self._chain = ChainWriter(self._root)
            log.info("servers may follow live from %s on", self._chain.begin(version, about, full))

        self._put(write, now)
        self._begun = True

    def _add(self, batch: Batch, position: int, learned_rows: int, now: float) -> None:
        assert self._chain is not None
        full: Full | None = None
        with self._watch("increment"):
            probe = probe_of(self._student, batch)
            delta = changes_of(self._student, self._touched)
            if self._chain.full_due:
                full = take_full(self._student, self._touched, probe)
        about, version = self._about(position, learned_rows, now), version_name(position + 1)

        def write() -> None:
            assert self._chain is not None
            self._chain.add(version, about, delta, probe, full)

        self._put(write, now)

    def _about(self, position: int, learned_rows: int, now: float) -> dict[str, Any]:
        stepped = self._stepped or [now, now]
        return {"lake_seq": position, "rows": learned_rows, "stepped_s": stepped, "student": self._identity}

    def _put(self, write: Callable[[], None], now: float) -> None:
        if self._writer is None:
            self._writer = Writer("increments", 1)
        self.trouble, self._published, self._stepped, self._rows = None, now, [], 0

        def write_or_say() -> None:
            try:
                write()
            except Exception as error:  # training goes on; the next begins anew
                self.trouble = f"increments are not published: {error}"
                self._not_before = self._clock() + AGAIN_S
                log.error("%s", self.trouble)

        self._writer.put(write_or_say)

    def close(self) -> None:
        """Publish the last increment and stop."""
        if self._writer is not None:
            self._writer.drain()
            self.publish(at_end=True)
            self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
