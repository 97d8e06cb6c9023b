"""Snapshots of the teacher, published for scoring workers.

A version is never published twice with other bytes. What a crash kept from being published, and what a reader found
damaged and set aside, is written again from the checkpoint of that version.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from exfm.errors import ModelError
from exfm.models.scorer import snapshot_of
from exfm.snapshots.changed import Baselines, Policy
from exfm.snapshots.checkpoint import checkpoint_names, open_checkpoint, prune_checkpoints
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.manifest import read_manifest
from exfm.snapshots.quantised_state import quantise_tables
from exfm.snapshots.row_quantisation import Bits
from exfm.snapshots.staging import Storable
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.training.freshness import PublishedVersion, PublishedVersions
from pipelines.live.workers.checkpointer import Checkpointer
from pipelines.live.workers.ranks import Ranks
from streaming.position import NOTHING_YET

DAMAGED = ".damaged-"

log = logging.getLogger(__name__)


class SnapshotPublisher:
    """Publishes snapshots; `published` is the last version, 0 before the first; `rows_since`: rows learned since
    then. `keep`: how many snapshots stay on disk. `bits`: of their tables' values; None: float32. `policy`: which are
    whole; the others hold what changed since another."""

    def __init__(
        self,
        run_dir: RunDir,
        checkpointer: Checkpointer,
        ranks: Ranks,
        *,
        keep: int,
        bits: Bits | None = None,
        policy: Policy = "whole",
    ) -> None:
        self._folder, self._checkpointer, self._ranks, self._keep = run_dir.snapshots, checkpointer, ranks, keep
        self._bits, self._policy = bits, policy
        self.baselines = Baselines(policy)
        self._renew = False
        self._versions = PublishedVersions(run_dir.teacher_versions)
        self.published = 0
        self.rows_since = 0

    def write(
        self,
        version: int,
        tensors: Mapping[str, Storable | ChangedRows],
        meta: Mapping[str, Any],
        *,
        parent: str | None = None,
        alone: bool = False,
        learned: list[list[int]] | None = None,
    ) -> None:
        """Write a snapshot in the writer's thread. `parent`: the one that changed rows among the tensors are those
        since. `alone`: this rank holds all of it. `learned`: when which rows were (`PublishedVersion`)."""
        self.log(version, meta, learned)
        try:
            self._checkpointer.write(
                self._folder,
                version_name(version),
                quantise_tables(tensors, self._bits),
                meta,
                kind="teacher-snapshot",
                parent=parent,
                alone=alone,
            )
        except ModelError as error:
            if parent is None or version_name(version) in checkpoint_names(self._folder):
                raise
            log.warning("snapshot %s is written whole: %s", version_name(version), error)
            self.write_again(version, meta, learned)
        if self._ranks.first:
            prune_checkpoints(self._folder, keep=self._keep)

    def publish(self, version: int, tensors: Mapping[str, Storable], meta: Mapping[str, Any]) -> None:
        """Queue a snapshot for background writing; all ranks together."""
        self._checkpointer.put(partial(self.write, version, tensors, meta))
        self.mark(version)

    def log(self, version: int, meta: Mapping[str, Any], learned: list[list[int]] | None = None) -> None:
        """Log a version, before its snapshot can be seen."""
        if self._ranks.first:
            published = PublishedVersion(version, meta["lake_seq"], meta.get("last_event_ms"), learned or [])
            self._versions.append(published)

    def renewed(self) -> Baselines:
        """The baselines for the next snapshot: new ones where the writer has written one again. A collective."""
        if self._ranks.broadcast(int(self._renew)):
            self.baselines, self._renew = Baselines(self._policy), False
        return self.baselines

    def mark(self, version: int) -> None:
        """Mark this version as published, or being written."""
        self.published, self.rows_since = version, 0

    def holds_of_another_identity(self, version: int, identity: str) -> bool:
        """True if this version's snapshot is on disk from a config that this one evolved from. Its readers fit it by
        the same rule as the teacher does, and no name is written twice."""
        if version_name(version) not in checkpoint_names(self._folder):
            return False
        try:
            meta = read_manifest(self._folder / version_name(version))["meta"]
        except ModelError:  # its reader sets it aside, and it is written again
            return False
        return bool(meta["config_hash"] != identity)

    def damaged(self) -> int | None:
        """Version of a damaged snapshot that can be written again, on every rank; None if there is none. A
        collective."""
        found = self._ranks.broadcast(self._find_damaged() if self._ranks.first else 0)
        return None if found == NOTHING_YET else found

    def _find_damaged(self) -> int:
        if not self._checkpointer.idle:
            return NOTHING_YET
        for path in self._folder.glob(f"{DAMAGED}v*"):
            name = path.name.removeprefix(DAMAGED)
            there = name in checkpoint_names(self._checkpointer.checkpoints)
            if there and not (self._folder / name).exists():
                return int(name[1:])
        return NOTHING_YET

    def write_again(self, version: int, keys: Mapping[str, Any], learned: list[list[int]] | None = None) -> None:
        """Rewrite a snapshot on rank 0, whole, from the checkpoint of that version, with a snapshot's meta (`keys`), in
        the writer's thread. The next one is whole, too (`renewed`)."""
        self._renew = True
        stored = open_checkpoint(self._checkpointer.checkpoints / version_name(version))
        meta = {key: stored.meta[key] for key in keys if key in stored.meta}
        self.write(version, snapshot_of(stored.tensors), meta, alone=True, learned=learned)
