"""What a worker resumes from: its newest checkpoint that verifies."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from exfm.errors import ModelError, NewerFormat, Unusable
from exfm.snapshots.checkpoint import Checkpoint, checkpoint_names, set_checkpoint_aside, verified_checkpoint
from exfm.snapshots.manifest import read_manifest
from exfm.snapshots.windows import whole_tensor
from streaming.position import NOTHING_YET

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The checkpoint to resume from (None: none exists yet), and a note for people about damaged ones that are
    newer."""

    stored: Checkpoint | None
    note: str | None


def last_checkpoint(root: Path, config_hash: str, older: Collection[str] = ()) -> Found:
    """The newest checkpoint under `root` that is whole and of this config, or of one it came from (`older`). Damaged
    ones newer than it are set aside: what they held is learned again, to the same bits. Its tensors are still on disk.

    Raises Unusable when there are checkpoints and none of them can be used, NewerFormat for one of a later release.
    """
    problems: list[tuple[Path, str]] = []
    for path in _candidates(root):
        try:
            stored = verified_checkpoint(path)
        except NewerFormat:
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
        return Found(stored, _set_aside(problems, path.name))
    if problems:
        raise Unusable(
            f"none of the {len(problems)} checkpoints in {root} can be used: "
            + "; ".join(problem for _, problem in problems)
            + ". Resume with the config that the run was started with; or put a copy of a checkpoint back; or delete "
            f"{root}: the model then learns the stream from its beginning, from the lake"
        )
    return Found(None, None)


def upgraded(stored: Checkpoint, rng: Mapping[str, Tensor]) -> Checkpoint:
    """A model's checkpoint with all that today's have: from 2 to 3 only the way it is stored changed; from 1
    to 2:

    - `rng`, by its names in the checkpoint: format 1 had none, and nothing it could be made of drew random numbers, so
      the model continues from the seeded start
    - `rows`, `trained_rows`, `quarantine`: follow from the position, the models' own counts and `quarantined_rows`;
      where the rows lie that were left out, format 1 did not say
    """
    if stored.format_version > 1:
        return stored
    meta: dict[str, Any] = dict(stored.meta)
    left_out = meta.pop("quarantined_rows")
    if "version" in meta:  # a teacher learns every row of the lake
        rows = meta["lake_seq"] + 1
        trained = {"teacher": rows - left_out}
    else:
        trained = {
            model: int(whole_tensor(stored.tensors[f"{model}/progress/rows"]))
            for model in ("student", "no_teacher")
            if f"{model}/progress/rows" in stored.tensors
        }
        rows = trained["student"] + left_out
    quarantine = {model: {"rows": rows - count} for model, count in trained.items()}
    meta |= {"rows": rows, "trained_rows": trained, "quarantine": quarantine}
    return stored._replace(tensors=stored.tensors | dict(rng), meta=meta, format_version=2)


def needed_after(root: Path) -> int:
    """The last `lake_seq` that no checkpoint under `root` needs again: that of the oldest one kept, for a newer one may
    turn out to be damaged. -1 where there is none."""
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
