"""Housekeeping: compaction, retention and vacuum of the lake and its side tables, while the stream runs.

`Housekeeper` does it in a thread of its own, once in several commits, so that no commit waits for it.

    layout      lays a lake with too little in its partitions out by verticals, once
    compaction  moves no row and no position: both are held up by pinned ranges only
    retention   deletes rows up to the lowest position in the registry (`Readers`) of the readers that have not expired
    vacuum      deletes files that no version from the newest on needs; a reader in the middle of a read looks again

Rows are never deleted before every reader in `awaited` has registered once: a student that was never started yet must
find the lake whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from streaming.lake import compaction, layout, retention
from streaming.lake.compaction import FileMerge
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.lock import housekeeping_lock
from streaming.lake.delta.vacuum import Vacuumed, vacuum_table
from streaming.lake.readers import Reader, Readers
from streaming.lake.settings import LakeSettings
from streaming.position import NOTHING_YET

RETENTION_STEP = 16
"""Rows are deleted when the newest event time has moved by retention / this: they live at most this much longer."""

STARTING_S = 900.0
"""After a run was down, its readers have this long to come back, however long they were silent meanwhile."""

log = logging.getLogger(__name__)


@dataclass
class Housework:
    """Work done on one table, for the log and for people."""

    laid_out_files: int = 0
    merged_files: int = 0
    made_files: int = 0
    rewritten_bytes: int = 0
    deleted_rows: int = 0
    first_seq: int | None = None
    held_by: str | None = None
    swept: Vacuumed = field(default_factory=Vacuumed)

    def __str__(self) -> str:
        parts = []
        if self.laid_out_files:
            parts.append(f"{self.laid_out_files} files by date laid out by vertical")
        if self.merged_files:
            size = self.rewritten_bytes / 2**20
            parts.append(f"{self.merged_files} files merged into {self.made_files} ({size:.1f} MB)")
        if self.deleted_rows:
            parts.append(f"{self.deleted_rows:,} rows deleted, the lake begins at lake_seq {self.first_seq:,}")
        if self.held_by:
            parts.append(f"older rows are kept for {self.held_by}")
        if self.swept.files:
            parts.append(f"{self.swept.files} files deleted ({self.swept.bytes / 2**20:.1f} MB)")
        if self.swept.busy:
            parts.append("no file deleted: a commit was in flight all the time")
        return ", ".join(parts) or "nothing to do"


def retention_floor(
    readers: Readers,
    settings: LakeSettings,
    *,
    now_s: float,
    awaited: Collection[str] = (),
    without: Collection[str] = (),
    since_s: float = float("-inf"),
) -> Reader | None:
    """The slowest reader that holds rows; None if there is none.

    A reader in `awaited` that never registered holds every row, and none of `awaited` expires within STARTING_S of
    `since_s`, when the run was started. Readers in `without` hold nothing, nor do those of runs that follow the lake
    too far behind.
    """
    registered = readers.all()
    without = {*without, *too_far_behind(registered, settings)}
    names = {reader.name for reader in registered}
    for name in awaited:
        if name not in names and name not in without:
            return Reader(name, NOTHING_YET, now_s)
    starting = set(awaited).difference(without) if now_s - since_s <= STARTING_S else ()
    holding = readers.holding(now_s=now_s, expiry_s=settings.reader_expiry_s, without=without)
    return next((reader for reader in registered if reader in holding or reader.name in starting), None)


def too_far_behind(readers: Sequence[Reader], settings: LakeSettings) -> set[str]:
    """Names of readers that belong to runs that follow the lake, and are further behind than rows are kept for."""
    furthest = max((reader.position for reader in readers), default=NOTHING_YET)
    most = settings.follower_rows
    return set() if most is None else {r.name for r in readers if r.follows and furthest - r.position > most}


def lay_out(
    table: TableFiles, settings: LakeSettings, done: Housework, *, pinned: Sequence[tuple[int, int]] = ()
) -> None:
    """Lay the lake out by verticals if the settings ask for it, or if its dates are too sparse."""
    if table.partition_by == layout.VERTICALS or settings.layout == "dates" or pinned:
        return
    count, due = len(table.files), settings.layout == "verticals" or layout.is_sparse(table.files)
    if due and layout.by_verticals(table, target_bytes=settings.target_file_bytes):
        done.laid_out_files = count


def compact_table(
    table: TableFiles,
    settings: LakeSettings,
    done: Housework,
    *,
    now_s: float,
    compact_files: int | None = None,
    pinned: Sequence[tuple[int, int]] = (),
    go_on: Callable[[FileMerge], bool] = lambda _: True,
) -> None:
    """Run the worthwhile merges while `go_on`, called before each, returns True."""
    merges = compaction.plan(
        table.files,
        compact_files=compact_files or settings.compact_files,
        target_bytes=settings.target_file_bytes,
        now_s=now_s,
        pinned=pinned,
    )
    for merge in merges:
        if not go_on(merge) or not compaction.merge(table, merge.files):
            return
        done.merged_files += len(merge.files)
        done.made_files += 1
        done.rewritten_bytes += merge.bytes


def expire_rows(
    table: TableFiles, settings: LakeSettings, done: Housework, held: Reader | None, *, now_s: float
) -> None:
    """Delete the rows older than the retention, up to the position of `held`."""
    if settings.retention_ms is None:
        return
    position = None if held is None else held.position
    cut = retention.cut(table, settings.retention_ms, position, now_ms=round(1000 * now_s))
    if held is not None and cut.first_seq < cut.by_age:
        done.held_by = f"`{held.name}` (at lake_seq {held.position:,})"
    if cut.rows and retention.delete_before(table, cut.first_seq):
        done.deleted_rows, done.first_seq = cut.rows, cut.first_seq


class Housekeeper:
    """Maintains the lake and its existing side tables from a thread of its own.

    awaited   names of readers for whom every row is kept until they have registered
    trouble   the last error; None while there is none. Errors are not raised: a lake that is not compacted is slow, not
              wrong

    Bounded: one task at a time, each at most a merge of about the target size; a commit during a task is only counted.
    One process at a time does housekeeping; others try again later.
    """

    def __init__(
        self,
        lake: Path,
        side_tables: Sequence[Path],
        readers: Readers,
        settings: LakeSettings,
        *,
        awaited: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lake, self._paths = lake, (lake, *side_tables)
        self._readers, self._settings, self._awaited, self._clock = readers, settings, awaited, clock
        self._every = max(1, min(settings.compact_files // 2, 16))
        self._commits = 0
        self._thread = ThreadPoolExecutor(1, "housekeeping")
        self._round: Future[None] | None = None
        self._closing = False
        self.trouble: str | None = None
        self._looking = threading.Lock()  # the worker asks for the floor, too
        self._registered: set[str] = set()  # of `awaited`, those that have registered once
        self._since_s = clock()
        self._tables: dict[Path, TableFiles] = {}
        self._cut_at_ms: int | None = None
        self._swept_at_s = dict.fromkeys(self._paths, clock())

    def floor(self) -> Reader | None:
        """The slowest reader that holds rows; of `awaited`, those registered once and retired since hold nothing,
        and none expires while the run starts."""
        with self._looking:
            registered = {reader.name for reader in self._readers.all()}
            self._registered |= registered.intersection(self._awaited)
            retired = self._registered - registered
        return retention_floor(
            self._readers,
            self._settings,
            now_s=self._clock(),
            awaited=self._awaited,
            without=retired,
            since_s=self._since_s,
        )

    def maybe(self) -> None:
        """Wake the thread if it is time; cheap, call after every commit."""
        self._commits += 1
        if self._commits % self._every or self._closing:
            return
        if self._round is None or self._round.running() or self._round.done():  # else the next one has not begun
            self._round = self._thread.submit(self._look_after_all)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread is idle; False on time-out."""
        return self._round is None or not wait([self._round], timeout_s).not_done

    def close(self) -> None:
        """Wait for the current task and stop; remaining work is left for another time."""
        self._closing = True
        self._thread.shutdown(cancel_futures=True)

    def _look_after_all(self) -> None:
        for path in self._paths:
            if not path.is_dir() or self._closing:
                continue
            try:
                with housekeeping_lock(path, wait_s=0.0) as alone:
                    if alone:
                        self._look_after(path)
                self.trouble = None
            except Exception as error:  # whatever it is: the lake would stay as it is, unsaid
                self._tables.pop(path, None)
                self.trouble = f"housekeeping of {path.name}: {error}"
                log.warning("%s; the next try is at one of the next commits", self.trouble)

    def _look_after(self, path: Path) -> None:
        """Do what the table at `path` needs now; no further merge once this is closing."""
        now_s, done = self._clock(), Housework()
        table = self._tables.get(path)
        if table is None:
            table = self._tables[path] = TableFiles(path)
        else:
            table.refresh()
        pinned: Sequence[tuple[int, int]] = ()
        if path == self._lake:
            self._retain(table, done, now_s)
            pinned = pinned_ranges(self._readers, self._settings, now_s)
            lay_out(table, self._settings, done, pinned=pinned)
        compact_table(table, self._settings, done, now_s=now_s, pinned=pinned, go_on=lambda _: not self._closing)
        if now_s - self._swept_at_s[path] >= self._settings.vacuum_after_s / 4:
            done.swept = vacuum_table(path, self._settings.vacuum_after_s, wait_s=0.2)
            if not done.swept.busy:
                self._swept_at_s[path] = now_s
        if done != Housework():
            log.info("%s: %s", path.name, done)

    def _retain(self, table: TableFiles, done: Housework, now_s: float) -> None:
        held = self.floor()
        keep_ms = self._settings.retention_ms
        newest = retention.newest_event_ms(table, now_ms=round(1000 * now_s))
        if keep_ms is None or newest is None:
            return
        if self._cut_at_ms is not None and abs(newest - self._cut_at_ms) < keep_ms / RETENTION_STEP:
            return
        expire_rows(table, self._settings, done, held, now_s=now_s)
        self._cut_at_ms = newest


def pinned_ranges(
    readers: Readers, settings: LakeSettings, now_s: float, without: Collection[str] = ()
) -> list[tuple[int, int]]:
    """Ranges (first, last) under verification."""
    holding = readers.holding(now_s=now_s, expiry_s=settings.reader_expiry_s, without=without)
    return [(reader.position + 1, reader.last) for reader in holding if reader.last is not None]
