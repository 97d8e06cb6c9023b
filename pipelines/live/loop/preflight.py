"""Preflight checks before anything is started: the run directory, its lock, its disk and its config."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from exfm.errors import ConfigError, ModelError
from exfm.kernels.machine_code import has_compiler, no_compiler
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.erasures import require_erased
from pipelines.core.run_dir.moves import require_moved
from pipelines.core.run_dir.object_storage import LOOKED_AT_S
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.place import keep_place, original_of
from pipelines.live.loop.continuation import settle
from pipelines.live.workers.teacher.initial_state import initial_state
from streaming.errors import BadInput, StreamingError
from streaming.kafka.identity import source_topics
from streaming.process_limit import too_few_left
from streaming.program import command
from streaming.store.files import make_folder, read_json, write_text
from streaming.store.lock import file_lock
from streaming.store.working_copy import MARKER, copy_of, delete_stored

if TYPE_CHECKING:
    from pipelines.teacher.plan.question import Part

GB = 1 << 30
OF_RAY, OF_WORKER, OF_BROKER = 80, 20, 60


def prepare(
    config: Config,
    run_dir: RunDir,
    *,
    evolve: bool = False,
    drop: Collection[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Prepare a locked run directory, or explain what prevents the run. Raises BadInput or StreamingError (disk).

    A run directory that holds a run is resumed where `continuation.settle` finds that `config` continues it. `evolve`:
    features may differ from those the run was started with, where there is a rule; those in `drop` may be dropped;
    topics may have grown, and the broker is asked before it is written down. The folder of a new run is its user's
    alone, and the config that is written there holds no password.
    """
    require_moved(run_dir, config.kafka.bootstrap_servers)
    for erased in {run_dir.root: run_dir, run_dir.leader.root: run_dir.leader}.values():
        require_erased(erased)
    _disk(run_dir.root, config.resources.min_free_disk_gb)
    if not run_dir.config.exists():
        if config.follows is None:
            _indexes_fit(config)
            _partitioned_alike(config)
            _initial_teacher_fits(config)
        run_dir.root.chmod(0o700)  # who opens it to others later has it stay so
    elif evolve and config.follows is None:
        _partitions_are_there(config)
    settle(config, run_dir, evolve=evolve, drop=drop, say=say)
    run_dir.logs.mkdir(exist_ok=True)
    write_text(run_dir.config, dump(config))
    keep_place(run_dir.root)
    if config.follows is None and (words := _shares_topic(config, run_dir)):
        say(words)


def _initial_teacher_fits(config: Config) -> None:
    """Raise BadInput where the teacher is to begin as one of other sizes or features."""
    if (begun := config.teacher.init_from) is None:
        return
    try:
        initial_state(config, begun)
    except ModelError as error:
        raise BadInput(f"the teacher of teacher.init_from ({begun.path}) does not fit this config: {error}") from None


def _shares_topic(config: Config, run_dir: RunDir) -> str | None:
    """Warning for a copy that publishes to the topic of the run directory that it was made of."""
    original, examples = original_of(run_dir.root), config.kafka.examples.topic
    if original is None or config.kafka.bootstrap_servers is None:  # an embedded broker was copied with it
        return None
    try:
        theirs = yaml.safe_load(RunDir(original).config.read_text())["kafka"]["examples"]["topic"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None
    if theirs != examples:
        return None
    return (
        f"{run_dir.root} looks like a copy of {original}, and both publish to topic `{examples}`: one of them will be "
        "refused. Give this one a topic of its own (--set kafka.examples.topic=…), which is filled from the lake"
    )


def writable(folder: Path, what: str = "the run directory", option: str = "--run-dir") -> None:
    """Create a folder if necessary, and check that it is writable. Raises BadInput where nothing can be written into
    it."""
    try:
        make_folder(folder)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"cannot write into {what} {folder} ({error.strerror}); "
            f"give another one with {option}, or mend its permissions"
        ) from None


@dataclass
class PreflightState:
    begun: bool
    """There is a run: what the directory holds is its own, whatever happens now."""
    loops: bool = False
    """The run has a loop, which tells of its failure itself."""


def contents(folder: Path) -> set[Path] | None:
    """Paths in a folder; None if there is no folder."""
    return set(folder.iterdir()) if folder.is_dir() else None


