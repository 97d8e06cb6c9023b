"""Lake of another run, as the coordinator of a run that follows it sees it: linked at the start, looked at each second.

Nothing is written there but the positions of this run's readers, so that the other run keeps the rows that they need:
by the rules that it has for its own students, of whom one that is silent for `lake.reader_expiry_s` holds none.
"""

from __future__ import annotations

import shutil
from typing import NamedTuple

from pipelines.core.config.following import leader_at
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.sections import FollowedLake
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.lake_link import LakeLink, read_link, reader_name, write_link
from pipelines.core.run_dir.object_storage import retire_followers, shown
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import last_status
from streaming.errors import BadInput, StreamingError
from streaming.lake.delta.files import NoTable, TableFiles
from streaming.lake.delta.identifiers import FIRST_SEQ, LAKE_SEQ
from streaming.lake.readers import Readers
from streaming.position import NOTHING_YET
from streaming.store.files import write_text
from streaming.store.working_copy import copy_of

FOLLOWER = "run"
"""File in a follower's folder of readers that names the folder of its run."""


class LakeView(NamedTuple):
    """State of a followed lake.

    last_seq   its last row; -1 while there is none
    ended      the run that leads is finished: no row will come
    leader     state of that run, in words
    lost       why the lake is not there any more
    """

    last_seq: int
    ended: bool
    leader: str
    lost: str | None = None


def link_lake(config: Config, run_dir: RunDir) -> None:
    """Link a run to the lake that it follows.

    Raises BadInput where no run leads there, it has no lake yet, or another one than this run has followed, and where
    a new run is to begin outside the lake.
    """
    assert config.follows is not None
    leader = leader_at(config.follows.lake)
    if leader.root.resolve() == run_dir.root.resolve():
        raise BadInput(f"{run_dir.root} is the run whose lake is to be followed; give another --run-dir")
    try:
        table = TableFiles(leader.lake)
    except NoTable:
        raise BadInput(f"{shown(leader)} has no lake yet; start that run first, then follow it") from None
    before = read_link(run_dir.root)
    if before is not None and before.lake != table.id:
        raise BadInput(
            f"{run_dir.root} has learned the lake {before.lake} of {before.run}, and {shown(leader)} has another one "
            f"({table.id}: it was started over, or is another run). Give another --run-dir, or start over with --fresh"
        )
    if not run_dir.config.exists():
        _check_begin(config.follows, leader, table)
    address = None if (copy := copy_of(leader.root)) is None else copy.url
    write_link(run_dir.root, LakeLink(leader.root.resolve(), table.id, reader_name(run_dir.root), address))


def _check_begin(followed: FollowedLake, leader: RunDir, table: TableFiles) -> None:
    first, last = table.identifier(FIRST_SEQ) or 0, _last(table)
    if followed.from_ > last + 1:
        raise BadInput(
            f"source.from is {followed.from_:,}, and the lake of {shown(leader)} ends at {last:,}; the next row, "
            f"{last + 1}, is the latest to begin at"
        )
    if followed.from_ < first:
        raise BadInput(
            f"source.from is {followed.from_:,}, and the lake of {shown(leader)} begins at {first:,}: older rows were "
            f"deleted (lake.retention_days); begin there, source.from={first}"
        )


def keep_rows(config: Config, run_dir: RunDir) -> None:
    """Register every student of a run that follows, where it stood or where it begins, so that its rows stay while its
    processes start. Raises StreamingError where nothing can be written there."""
    readers = Readers(run_dir.readers)
    stand = {reader.name: reader.position for reader in readers.all()}
    paused = run_dir.roster.paused
    for student in config.students:
        name = STUDENT + student.name
        if student.name in paused:
            continue
        try:
            readers.register(name, stand.get(name, student.first_seq - 1))
            write_text(readers.folder / FOLLOWER, f"{run_dir.root.resolve()}\n")
        except OSError as error:
            raise StreamingError(
                f"cannot register as a reader in {readers.folder} ({error.strerror}): the lake would not keep the rows "
                f"that `{student.name}` needs. Make {run_dir.leader.readers} writable for this user"
            ) from error


def release_rows(run_dir: RunDir) -> None:
    """Retire all readers of a run that follows a lake: it starts over, or is gone for good."""
    if (link := read_link(run_dir.root)) is not None:
        if link.address is not None:
            retire_followers(link.address, run_dir.readers.relative_to(link.run))
        shutil.rmtree(run_dir.readers, ignore_errors=True)


class LakeWatch:
    """The lake that the run in `run_dir` follows, seen from outside."""

    def __init__(self, run_dir: RunDir) -> None:
        link = read_link(run_dir.root)
        assert link is not None
        self._link, self._leader = link, run_dir.leader
        self._log = self._leader.lake / "_delta_log"
        self._table = TableFiles(self._leader.lake)
        self._place = self._place_of_table()
        self._last = _last(self._table)

    def look(self) -> LakeView:
        """Look at the lake and its run."""
        leads, ended = self._state(), self._leader.summary.exists()  # first: what it says of the lake is true then
        try:
            if self._place_of_table() != self._place:
                self._table = TableFiles(self._leader.lake)
            self._table.refresh()
            self._place = self._place_of_table()
        except (OSError, NoTable):
            gone = f"the lake that this run follows is gone: {shown(self._leader)}; nothing more can be learned of it"
            return LakeView(self._last, ended=False, leader=leads, lost=gone)
        except StreamingError as error:  # of a commit that a crash tore: its writer mends it
            return LakeView(self._last, ended=False, leader=f"{leads}; its lake cannot be read now ({error})")
        if self._table.id != self._link.lake:
            other = f"{shown(self._leader)} was started over: its lake is not the one that this run has followed"
            return LakeView(self._last, ended=False, leader=leads, lost=other)
        self._last = _last(self._table)
        return LakeView(self._last, ended, leads)

    def _place_of_table(self) -> tuple[int, int | None]:
        """Numbers of the log's folder and of the entry of the table's version: others once it was started over."""
        try:
            entry = (self._log / f"{self._table.version:020d}.json").stat().st_ino
        except FileNotFoundError:  # cleaned up; a newer one is there
            entry = None
        return self._log.stat().st_ino, entry

    def _state(self) -> str:
        try:
            status = last_status(self._leader.root)
        except StreamingError:
            return "unknown"
        if status is None or status.lives or status.state in ("done", "failed", "stopped"):
            return "not started" if status is None else status.state
        return "gone"


def _last(table: TableFiles) -> int:
    last = table.identifier(LAKE_SEQ)
    return NOTHING_YET if last is None else last
