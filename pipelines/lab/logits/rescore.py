"""`exfm rescore`: a saved teacher scores rows of a lake again, into a logit set (streaming/lake/logit_set.py).

    lake/logit_sets/NAME/teacher/    the saved teacher, hard-linked until the set is complete: a run that goes on
                                     deletes its own

Rows are scored in pieces that follow from the first row alone, and each piece is committed with its position: the same
command resumes one that was interrupted, to the same bits. Readers are not stopped, and no row of the lake is changed.

Score before learn: a set says how many of its rows its teacher may have learned before it scored them. Of a version of
the run itself these are the rows up to its position; of another teacher, those up to the last that was shown no later
than the last row of the history it was trained on.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.representation import FIRST_SPACE
from exfm.machine import set_threads
from exfm.models.growth.refit import MadeWith, stored_teacher
from exfm.models.scorer import TeacherScorer, snapshot_of
from exfm.models.teacher_config import TeacherConfig
from exfm.snapshots.checkpoint import checkpoint_names, open_checkpoint
from exfm.snapshots.manifest import MANIFEST, read_manifest
from pipelines.core.config.identity import TEACHER
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.lab.logits.kept import keep, snapshots_of
from pipelines.live.training.set_writer import LogitSetWriter
from pipelines.live.training.unseen_labels import not_yet_learned
from streaming.errors import BadInput, StreamingError
from streaming.hashing import hash64
from streaming.lake.logit_set import DESCRIPTION, LOGIT_SETS, SetDescription, described, set_folder
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.store.files import make_folder, remove_folder, write_json
from streaming.store.lock import file_lock

PIECE_ROWS = 65_536
"""Rows of one commit."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class RescoreRequest(NamedTuple):
    """The command's options. `teacher`: a version of the run, or the folder of a saved teacher; `first`, `last`:
    `lake_seq`, None: the lake's own."""

    name: str
    teacher: str
    first: int | None = None
    last: int | None = None
    allow_leakage: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide the set, as JSON."""
        teacher = self.teacher if self.teacher.isdecimal() else str(Path(self.teacher).resolve())
        return {"teacher": teacher, "from": self.first, "to": self.last, "allow_leakage": self.allow_leakage}


class SavedTeacher(NamedTuple):
    """A saved teacher: its folder, and what its meta says. `version`: of the run itself; None: of another lineage.
    `learned_upto`: the last row of this lake that it has learned; `learned_ms`: the last event time of the history that
    it was trained on. None: not known."""

    path: Path
    words: str
    meta: dict[str, Any]
    version: int | None
    learned_upto: int | None
    learned_ms: int | None

    @property
    def made_with(self) -> MadeWith:
        return MadeWith.of_meta(self.meta["made_with"])

    @property
    def space(self) -> int:
        """Space of its representation: that of the run for a version of it; otherwise a number of its own."""
        if self.version is not None:
            return int(self.meta.get("space", FIRST_SPACE))
        of = hash64(pa.array([f"{self.meta['config_hash']} {self.meta['made_with']['seed']}"]))[0]
        return 1 + int(of) % (2**31 - 2)


def rescore(
    config: Config, run_dir: RunDir, request: RescoreRequest, advance: Callable[[int, int], None]
) -> SetDescription:
    """Write the set that is asked for, or what is missing of it, and return its description. `advance` is called with
    the rows done and their number.

    Raises BadInput where the name is taken by another set, the teacher is not there or does not fit the lake, rows are
    not there, or the teacher has learned rows and that is not allowed; StreamingError where another process writes the
    set.
    """
    if not NAME.fullmatch(request.name):
        raise BadInput(
            f"--as {request.name}: a name has letters, digits, `_`, `-` and `.`, and begins with one of the first two"
        )
    lake, beside = LakeReader(run_dir.lake, config.rows), run_dir.side_tables
    make_folder(beside / LOGIT_SETS)
    with file_lock(beside / LOGIT_SETS / f".{request.name}.lock") as alone:
        if not alone:
            raise StreamingError(f"another `exfm rescore` writes `{request.name}`; let it end first")
        one = _begun(config, run_dir, lake, request)
        if one.complete:
            return one
        folder = set_folder(beside, one.name)
        with _pinned(run_dir, lake, one):
            writer = LogitSetWriter(beside, one)
            _score(config, lake, writer, folder, advance)
            one = writer.complete()
        shutil.rmtree(folder / TEACHER, ignore_errors=True)
        return one


def _begun(config: Config, run_dir: RunDir, lake: LakeReader, request: RescoreRequest) -> SetDescription:
    """The description of the set as it was begun, now or before. Raises BadInput."""
    beside, options = run_dir.side_tables, request.options
    folder = set_folder(beside, request.name)
    if (one := described(beside, request.name)) is not None:
        if one.asked != options:
            state = "has" if one.complete else "was begun with"
            raise BadInput(
                f"--as {request.name}: the name is taken; that set {state} rows lake_seq {one.first:,} to {one.last:,} "
                f"by {one.teacher} ({_options(one.asked)}). A set is never written twice: take another name"
            )
        if one.lake != lake.id:
            raise BadInput(f"logit set `{one.name}` is of another lake than {lake.path}; take another name")
        return one
    teacher = saved_teacher(run_dir, request.teacher, config)
    _check_fits(config, lake, teacher)
    first, last = _span(lake, request)
    known = known_rows(lake, teacher, first, last)
    if known.rows != 0 and not request.allow_leakage:
        raise BadInput(_refusal(run_dir, lake, teacher, known, first, last))
    if folder.exists():  # by one that was killed before it had said what it is
        remove_folder(folder)
    make_folder(folder)
    if not keep(teacher.path, folder / TEACHER / teacher.path.name):
        raise BadInput(f"{teacher.path} was deleted just now (teacher.keep_snapshots); name a newer version")
    model = TeacherConfig.model_validate(teacher.made_with.model)
    one = SetDescription(
        name=request.name,
        lake=lake.id,
        first=first,
        last=last,
        tasks=config.tasks,
        representation=model.representation is not None and model.representation == config.rows.teacher_embedding,
        teacher=teacher.words,
        version=teacher.version,
        snapshot=teacher.path.name,
        space=teacher.space,
        known_rows=known.rows,
        asked=options,
    )
    write_json(folder / DESCRIPTION, one.model_dump(mode="json"))
    return one


def _options(asked: dict[str, Any]) -> str:
    """
    >>> _options({"teacher": "7", "from": None, "to": 99, "allow_leakage": False})
    '--teacher 7 --to 99'
    """
    given = {option: value for option, value in asked.items() if value not in (None, False)}
    words = (f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in given.items())
    return " ".join(words)


# --- the teacher -----------------------------------------------------------------------------------------------------


def saved_teacher(run_dir: RunDir, given: str, config: Config) -> SavedTeacher:
    """A version of the run's teacher, or the newest teacher in a folder: of `exfm pretrain`, of a run, a saved one
    itself. Raises BadInput where there is none, or it cannot be read."""
    if given.isdecimal():
        path = run_dir.snapshots / version_name(int(given))
        if not (path / MANIFEST).exists():
            has = ", ".join(f"{int(s.path.name[1:])} (up to lake_seq {s.lake_seq:,})" for s in snapshots_of(run_dir))
            raise BadInput(
                f"--teacher {given}: the run in {run_dir.root} has no such version on the disk "
                f"(teacher.keep_snapshots); it has: {has or 'none yet'}; or name the folder of a saved teacher"
            )
    else:
        path = _newest_in(Path(given))
    try:
        manifest = read_manifest(path)
        meta = manifest["meta"]
        MadeWith.of_meta(meta["made_with"])
        version, seq = int(meta["version"]), int(meta["lake_seq"])
    except (ModelError, OSError, KeyError) as error:
        raise BadInput(f"--teacher {given}: {path} is not a saved teacher: {error}") from None
    own = run_dir.root.resolve() in path.resolve().parents and "history" not in meta
    if own:
        return SavedTeacher(path, f"version {version} of the run's teacher", meta, version, seq, None)
    return SavedTeacher(path, f"the teacher in {path}", meta, None, None, _learned_ms(path, meta))


def _newest_in(folder: Path) -> Path:
    if (folder / MANIFEST).exists():
        return folder
    for place in ("snapshots/teacher", "snapshots", "checkpoints/teacher", "checkpoints"):
        if names := checkpoint_names(folder / place):
            return folder / place / names[-1]
    raise BadInput(
        f"--teacher {folder}: no saved teacher there; give a version of the run (a number), or a folder of `exfm "
        "pretrain`, of a run, or of a snapshot or checkpoint"
    )


def _learned_ms(path: Path, meta: dict[str, Any]) -> int | None:
    """The last event time of what a teacher of another lineage was trained on: as its meta says, or the lake of its own
    run."""
    if "event_time_ms" in meta:
        return int(meta["event_time_ms"][1])
    run_dir = RunDir(path.resolve().parents[2])
    if not run_dir.config.exists() or not run_dir.lake.is_dir():
        return None
    from pipelines.core.config.settings import load

    config = load(run_dir.config)
    lake = LakeReader(run_dir.lake, config.rows)
    times = lake.read(None, upto=meta["lake_seq"], columns=["event_time_ms"]).table["event_time_ms"].to_pylist()
    if (begun := config.teacher.learned_upto_ms) is not None:  # it began trained
        times.append(begun)
    return max(times, default=None)


def _check_fits(config: Config, lake: LakeReader, teacher: SavedTeacher) -> None:
    """Raise BadInput where the lake lacks columns of the teacher, or the teacher tasks of the run."""
    made = teacher.made_with
    has = lake.schema.augmented.names
    if missing := [name for name in made.features.needs_columns() if name not in has]:
        raise BadInput(
            f"{teacher.words} reads columns that the lake {lake.path} does not have: {', '.join(missing)}; it has: "
            f"{', '.join(has)}. Name a teacher of these columns"
        )
    if lacking := [task for task in config.tasks if task not in made.tasks]:
        raise BadInput(
            f"{teacher.words} knows the tasks {', '.join(made.tasks)}, and not the run's {', '.join(lacking)}; name "
            "one that was trained for them"
        )


# --- rows ------------------------------------------------------------------------------------------------------------


def _span(lake: LakeReader, request: RescoreRequest) -> tuple[int, int]:
    """First and last row. Raises BadInput where some are not there."""
    if not lake.rows:
        raise BadInput(f"the lake {lake.path} has no rows yet")
    has = f"{lake.path} has rows lake_seq {lake.first_lake_seq:,} to {lake.last_lake_seq:,}"
    first = lake.first_lake_seq if request.first is None else request.first
    last = lake.last_lake_seq if request.last is None else request.last
    if first < lake.first_lake_seq:
        raise BadInput(f"--from {first}: rows before are deleted (lake.retention_days): {has}")
    if last > lake.last_lake_seq:
        raise BadInput(f"--to {last}: {has}")
    if first > last:
        raise BadInput(f"--from {first} --to {last} is no row; {has}")
    return first, last


class KnownRows(NamedTuple):
    """Rows that a teacher may have learned: how many, and the first one behind all of them. None: nothing is known of
    what it has learned."""

    rows: int | None
    behind: int | None


def known_rows(lake: LakeReader, teacher: SavedTeacher, first: int, last: int) -> KnownRows:
    """Rows `first` to `last` that the teacher may have learned."""
    if teacher.learned_upto is not None:
        upto = min(last, teacher.learned_upto)
    elif teacher.learned_ms is not None:
        rows = lake.read(first - 1, upto=last, columns=["lake_seq", "event_time_ms"]).table
        shown = np.flatnonzero(rows["event_time_ms"].to_numpy() <= teacher.learned_ms)
        upto = int(rows["lake_seq"][int(shown[-1])].as_py()) if len(shown) else first - 1
    else:
        return KnownRows(None, None)
    return KnownRows(max(0, upto + 1 - first), upto + 1)


def _refusal(run_dir: RunDir, lake: LakeReader, teacher: SavedTeacher, known: KnownRows, first: int, last: int) -> str:
    allowed = "or allow it by name (--allow-leakage), which marks every figure that is made from the set"
    asked = f"lake_seq {first:,} to {last:,}"
    if known.rows is None:
        return (
            f"{teacher.words} does not say what it has learned, so that it may know the labels of the rows {asked}; "
            f"name a version of the run, or a teacher of `exfm pretrain` or in its run's folder, {allowed}"
        )
    if teacher.learned_upto is not None:
        why = f"has learned the rows up to lake_seq {teacher.learned_upto:,}"
        earlier = [s for s in snapshots_of(run_dir) if s.lake_seq < first]
        other = f"name an earlier version ({int(earlier[-1].path.name[1:])}), " if earlier else ""
    else:
        why = f"has learned rows shown up to event_time_ms {teacher.learned_ms}"
        other = ""
    begin = f"begin behind them (--from {known.behind}), " if known.behind is not None and known.behind <= last else ""
    return (
        f"{teacher.words} {why}: of the {last + 1 - first:,} rows {asked} it may know the labels of {known.rows:,}; "
        f"{begin}{other}{allowed}"
    )


@contextmanager
def _pinned(run_dir: RunDir, lake: LakeReader, one: SetDescription) -> Iterator[None]:
    """Keep the rows until they are scored; a command that is killed keeps them until it is given again. Raises BadInput
    where they are gone."""
    readers, pin = Readers(run_dir.readers), f"rescore-{one.name}"
    readers.pin(pin, one.first, one.last)
    lake.refresh()
    if lake.first_lake_seq > one.first:
        readers.retire(pin)
        raise BadInput(
            f"rows lake_seq {one.first:,} to {lake.first_lake_seq - 1:,} of {lake.path} were deleted "
            f"(lake.retention_days) before `{one.name}` was complete; take another name, and --from "
            f"{lake.first_lake_seq}"
        )
    yield
    readers.retire(pin)


def _score(
    config: Config, lake: LakeReader, writer: LogitSetWriter, folder: Path, advance: Callable[[int, int], None]
) -> None:
    """Score the rows that are missing, piece by piece."""
    one = writer.description
    set_threads(config.resources.threads)
    stored = open_checkpoint(folder / TEACHER / one.snapshot)
    made = MadeWith.of_meta(stored.meta["made_with"])
    scorer = TeacherScorer(TeacherConfig.model_validate(made.model), made.features, made.tasks)
    scorer.load(snapshot_of(stored_teacher(stored, made)))
    build, tasks = BatchBuilder(made.features, made.tasks), [made.tasks.index(task) for task in one.tasks]
    columns = list(dict.fromkeys(["lake_seq", "settlement", "event_time_ms", *made.features.needs_columns()]))
    begun_upto_ms = None if one.version is None else config.teacher.learned_upto_ms
    step, done = config.augmentation.score_rows, writer.done
    advance(done + 1 - one.first, one.rows)
    while done < one.last:
        upto = min(done + PIECE_ROWS, one.last)
        rows = lake.read(done, upto=upto, columns=columns).table
        pieces = []
        for start in range(0, rows.num_rows, step):
            asked = rows.slice(start, step).combine_chunks()
            logits, r = scorer.answer(build(asked))
            honest = not_yet_learned(asked, one.tasks, config.rows.groups, begun_upto_ms)
            pieces.append(writer.rows(asked["lake_seq"], logits[:, tasks], r, honest))
            advance(done + start + asked.num_rows + 1 - one.first, one.rows)
        writer.commit(pa.concat_tables(pieces) if pieces else writer.nothing(rows["lake_seq"]), upto)
        done = upto