def refuse_foreign(run_dir: RunDir) -> None:
    """Raise BadInput for a non-empty folder without a run: everything in a run's folder belongs to the run, and is
    deleted when it starts over."""
    others = (contents(run_dir.root) or set()) - {run_dir.broker, run_dir.copies}
    if copy_of(run_dir.root) is not None:  # what lies there is of its run, and of no other
        return
    if others and not run_dir.lock.exists() and not run_dir.lake.exists():
        raise BadInput(
            f"{run_dir.root} holds {min(others).name} and no run (no {run_dir.lock.name}); a run has a folder to "
            "itself, which --fresh empties: give another --run-dir, a new or an empty one"
        )


@contextmanager
def left_as_found(run_dir: RunDir, before: set[Path] | None) -> Iterator[PreflightState]:
    """Context that removes everything from a locked run directory without a run if the body fails before beginning
    one. `before`: its contents before it was locked."""
    found = PreflightState(begun=run_dir.config.exists())
    try:
        yield found
    except Exception:
        if not found.begun:
            with suppress(StreamingError):  # what the store has of it; the body's error is the one to tell
                for path in {*run_dir.root.iterdir(), run_dir.side_tables} - {*(before or ()), run_dir.root / MARKER}:
                    delete_stored(path)
            clear(run_dir.root, keep=before or ())
            if before is None and copy_of(run_dir.root) is None:
                run_dir.root.rmdir()
        raise


def clear(folder: Path, keep: Collection[Path]) -> None:
    """Delete the content of a folder, except `keep`."""
    for path in set(folder.iterdir()) - {*keep, folder / MARKER}:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _disk(root: Path, needed_gb: float) -> None:
    free = shutil.disk_usage(root).free / GB
    if free < needed_gb:
        raise StreamingError(
            f"{free:.1f} GB are free on the disk of {root}, {needed_gb:g} GB are wanted before a run starts "
            "(resources.min_free_disk_gb); free some, or give another disk with --run-dir"
        )


def check_processes(config: Config, *, local: bool) -> None:
    """Raise StreamingError if limits leave too few processes and threads for the workers, which would abort C++
    libraries. What is asked for is two thirds of what a run takes on two cores."""
    if local or config.resources.address is not None:
        return
    sharing = sum(student.ranks == 1 for student in config.students)
    students = math.ceil(sharing / config.resources.students_per_host)
    students += sum(student.ranks for student in config.students if student.ranks > 1)
    leads = config.follows is None
    workers = students + leads * (config.teacher.ranks + config.augmentation.processes) + config.plays
    needed = OF_RAY + workers * OF_WORKER + (OF_BROKER if leads and config.kafka.bootstrap_servers is None else 0)
    if (words := too_few_left(needed)) is not None:
        raise StreamingError(
            f"a run of {workers} worker processes starts {needed} processes and threads and more, which cannot be "
            f"started here: {words}"
        )


def _indexes_fit(config: Config) -> None:
    """Raises BadInput for a column that may be larger than the table that it is an index into."""
    for column in config.rows.columns:
        rows = config.features.index_rows.get(column.name)
        if rows is not None and column.maximum is not None and column.maximum >= rows:
            raise BadInput(
                f"column `{column.name}` may be up to {column.maximum} (rows.columns: maximum), and is an index into a "
                f"table of {rows} rows: make the maximum {rows - 1}, give the feature {column.maximum + 1} rows, or "
                "use transform `hash`"
            )


def _partitions_are_there(config: Config) -> None:
    """Raises BadInput where topics that others feed have other numbers of partitions, and BrokerAway."""
    kafka = config.kafka
    if not config.plays and kafka.bootstrap_servers is not None:
        source_topics(kafka, {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)})


def _partitioned_alike(config: Config) -> None:
    """Raises BadInput where a new run's input topics have unequal numbers of partitions. Of a run that has begun, one
    topic alone may have grown."""
    shown, feedback = config.kafka.impressions.partitions, config.kafka.feedback.partitions
    if shown != feedback:
        raise BadInput(
            f"kafka: impressions have {shown} partitions and feedback {feedback}; both are keyed by impression_id and "
            "need equal counts when a run begins"
        )


