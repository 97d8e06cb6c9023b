"""The checkpoints of a run's students, which an arm of a replay may start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.kept import STARTS, keep, kept_start
from streaming.errors import BadInput
from streaming.store.files import read_json, write_json


def start_of(student: StudentSettings, run_dir: RunDir | None, folder: Path | None = None) -> Path | None:
    """The checkpoint that a student starts from; None for initial weights of its seed. `starts_from` is RUN:STUDENT
    or RUN:STUDENT@CHECKPOINT, or, of a student of the run, the one that it was spawned from. `folder`: of a replay,
    which may have kept it. Raises BadInput."""
    text = student.starts_from
    if text is None or (":" not in text and run_dir is None):
        return None
    if ":" not in text:
        assert run_dir is not None
        path = run_dir.roster.start(student.name)
        if not path.exists():
            raise BadInput(f"`{student.name}` starts from {text}, and {path} is gone; leave `starts_from` out (null)")
        return path
    if folder is not None and (kept := kept_start(folder, text)).exists():
        return kept
    return _checkpoint_of(text)


class Starts:
    """Resolves RUN:STUDENT to its newest checkpoint, once. A run that goes on does not move what was asked for, nor
    does a replay in `folder` that is begun again."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        stored = read_json(folder / STARTS) if folder is not None and folder.is_dir() else None
        self._checkpoints: dict[str, str] = stored or {}

    def named(self, starts_from: Any) -> Any:
        """Resolve RUN:STUDENT to RUN:STUDENT@CHECKPOINT; other values stay. Raises BadInput where there is none."""
        if not isinstance(starts_from, str) or ":" not in starts_from or "@" in starts_from.rpartition(":")[2]:
            return starts_from
        if starts_from not in self._checkpoints:
            self._checkpoints[starts_from] = _checkpoint_of(starts_from).name
        return f"{starts_from}@{self._checkpoints[starts_from]}"

    def store(self) -> None:
        if self._folder is not None and self._checkpoints:
            write_json(self._folder / STARTS, self._checkpoints)


def keep_start(student: StudentSettings, folder: Path) -> None:
    """Link a student's starting checkpoint into a replay's folder. Raises BadInput where it is gone."""
    text = student.starts_from
    if text is None or ":" not in text or kept_start(folder, text).exists():
        return
    if not keep(_checkpoint_of(text), kept_start(folder, text)):
        _checkpoint_of(text)  # which says what there is


def _checkpoint_of(text: str) -> Path:
    root, _, named = text.rpartition(":")
    name, _, version = named.partition("@")
    checkpoints = RunDir(Path(root)).checkpoints(STUDENT + name)
    names = checkpoint_names(checkpoints)
    if not names:
        raise BadInput(f"starts_from {text}: {checkpoints} has no checkpoint; write RUN:STUDENT, a folder and a name")
    if version and version not in names:
        raise BadInput(
            f"starts_from {text}: there is no checkpoint `{version}`, or no longer; choose from {', '.join(names)}. "
            "Name one of these, or copy the one that is wanted before the run deletes it"
        )
    return checkpoints / (version or names[-1])


def learned_upto(student: StudentSettings, run_dir: RunDir | None, folder: Path | None = None) -> int:
    """The last `lake_seq` learned by an arm's initial weights: it begins after it, so that no learned row is judged. -1
    for weights of the seed, and for a student as its run began it.

    Raises BadInput for weights of another lake: what they have learned is not known.
    """
    if student.starts_from is None or ":" not in student.starts_from:
        return -1
    path = start_of(student, run_dir, folder)
    assert path is not None
    own = Path(student.starts_from.rpartition(":")[0])
    if run_dir is None or own.resolve() != run_dir.root.resolve():
        raise BadInput(
            f"starts_from {student.starts_from}: what it has learned cannot be compared with these rows, so that a "
            f"figure might be of rows that it knows; start from a student of the run that is replayed (--run-dir {own})"
        )
    return int(read_manifest(path)["meta"]["lake_seq"])


def known_upto(student: StudentSettings, run_dir: RunDir | None) -> int:
    """The last row of a student's life already known to its initial weights: one spawned from another student begins
    where requested, but rows learned by the other are not judged. -1 for none. Raises BadInput."""
    if student.starts_from is None or ":" in student.starts_from:  # those begin behind what they know
        return -1
    path = start_of(student, run_dir)
    return -1 if path is None else int(read_manifest(path)["meta"]["lake_seq"])
