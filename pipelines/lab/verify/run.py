"""`exfm replay --verify`: choice of students and checkpoints to retrain, and the results.

Checkpoint and predictions are linked into a scratch folder first, since a live run may delete them meanwhile. Rows of
the lake are pinned for as long as it takes.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import Checkpoint, checkpoint_names, open_checkpoint
from exfm.snapshots.windows import TensorSource
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.lineage import accepted_identities
from pipelines.core.config.settings import Config, parse
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.config.text import choices
from pipelines.core.run_dir.erasures import Erasure, erasures
from pipelines.core.run_dir.paths import BesideRun, RunDir
from pipelines.lab.logits.kept import keep
from pipelines.lab.verify.bits import (
    ComparedLog,
    LoggedPredictions,
    count_mismatches,
    tensor_mismatches,
)
from pipelines.lab.verify.retrain import Retrained, Stage, retrained, stages_of
from pipelines.lab.verify.verdict import ErasedRange, VerifyVerdict, likely_cause
from pipelines.live.training.machine import software
from streaming.errors import BadInput, DataLost
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.position import NOTHING_YET
from streaming.store.files import link_file

TRIES = 5
"""How often a checkpoint may be replaced while it is linked."""

TRIAL = "registry/"
"""The beginning of the names of tensors that compare versions: people may decide in between."""


def verify(
    run_dir: RunDir, names: Sequence[str], bar: Callable[[str, int], Any], scratch: Path | None = None
) -> Iterator[VerifyVerdict]:
    """Retrain students of a run, one after the other; without `names` all that have a checkpoint. `bar(doing, rows)` is
    a context whose value is called with the rows of the lake that are done.

    Raises BadInput for an invalid request: no such student, no checkpoint, rows or what it started from deleted.
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


def _verified(
    config: Config, name: str, run_dir: RunDir, folder: Path, bar: Callable[[str, int], Any]
) -> VerifyVerdict:
    linked = _linked_copies(run_dir, name, folder)
    stored = _opened(linked.checkpoint, name)
    first, last = config.student(name).first_seq, stored.meta["lake_seq"]
    ranges = [
        (each, max(a, first), min(b, last))
        for each in erasures(run_dir.leader)
        for a, b in each.ranges
        if b >= first and a <= min(last, _learned(each, run_dir, name))
    ]
    erased = list({each.number: each for each, _, _ in ranges}.values())
    before = min((a for _, a, _ in ranges), default=None)
    if before is not None and before <= first:
        return _nothing_to_compare(name, linked.checkpoint.name, (first, last), _ranges(erased, before, last))
    with _pinned(run_dir, config, name, first, last), bar(f"retraining {name}", last + 1 - first) as advance:
        log = ComparedLog(linked.predictions, before, config.student(name).batch_rows)
        scratch = BesideRun(folder / "run", run_dir)
        try:
            found = retrained(
                config,
                name,
                scratch,
                _upto(stages_of(stored.meta), before),
                log,
                lambda upto: advance(upto + 1 - first),
                stored.meta["past"].get("withdrawals", 0),
            )
        except DataLost as error:
            raise BadInput(f"`{name}` cannot be retrained: {error}") from None
    accepted = accepted_identities(run_dir, config, STUDENT + name)
    verdict = _verdict(config.student(name), stored, found, log, linked, accepted, compared=before is None)
    return verdict if before is None else replace(verdict, erased=_ranges(erased, before, last))


def _verdict(
    student: StudentSettings,
    stored: Checkpoint[TensorSource],
    found: Retrained,
    log: ComparedLog,
    linked: _Linked,
    accepted: Collection[str],
    *,
    compared: bool,
) -> VerifyVerdict:
    """`accepted`: identities under which the student of this run may have been trained. `compared`: whether its state
    can be: it was not where rows that it had learned are erased."""
    meta = stored.meta
    names = [*stored.tensors, *(tensor for tensor in found.tensors if tensor not in stored.tensors)]
    if _people_decided(meta):
        names = [tensor for tensor in names if not tensor.startswith(TRIAL)]
    names = names if compared else []
    tensors = tuple(tensor_mismatches(stored.tensors, found.tensors, names))
    counts = count_mismatches(meta, found.meta) if compared else {}
    cause = None
    if log.mismatch is not None or tensors or counts:
        cause = likely_cause(
            log.mismatch,
            tensors,
            learned_by=meta["past"]["learned_by"],
            now=software(),
            pruned_upto=linked.predictions.pruned_upto,
            same_config=meta["config_hash"] in accepted,
        )
    return VerifyVerdict(
        student=student.name,
        checkpoint=linked.checkpoint.name,
        range=(student.first_seq, meta["lake_seq"]),
        rows=found.meta["rows"],
        tensors=len(names),
        bytes=sum(_bytes(stored.tensors[name]) for name in names if name in stored.tensors),
        predictions=log.compared,
        pruned=log.unlogged,
        row_mismatch=log.mismatch,
        tensor_mismatches=tensors,
        counts=counts,
        cause=cause,
        notes=tuple(_notes(meta, log, linked)),
    )


