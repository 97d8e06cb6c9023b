"""Checkpointing of a training worker: its lock, its checkpoints, its quarantine file, its registration as a reader of
the lake.

    training ──copy──► [ queue ] ──► the writer's thread:   1. what belongs before the checkpoint (predictions)
                                                            2. the checkpoint
                                                            3. what is made of it (snapshot, export)
                                                            4. old checkpoints pruned, the lake's reader moved on

A crash between any two of these is repaired at the next start: the checkpoint decides, and what is made of it is made
again to the same bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from exfm.errors import ModelError, OtherFormat, Unusable
from exfm.snapshots.checkpoint import (
    Checkpoint,
    Together,
    checkpoint_names,
    open_checkpoint,
    prune_checkpoints,
    remove_leftovers,
    save_checkpoint,
    set_checkpoint_aside,
    verified_checkpoint,
)
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.manifest import read_manifest
from exfm.snapshots.staging import Storable
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.writer import Watch, Writer
from pipelines.live.workers.ranks import Ranks, Rendezvous
from streaming.errors import StillHeld
from streaming.lake.readers import Readers
from streaming.position import NOTHING_YET
from streaming.store.files import make_folder, write_json
from streaming.store.lock import file_lock
from streaming.store.working_copy import put_tree

REGISTER_EVERY_S = 600.0
"""A worker that has nothing to save for this long renews its registration as a reader of the lake."""

log = logging.getLogger(__name__)


class Resumable(Protocol):
    """An engine whose state a checkpoint holds."""

    identity: str


class Checkpointer:
    """Checkpoints the worker `name`. With several ranks every method but `idle` is called by all of them in the same
    order; rank 0 holds the lock, prunes and registers.

    A checkpointer that is not open holds nothing: it may be closed and abandoned."""

    def __init__(
        self,
        name: str,
        run_dir: RunDir,
        watch: Watch,
        *,
        queue: int,
        keep: int = 2,
        rereads: int = 0,
    ) -> None:
        """`queue`: checkpoints that may wait to be written. `keep`: how many stay on disk; the one before the newest is
        what a damaged newest falls back to. `rereads`: learned rows that a start reads again."""
        self.name, self.checkpoints = name, run_dir.checkpoints(name)
        self.note: str | None = None
        self.done = False
        self._ranks = Ranks(Rendezvous())
        self._watch, self._queue = watch, queue
        self._keep, self._rereads = keep, rereads
        self._readers = Readers(run_dir.readers)
        self._quarantine = run_dir.quarantine(name)
        self._writer: Writer | None = None
        self._lock = ExitStack()
        self._registered_at = 0.0
        self._ending = False

    # --- opening -----------------------------------------------------------------------------------------------

    def open(
        self, engine: Resumable, older: Callable[[], Collection[str]], ranks: Ranks | None = None
    ) -> Checkpoint | None:
        """Take the lock; returns the newest usable checkpoint of the engine's identity, or of one in `older`; None for
        a new start.

        Raises StillHeld while an earlier process holds the lock, ModelError where no checkpoint can be used.
        """
        self._ranks = ranks or self._ranks
        resume_point = ResumePoint(None, None)
        if self._ranks.first:
            self._take_lock()
            remove_leftovers(self.checkpoints)
            resume_point = last_checkpoint(self.checkpoints, engine.identity, older())
            self.note = resume_point.note
        # Newer checkpoints that cannot be used were set aside: the last one is the one to resume from.
        name = self._ranks.broadcast_text(lambda: checkpoint_names(self.checkpoints)[-1] if resume_point.stored else "")
        stored = resume_point.stored if self._ranks.first or not name else open_checkpoint(self.checkpoints / name)
        self._writer = Writer(self.name, self._queue, self._watch)
        self._register()
        return stored

    def _take_lock(self) -> None:
        """Refuse to start while an earlier process holds the lock: two would write into one folder. The lock goes with
        its process, however that ends."""
        make_folder(self.checkpoints.parent)
        path = self.checkpoints.with_name(f"{self.name}.lock")
        if not self._lock.enter_context(file_lock(path)):
            raise StillHeld(f"another process still works as `{self.name}` (it holds {path}); it has to end first")

    # --- writing -----------------------------------------------------------------------------------------------

    def commit(
        self,
        name: str,
        tensors: Mapping[str, Storable | ChangedRows],
        meta: Mapping[str, Any],
        *,
        kind: str,
        parent: str | None = None,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a checkpoint in the background, with actions before and after it. `parent`: the one that changed rows
        among the tensors are those since."""

        def write() -> None:
            before()  # 1
            self.write(self.checkpoints, name, tensors, meta, kind=kind, parent=parent)  # 2
            self.write_quarantine(meta["quarantine"])
            after()  # 3
            if self._ranks.first:  # 4
                prune_checkpoints(self.checkpoints, keep=self._keep)
                self._register()

        self.put(write)

    def put(self, write: Callable[[], None], *, alone: bool = False) -> None:
        """Queue a background write. All ranks do it together, unless `alone`: while one of them waits for its disk
        all wait, so that none stands in a collective for as long as a disk may take."""
        assert self._writer is not None
        if self._ranks.count > 1 and not alone:
            with self._watch("wait for disk"):
                while not self._ranks.all(self._writer.has_room):
                    time.sleep(0.02)
        self._writer.put(write)

    def write(
        self,
        root: Path,
        name: str,
        tensors: Mapping[str, Storable | ChangedRows],
        meta: Mapping[str, Any],
        *,
        kind: str,
        parent: str | None = None,
        alone: bool = False,
    ) -> None:
        """Save `<root>/<name>` in the writer's thread. Every rank writes the part that it holds; with `alone` this
        rank holds all of it."""
        group = None if alone else self._ranks.group
        together = None if group is None else Together(group.rank, group.world_size, group.token)
        place = save_checkpoint(root, name, tensors, meta, kind=kind, parent=parent, together=together)
        if self._ranks.first or alone:
            put_tree(place)

    def write_quarantine(self, state: Mapping[str, Any]) -> None:
        """Copy of the checkpoints' quarantine for people; never read back."""
        if self._ranks.first and (self._quarantine.exists() or any(model["rows"] for model in state.values())):
            write_json(self._quarantine, state)

    # --- the lake's readers ------------------------------------------------------------------------------------

    def _register(self) -> None:
        if self._ranks.first:
            position = max(NOTHING_YET, needed_after(self.checkpoints, self._keep) - self._rereads)
            self._readers.register(self.name, position)
            self._registered_at = time.monotonic()

    @property
    def registered_long_ago(self) -> bool:
        return time.monotonic() - self._registered_at >= REGISTER_EVERY_S

    def renew(self) -> None:
        """Renew the registration if nothing was saved for long."""
        if self._ranks.first and self._writer is not None and self.registered_long_ago and self._writer.idle:
            self._writer.put(self._register)

    # --- ending ------------------------------------------------------------------------------------------------

    def finish(self, save: Callable[[], None]) -> bool:
        """Finish a bounded stream: `save` unsaved state once; True (and `done`) when everything is on disk, on all
        ranks."""
        if not self._ending:
            save()
            self._ending = True
        self.done = self._ranks.all(self.idle)
        return self.done

    @property
    def unfinished(self) -> bool:
        """True if open and not at the end of the stream: a close has something to save."""
        return self._writer is not None and not self._ending

    def check(self) -> None:
        """Raise a write error even when idle, since others may wait for this worker."""
        assert self._writer is not None
        self._writer.check()

    @property
    def idle(self) -> bool:
        """True if all writes are done. Raises what failed while writing."""
        return self._writer is not None and self._writer.idle

    def close(self) -> None:
        """Finish all writes and release the lock."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._lock.close()

    def abandon(self) -> None:
        """Release the lock like a crash: queued writes are dropped."""
        try:
            if self._writer is not None:
                self._writer.abandon()
        finally:
            self._lock.close()


class ResumePoint(NamedTuple):
    """The checkpoint to resume from (None if there is none yet), and a note for people about newer damaged ones."""

    stored: Checkpoint | None
    note: str | None


def last_checkpoint(root: Path, config_hash: str, older: Collection[str] = ()) -> ResumePoint:
    """The newest checkpoint under `root` that is complete and of this config, or of an earlier accepted one (`older`).
    Damaged ones newer than it are set aside: what they held is learned again, to the same bits. Its tensors are still
    on disk.

    Raises Unusable when there are checkpoints and none of them can be used, OtherFormat for one of another format.
    """
    problems: list[tuple[Path, str]] = []
    for path in _candidates(root):
        try:
            stored = verified_checkpoint(path)
        except OtherFormat:
            raise
        except ModelError as error:
            problems.append((path, str(error)))
            continue
        written_under = stored.meta.get("config_hash")
        if written_under != config_hash and written_under not in older:
            problems.append(
                (path, f"`{path.name}` was written under config {written_under}, this run has {config_hash}")
            )
            continue
        return ResumePoint(stored, _set_aside(problems, path.name))
    if problems:
        raise Unusable(
            f"none of the {len(problems)} checkpoints in {root} can be used: "
            + "; ".join(problem for _, problem in problems)
            + ". Resume with the config that the run was started with; or put a copy of a checkpoint back; or delete "
            f"{root}: the model then learns the stream from its beginning, from the lake"
        )
    return ResumePoint(None, None)


def needed_after(root: Path, keep: int) -> int:
    """The last `lake_seq` that none of the last `keep` checkpoints under `root` needs again: that of the oldest one,
    since a newer one may turn out damaged. -1 without checkpoints. One that stays for what others changed since does
    not count."""
    positions = []
    for name in checkpoint_names(root)[-keep:]:
        try:
            positions.append(read_manifest(root / name)["meta"]["lake_seq"])
        except ModelError as error:
            log.warning("%s", error)
    return min(positions, default=NOTHING_YET)


def _candidates(root: Path) -> list[Path]:
    """Newest first; those without a manifest too."""
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")), reverse=True)


def _set_aside(problems: list[tuple[Path, str]], used: str) -> str | None:
    if not problems:
        return None
    for path, problem in problems:
        log.error("%s; set aside as %s", problem, set_checkpoint_aside(path).name)
    return f"went on from `{used}`: " + "; ".join(problem for _, problem in problems)
