"""Files of a live run that a replay needs, hard-linked into its folder before the run deletes them.

    snapshots.json    the snapshots of the teacher that there were when the replay began     with the question
    starts.json       RUN:STUDENT -> the checkpoint that was newest then
    kept/             both; snapshots until the replay has finished and has their logits

So the same command means the same whenever it is given again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import checkpoint_names, lineage_of
from exfm.snapshots.manifest import read_manifest
from pipelines.core.run_dir.paths import RunDir
from streaming.store.files import link_file, make_folder, read_json, replacing_folder, write_json

KEPT = "kept"
SNAPSHOTS = "snapshots.json"
STARTS = "starts.json"


class Snapshot(NamedTuple):
    """A snapshot on the disk, and the last row it has learned."""

    path: Path
    lake_seq: int


def snapshots_of(run_dir: RunDir) -> list[Snapshot]:
    """The teacher's snapshots, oldest first."""
    snapshots = []
    for name in checkpoint_names(run_dir.snapshots):
        try:
            manifest = read_manifest(run_dir.snapshots / name)
        except (ModelError, OSError):  # deleted meanwhile
            continue
        snapshots.append(Snapshot(run_dir.snapshots / name, manifest["meta"]["lake_seq"]))
    return snapshots


def kept_snapshots(run_dir: RunDir, folder: Path, asked: Mapping[str, Any]) -> list[Snapshot]:
    """Snapshots that existed when the replay in `folder` first asked, oldest first. Those that have been deleted
    since, in the run and in the folder, are among them."""
    known = read_json(folder / SNAPSHOTS)
    if known is None or known["asked"] != asked:
        there = [[s.path.name, s.lake_seq] for s in snapshots_of(run_dir) if keep(s.path, _kept(folder, s.path.name))]
        known = {"asked": dict(asked), "snapshots": there}
        write_json(folder / SNAPSHOTS, known)
    snapshots = []
    for name, lake_seq in known["snapshots"]:
        kept = _kept(folder, name)
        snapshots.append(Snapshot(kept if kept.exists() else run_dir.snapshots / name, lake_seq))
    return snapshots


def _kept(folder: Path, snapshot: str) -> Path:
    return folder / KEPT / "snapshots" / snapshot


def kept_start(folder: Path, starts_from: str) -> Path:
    """Path of the linked checkpoint RUN:STUDENT@CHECKPOINT."""
    whose, _, version = starts_from.rpartition("@")
    return folder / KEPT / "starts" / hashlib.blake2b(whose.encode(), digest_size=6).hexdigest() / version


def keep(source: Path, target: Path) -> bool:
    """Hard-link a checkpoint to another place, atomically, and beside it those that it holds the changes since; False
    if it has been deleted."""
    return all(
        _link(source.with_name(name), target if name == source.name else target.with_name(name))
        for name in reversed(lineage_of(source))
    )


def _link(source: Path, target: Path) -> bool:
    if target.exists():
        return True
    make_folder(target.parent)
    try:
        with replacing_folder(target) as folder:
            for file in sorted(source.iterdir()):
                link_file(file, folder / file.name)
    except FileNotFoundError:
        return False
    return True


def drop_snapshots(folder: Path) -> None:
    """Delete the linked snapshots once the replay has their logits."""
    shutil.rmtree(folder / KEPT / "snapshots", ignore_errors=True)