def _people_decided(meta: Mapping[str, Any]) -> bool:
    """True if people decided about versions, or the student was rewound and began them late: the evidence of a trial
    then does not follow from the rows only."""
    return bool(meta.get("registry", {}).get("others")) or meta["past"].get("rewound", False)


def _notes(meta: Mapping[str, Any], log: ComparedLog, linked: _Linked) -> Iterator[str]:
    """Limits of the comparison, in words."""
    if _people_decided(meta):
        yield "people decided about versions: the trial of a candidate is not compared"
    if log.unlogged:
        yield (
            f"predictions up to lake_seq {linked.predictions.pruned_upto:,} were deleted "
            "(resources.predictions_bytes): what they were shows in the tensors alone"
        )


def _bytes(tensor: TensorSource) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


# --- rows that are erased --------------------------------------------------------------------------------------------


def _learned(erasure: Erasure, run_dir: RunDir, name: str) -> int:
    """The last row that the student had learned when rows were erased; of a run that follows the lake it is not known,
    and counts as the last of them."""
    if run_dir.follows:
        return erasure.ranges[-1][1]
    return erasure.learned.get(STUDENT + name, NOTHING_YET)


def _nothing_to_compare(
    name: str, checkpoint: str, rows: tuple[int, int], erased: tuple[ErasedRange, ...]
) -> VerifyVerdict:
    """The verdict where the first row that the student learned is erased."""
    return VerifyVerdict(name, checkpoint, rows, 0, 0, 0, 0, 0, None, (), {}, erased=erased)


def _upto(stages: Sequence[Stage], before: int | None) -> list[Stage]:
    """The stages as far as rows can be compared."""
    if before is None:
        return list(stages)
    last = next((number for number, stage in enumerate(stages) if stage.upto >= before - 1), len(stages) - 1)
    return [*stages[:last], stages[last]._replace(upto=min(stages[last].upto, before - 1))]


def _ranges(erased: Sequence[Erasure], before: int, last: int) -> tuple[ErasedRange, ...]:
    """Ranges in which nothing can be compared, and why."""
    numbers = [each.number for each in erased]
    return (
        ErasedRange(before, max(before, last), sum(b + 1 - a for e in erased for a, b in e.ranges), tuple(numbers)),
    )


# --- what is compared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Linked:
    """Linked copies of what is compared."""

    checkpoint: Path
    predictions: LoggedPredictions


def _linked_copies(run_dir: RunDir, name: str, folder: Path) -> _Linked:
    """Hard links to the newest checkpoint and the logged predictions, which stay when the run deletes its own."""
    root = run_dir.checkpoints(STUDENT + name)
    for _ in range(TRIES):
        saved = checkpoint_names(root)
        if not saved:
            raise BadInput(f"student `{name}` of {run_dir.root} has no checkpoint yet; wait for its first one")
        if not keep(root / saved[-1], folder / saved[-1]):  # replaced by a newer one meanwhile
            continue
        _link_predictions(run_dir.predictions(name), folder / "predictions")
        return _Linked(folder / saved[-1], LoggedPredictions(folder / "predictions"))
    raise BadInput(f"the newest checkpoint of `{name}` was replaced {TRIES} times while it was read; try again")


def _link_predictions(source: Path, target: Path) -> None:
    """Link the prediction parts that are still there when it is their turn."""
    target.mkdir()
    for path in sorted(source.glob("*")) if source.exists() else ():
        with suppress(FileNotFoundError):
            link_file(path, target / path.name)


def _opened(path: Path, name: str) -> Checkpoint[TensorSource]:
    """Raises BadInput where the checkpoint cannot be read."""
    try:
        return open_checkpoint(path)
    except ModelError as error:
        raise BadInput(f"the newest checkpoint of `{name}` cannot be read: {error}") from None


def _with_retired(config: Config, run_dir: RunDir, names: Sequence[str]) -> Config:
    """The config with those of `names` that were retired: their checkpoints are still there. The run's own config has a
    section of one that it has not heard of yet, the roster of one that was spawned."""
    missing = [name for name in names if name not in {student.name for student in config.students}]
    desired_states = [
        desired for desired in map(run_dir.roster.desired, missing) if desired is not None and desired.section
    ]
    sections = {desired.name: desired.section for desired in desired_states}
    sections |= {s.name: s.model_dump(mode="json") for s in config_of(run_dir).students if s.name in missing}
    if not sections:
        return config
    settings = config.model_dump(mode="json")
    settings["students"] = [*settings["students"], *sections.values()]
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