def _pid(run_dir: RunDir) -> Any:
    try:
        value = read_json(run_dir.status)
    except StreamingError:
        value = None
    return value.get("pid", "unknown") if isinstance(value, dict) else "unknown"


@contextmanager
def locked(run_dir: RunDir) -> Iterator[None]:
    """Lock of the run directory for one coordinator; released with the process, however it ends.

    Raises BadInput where another process has it, or the directory cannot be written.
    """
    writable(run_dir.root)
    with file_lock(run_dir.lock, wait_s=LOOKED_AT_S) as held:
        if not held:
            raise BadInput(
                f"{run_dir.root} is being run by another process (pid {_pid(run_dir)}); "
                f"see `{command('exfm', 'status', '--run-dir', run_dir.root)}`, end it with "
                f"`{command('exfm', 'stop', '--run-dir', run_dir.root)}`"
            )
        yield


def check_compiler(config: Config) -> None:
    """Raise ConfigError if the teacher is to be compiled without a compiler."""
    if config.follows is None and config.teacher.model.compile and not has_compiler():
        raise ConfigError(no_compiler("teacher.model.compile"))


def check_ranks(config: Config, *, local: bool) -> None:
    """Raise BadInput for several ranks in one process, ConfigError for tables that cannot be sharded as configured."""
    for student in config.students if local else ():
        if student.ranks > 1:
            raise BadInput(
                f"--local runs every worker in this one process, and ranks of student `{student.name}` is "
                f"{student.ranks}; leave --local out, or set its ranks to 1"
            )
    if config.follows is not None:
        return
    if local and config.augmentation.workers > 1:
        raise BadInput(
            "--local runs every worker in this one process, and augmentation.workers is "
            f"{config.augmentation.workers}; leave --local out, or set augmentation.workers=1"
        )
    parts: tuple[Part, ...] = ("teacher", "augmentation")
    for part in parts:
        section = config.teacher if part == "teacher" else config.augmentation
        if local and section.ranks > 1:
            raise BadInput(
                f"--local runs every worker in this one process, which can be one rank of a model, and {part}.ranks is "
                f"{section.ranks}; leave --local out, or set {part}.ranks=1"
            )
        if section.ranks == 1 and section.sharding.memory_gb is None:
            continue
        from exfm.parallel.planning.placement import Shortage, find_plan
        from pipelines.teacher.plan.question import question_of

        found = find_plan(question_of(config, part), quick=True)
        if isinstance(found, Shortage):
            raise ConfigError(
                f"the {part}'s tables do not fit their ranks: {found}. {part}.ranks is {section.ranks}, "
                f"{part}.sharding.memory_gb {section.sharding.memory_gb}; exfm plan shows what would fit"
            )


def check_storable(config: Config, run_dir: RunDir) -> None:
    """Raise BadInput where a run on object storage would keep something on this machine that it needs."""
    if (copy := copy_of(run_dir.root)) is None:
        return
    uri = config.tracking.uri
    if config.tracking.enabled and (uri is None or uri.startswith(("sqlite:", "file:")) or "://" not in uri):
        raise BadInput(
            f"{copy.url}: tracking writes {uri or 'a SQLite file in the run directory'}, which object storage cannot "
            "hold; give the address of an MLflow server (--set tracking.uri=http://HOST:PORT), or leave tracking out "
            "(--set tracking.enabled=false)"
        )
    if config.follows is not None:
        raise BadInput(
            f"{copy.url}: a run that follows another's lake has to lie in a folder of the same machine yet; give a "
            "folder with --run-dir"
        )
    if config.kafka.bootstrap_servers is None:
        raise BadInput(
            f"{copy.url}: the embedded broker keeps its topics on this machine's disk, and the run would be lost with "
            "it; give the address of a Kafka (--set kafka.bootstrap_servers=HOST:PORT). To try it out: exfm broker "
            "start --run-dir FOLDER"
        )
    if config.resources.address is not None and config.resources.students_per_host > 1:
        raise BadInput(
            f"{copy.url}: where workers are on several machines (resources.address), each has a working copy of its "
            "own, which students of one process would share: set resources.students_per_host to 1, or leave "
            "resources.address out"
        )
