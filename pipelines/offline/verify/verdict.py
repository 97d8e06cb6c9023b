"""`exfm replay --verify`: which students are retrained, up to which checkpoint, and what came of it.

Whatever is compared is linked aside first: a run that lives may delete its checkpoint and predictions meanwhile. Rows
of the lake are pinned for as long as it takes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exfm.errors import ModelError
from exfm.tensors import Checkpoint, StoredTensor, checkpoint_names, open_checkpoint
from pipelines.config import STUDENT, Config, accepted_identities, choices, parse
from pipelines.control import with_roster
from pipelines.offline.logits import keep
from pipelines.offline.verify.bits import ComparedLog, Logged, RowParted, TensorParted, counts_parted, tensors_parted
from pipelines.offline.verify.cause import likely_cause
from pipelines.offline.verify.retrain import Beside, Retrained, retrained, stages_of
from pipelines.run_dir import RunDir
from pipelines.tools import config_of
from pipelines.training import software
from streaming.disk import link_file
from streaming.errors import BadInput, DataLost
from streaming.lake import LakeReader, Readers

TRIES = 5
"""How often a checkpoint may be replaced while it is linked aside."""

TRIAL = "registry/"
"""The beginning of the names of tensors that compare versions: people may decide in between."""


@dataclass(frozen=True)
class Verdict:
    """What came of one student. `range`: of `lake_seq`; `pruned`: predictions that were deleted before."""

    student: str
    checkpoint: str
    range: tuple[int, int]
    rows: int
    tensors: int
    bytes: int
    predictions: int
    pruned: int
    row: RowParted | None
    parted: tuple[TensorParted, ...]
    counts: dict[str, tuple[Any, Any]]
    cause: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def identical(self) -> bool:
        return self.row is None and not self.parted and not self.counts

    def as_json(self) -> dict[str, Any]:
        return {
            "student": self.student,
            "identical": self.identical,
            "checkpoint": self.checkpoint,
            "range": list(self.range),
            "rows": self.rows,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "predictions": self.predictions,
            "predictions_deleted": self.pruned,
            "first_row": None if self.row is None else self.row._asdict(),
            "differing_tensors": [tensor._asdict() for tensor in self.parted],
            "differing_counts": self.counts,
            "cause": self.cause,
            "notes": list(self.notes),
        }


def verify(
    run_dir: RunDir, names: Sequence[str], bar: Callable[[str, int], Any], scratch: Path | None = None
) -> Iterator[Verdict]:
    """Retrain students of a run, one after the other; without `names` all that have a checkpoint. `bar(doing, rows)` is
    a context whose value is called with the rows of the lake that are done.

    Raises BadInput where it cannot be asked: no such student, no checkpoint, rows or what it started from deleted.
    """
    config = _with_retired(with_roster(config_of(run_dir), run_dir.roster), run_dir, names)
    known = {student.name for student in config.students}
    for name in names:
        if name not in known:
            raise BadInput(f"the run in {run_dir.root} has no student `{name}`; {choices(name, known)}")
    asked = list(names) or [s.name for s in config.students if checkpoint_names(run_dir.checkpoints(STUDENT + s.name))]
    if not asked:
        raise BadInput(f"no student of {run_dir.root} has a checkpoint yet; wait for the first one")
    for name in asked:
        with tempfile.TemporaryDirectory(prefix="exfm-verify-", dir=scratch) as folder:
            yield _verified(config, name, run_dir, Path(folder), bar)


def _verified(config: Config, name: str, run_dir: RunDir, folder: Path, bar: Callable[[str, int], Any]) -> Verdict:
    aside = _linked_aside(run_dir, name, folder)
    stored = _opened(aside.checkpoint, name)
    first, last = config.student(name).first_seq, stored.meta["lake_seq"]
    with _pinned(run_dir, config, name, first, last), bar(f"retraining {name}", last + 1 - first) as advance:
        log = ComparedLog(aside.predictions)
        beside = Beside(folder / "run", run_dir)
        try:
            found = retrained(config, name, beside, stages_of(stored.meta), log, lambda upto: advance(upto + 1 - first))
        except DataLost as error:
            raise BadInput(f"`{name}` cannot be retrained: {error}") from None
    return _verdict(config, name, run_dir, stored, found, log, aside)


def _verdict(
    config: Config,
    name: str,
    run_dir: RunDir,
    stored: Checkpoint[StoredTensor],
    found: Retrained,
    log: ComparedLog,
    aside: _Aside,
) -> Verdict:
    notes, meta = [], stored.meta
    tensors = [*stored.tensors, *(tensor for tensor in found.tensors if tensor not in stored.tensors)]
    if meta.get("registry", {}).get("others"):
        tensors = [tensor for tensor in tensors if not tensor.startswith(TRIAL)]
        notes.append("people decided about versions: the trial of a candidate is not compared")
    parted = tuple(tensors_parted(stored.tensors, found.tensors, tensors))
    counts = counts_parted(meta, found.meta)
    cause = None
    if log.parted is not None or parted or counts:
        cause = likely_cause(
            log.parted,
            parted,
            learned_by=meta["past"]["learned_by"],
            now=software(),
            pruned_upto=aside.predictions.pruned_upto,
            same_config=meta["config_hash"] in accepted_identities(run_dir, config, STUDENT + name),
        )
    if (since := meta["past"]["since"]) >= config.student(name).first_seq and cause is not None:
        notes.append(
            f"checkpoints up to lake_seq {since:,} are of an earlier release, which did not say whether tables grew: "
            "growth there would be a cause, too"
        )
    if log.unlogged:
        notes.append(
            f"predictions up to lake_seq {aside.predictions.pruned_upto:,} were deleted (resources.predictions_bytes): "
            "what they were shows in the tensors alone"
        )
    return Verdict(
        name,
        aside.checkpoint.name,
        (config.student(name).first_seq, meta["lake_seq"]),
        found.meta["rows"],
        len(tensors),
        sum(_bytes(stored.tensors[t]) for t in tensors if t in stored.tensors),
        log.compared,
        log.unlogged,
        log.parted,
        parted,
        counts,
        cause,
        tuple(notes),
    )


def _bytes(tensor: StoredTensor) -> int:
    return tensor.shape.numel() * tensor.dtype.itemsize


# --- what is compared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Aside:
    checkpoint: Path
    predictions: Logged


def _linked_aside(run_dir: RunDir, name: str, folder: Path) -> _Aside:
    """The newest checkpoint, and the predictions that are logged, under names of our own."""
    root = run_dir.checkpoints(STUDENT + name)
    for _ in range(TRIES):
        saved = checkpoint_names(root)
        if not saved:
            raise BadInput(f"student `{name}` of {run_dir.root} has no checkpoint yet; wait for its first one")
        if not keep(root / saved[-1], folder / saved[-1]):  # replaced by a newer one meanwhile
            continue
        _link_predictions(run_dir.predictions(name), folder / "predictions")
        return _Aside(folder / saved[-1], Logged(folder / "predictions"))
    raise BadInput(f"the newest checkpoint of `{name}` was replaced {TRIES} times while it was read; try again")


def _link_predictions(source: Path, target: Path) -> None:
    """Those that are still there when it is their turn."""
    target.mkdir()
    for path in sorted(source.glob("*")) if source.exists() else ():
        with suppress(FileNotFoundError):
            link_file(path, target / path.name)


def _opened(path: Path, name: str) -> Checkpoint[StoredTensor]:
    """Raises BadInput where the checkpoint does not say what a retraining needs."""
    try:
        stored = open_checkpoint(path)
    except ModelError as error:
        raise BadInput(f"the newest checkpoint of `{name}` cannot be read: {error}") from None
    if "made_with" not in stored.meta:
        raise BadInput(
            f"`{path.name}` of `{name}` is of a release that did not say what a student was made with; resume the run "
            "for one checkpoint, or verify with that release"
        )
    unknown = {"since": stored.meta["lake_seq"], "learned_by": [], "grown": []}
    return stored._replace(meta={"past": unknown, **stored.meta})


def _with_retired(config: Config, run_dir: RunDir, names: Sequence[str]) -> Config:
    """The config with those of `names` that were retired: their checkpoints are still there."""
    had = {student.name for student in config_of(run_dir).students}
    missing = [name for name in names if name not in {student.name for student in config.students}]
    sections = [wish.section for wish in map(run_dir.roster.wish, missing) if wish is not None and wish.section]
    back = [s.model_dump(mode="json") for s in config_of(run_dir).students if s.name in had.intersection(missing)]
    if not sections and not back:
        return config
    settings = config.model_dump(mode="json")
    settings["students"] = [*settings["students"], *sections, *back]
    return parse(settings).model_copy(update={"kafka": config.kafka})


@contextmanager
def _pinned(run_dir: RunDir, config: Config, name: str, first: int, last: int) -> Iterator[None]:
    """Keep the rows that are needed. Raises BadInput where they are gone."""
    readers, pin = Readers(run_dir.readers), f"verify-{name}-{os.getpid()}"
    readers.pin(pin, first, max(first, last))
    try:
        lake = LakeReader(run_dir.lake, config.rows)
        if first < lake.first_lake_seq:
            raise BadInput(
                f"`{name}` learned the rows from lake_seq {first:,} on, and rows {first:,} to "
                f"{lake.first_lake_seq - 1:,} were deleted (lake.retention_days); {run_dir.lake} has "
                f"{lake.first_lake_seq:,} to {lake.last_lake_seq:,}. `exfm lake readers --pin` keeps rows, set in time"
            )
        student = config.student(name)
        if student.starts_from is not None and not run_dir.roster.start(name).exists():
            raise BadInput(
                f"`{name}` began with weights of {student.starts_from}, and {run_dir.roster.start(name)} is gone; "
                "without them it cannot be retrained"
            )
        yield
    finally:
        readers.retire(pin)
