"""Resuming from a worker's newest valid checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from exfm.errors import ModelError, OtherFormat, Unusable
from exfm.snapshots.checkpoint import Checkpoint, checkpoint_names, set_checkpoint_aside, verified_checkpoint
from exfm.snapshots.manifest import read_manifest
from streaming.position import NOTHING_YET

log = logging.getLogger(__name__)


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


def needed_after(root: Path) -> int:
    """The last `lake_seq` that no checkpoint under `root` needs again: that of the oldest one, since a newer one may
    turn out damaged. -1 without checkpoints."""
    positions = []
    for name in checkpoint_names(root):
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
