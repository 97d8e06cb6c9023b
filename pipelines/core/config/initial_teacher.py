"""A teacher that was trained before, which a run's teacher begins as.

What decides a run is the teacher's content, by the digest of its manifest, not where it lies. A row is scored honestly
by it only where it was shown after everything that it has learned from: rows up to `learned_upto_ms` get no logit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from exfm.errors import ModelError
from pipelines.core.config.topics import Frozen


class InitialTeacher(Frozen):
    """A saved teacher: the folder that `exfm pretrain` wrote, or a checkpoint in it."""

    path: str = Field(description="the folder that `exfm pretrain` wrote")
    digest: str = Field(description="of its checkpoint's manifest")
    learned_upto_ms: int = Field(description="event time of the newest row that it has learned")
    rows: int = Field(ge=0, description="rows that it has learned")

    @property
    def checkpoint(self) -> Path:
        """The folder of its checkpoint. Raises ModelError where there is none any more."""
        return _checkpoint_of(Path(self.path))


def initial_teacher(given: Any) -> Any:
    """Read what a config names by its path; what a run has written down stays.

    Raises ValueError where the folder holds no teacher, or one whose training is not done.
    """
    if not isinstance(given, str):
        return given
    from exfm.snapshots.manifest import read_manifest

    try:
        manifest = read_manifest(_checkpoint_of(Path(given)))
    except ModelError as error:
        raise ValueError(f"no teacher in {given} ({error}); `exfm pretrain` trains one") from None
    meta = manifest["meta"]
    if manifest["kind"] != "teacher-checkpoint" or "of_rows" not in meta:
        raise ValueError(f"{given} holds no teacher of `exfm pretrain`: it does not say what it has learned")
    if meta["rows"] < meta["of_rows"]:
        raise ValueError(
            f"the teacher in {given} has learned {meta['rows']:,} of {meta['of_rows']:,} rows; give the command that "
            "trains it again first"
        )
    return {
        "path": given,
        "digest": manifest["sha256"],
        "learned_upto_ms": meta["event_time_ms"][1],
        "rows": meta["rows"] - meta["rows_left_out"],
    }


def _checkpoint_of(path: Path) -> Path:
    from exfm.snapshots.checkpoint import latest_checkpoint

    return path if (path / "manifest.json").exists() else latest_checkpoint(path / "checkpoints") or path
