"""Manual care of a run's lake: contents, readers, and housekeeping on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, StreamingError
from streaming.lake.compaction import FileMerge
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.lock import housekeeping_lock
from streaming.lake.delta.log import LogFiles, unfinished
from streaming.lake.delta.vacuum import unneeded_files, vacuum_table
from streaming.lake.housekeeping import (
    Housework,
    compact_table,
    expire_rows,
    lay_out,
    pinned_ranges,
    retention_floor,
    too_far_behind,
)
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK

WAIT_S = 30.0
"""How long to wait for the run's own housekeeping, and for a moment without a commit in flight."""

ROUNDS = 4
"""Rounds of merging: the result of one may be small enough to be merged again."""


class LakeCare:
    """The lake of the run in `root`, and its side tables. Safe while the run is live.

    Raises BadInput where `root` holds no run with a lake.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self._run_dir = RunDir(root)
        self.config = config_of(self._run_dir)
        self.readers = Readers(self._run_dir.readers)
        self._clock = clock
        self._lake = LakeReader(self._run_dir.lake, self.config.rows)

    @property
    def tables(self) -> list[Path]:
        """The lake and its existing side tables."""
        side_tables = [self._run_dir.side_tables / name for name in (DEAD_LETTERS, LATE_FEEDBACK)]
        return [self._run_dir.lake, *(path for path in side_tables if path.is_dir() and unfinished(path) is None)]

    def status(self) -> dict[str, Any]:
        lake, metadata = self._lake, self._lake.metadata()
        return {
            "run_dir": str(self._run_dir.root),
            "id": lake.id,
            "rows": lake.rows,
            "first_lake_seq": lake.first_lake_seq,
            "last_lake_seq": lake.last_lake_seq,
            "counts": None if metadata is None else metadata.get("counts"),
            "tables": [self._table(path) for path in self.tables],
            "readers": self.reader_rows(),
            "settings": self.config.lake.model_dump(),
        }

    def _table(self, path: Path) -> dict[str, Any]:
        table, log = TableFiles(path), LogFiles.of(path)
        small = [file for file in table.files if 2 * file.bytes < self.config.lake.target_file_bytes]
        waiting = unneeded_files(path)
        return {
            "name": path.name,
            "version": table.version,
            "rows": sum(file.rows for file in table.files),
            "bytes": sum(file.bytes for file in table.files),
            "files": len(table.files),
            "small_files": len(small),
            "partitions": len({file.partition for file in table.files}),
            "unneeded_files": len(waiting),
            "unneeded_bytes": sum(size for _, size in waiting),
            "log_entries": len(log.entries),
            "checkpoints": len(log.checkpoints),
        }

    def reader_rows(self) -> list[dict[str, Any]]:
        """Registered and awaited readers, the slowest first."""
        now_s, expiry_s = self._clock(), self.config.lake.reader_expiry_s
        readers = self.readers.all()
        far = too_far_behind(readers, self.config.lake)
        rows: list[dict[str, Any]] = [
            {
                "name": reader.name,
                "position": reader.position,
                "pinned_upto": reader.last,
                "lag_rows": self._lake.last_lake_seq - reader.position,
                "silent_s": max(0.0, now_s - reader.at_s),
                "state": "damaged" if reader.damaged
                else "expired" if reader.expired(now_s, expiry_s)
                else "too far behind" if reader.name in far
                else "pin" if reader.last is not None
                else "reading",
            }
            for reader in readers
        ]  # fmt: skip
        absent = [name for name in self.config.reader_names if name not in {reader.name for reader in readers}]
        return [
            *(
                {"name": name, "position": -1, "pinned_upto": None, "lag_rows": self._lake.last_lake_seq + 1,
                 "silent_s": None, "state": "awaited"}
                for name in absent
            ),
            *rows,
        ]  # fmt: skip

    def compact(self, *, everything: bool, force: Collection[str], say: Callable[[str], None]) -> dict[str, Housework]:
        """Merge small files: by the settings, or with `everything` wherever two lie in a partition."""
        self._check(force)
        results: dict[str, Housework] = {}
        for path in self.tables:
            with _alone(path):
                table, done = TableFiles(path), results.setdefault(path.name, Housework())
                pinned = pinned_ranges(self.readers, self.config.lake, self._clock(), without=force)
                if path == self._run_dir.lake:
                    lay_out(table, self.config.lake, done, pinned=pinned)

                def progress(merge: FileMerge, name: str = path.name) -> bool:
                    place = "/".join(str(value) for _, value in merge.files[0].partition)
                    say(f"{name} {place}: {len(merge.files)} files, {merge.bytes / 2**20:.2f} MB")
                    return True

                for _ in range(ROUNDS):
                    before = done.made_files
                    compact_table(
                        table,
                        self.config.lake,
                        done,
                        now_s=self._clock(),
                        compact_files=2 if everything else None,
                        pinned=pinned if path == self._run_dir.lake else (),
                        go_on=progress,
                    )
                    if done.made_files == before:
                        break
        return results

    def retain(self, *, days: float | None, force: Collection[str]) -> Housework:
        """Delete rows that are too old and that no reader needs, except those in `force`."""
        self._check(force)
        settings = self.config.lake if days is None else self.config.lake.model_copy(update={"retention_days": days})
        if settings.retention_days is None:
            raise BadInput("this run keeps its rows for ever (lake.retention_days: null); give a limit: --days 30")
        with _alone(self._run_dir.lake):
            done = Housework()
            awaited = self.config.reader_names
            now_s = self._clock()
            held = retention_floor(self.readers, settings, now_s=now_s, awaited=awaited, without=force)
            expire_rows(TableFiles(self._run_dir.lake), settings, done, held, now_s=now_s)
        return done

    def vacuum(self, *, older_than_s: float | None) -> dict[str, Housework]:
        """Delete files that neither the newest version nor a later one needs."""
        results: dict[str, Housework] = {}
        for path in self.tables:
            with _alone(path):
                age = self.config.lake.vacuum_after_s if older_than_s is None else older_than_s
                results[path.name] = Housework(swept=vacuum_table(path, age, wait_s=WAIT_S))
        return results

    def pin(self, name: str, first: int, last: int) -> None:
        """Pin a range; raises BadInput if it is not in the lake, or the name is a reader's."""
        if not self._lake.first_lake_seq <= first <= last <= self._lake.last_lake_seq:
            raise BadInput(
                f"cannot pin lake_seq {first} to {last}: the lake holds {self._lake.first_lake_seq} to "
                f"{self._lake.last_lake_seq}"
            )
        if any(reader.name == name and reader.last is None for reader in self.readers.all()):
            raise BadInput(f"`{name}` is a reader of this lake; give the pin another name")
        self.readers.pin(name, first, last, now_s=self._clock())

    def retire(self, name: str) -> None:
        self._check([name])
        self.readers.retire(name)

    def _check(self, names: Collection[str]) -> None:
        """Raises BadInput for a name that no reader has."""
        reader_names = {row["name"] for row in self.reader_rows()}
        for name in names:
            if name not in reader_names:
                raise BadInput(f"no reader `{name}`; known readers: {', '.join(sorted(reader_names)) or 'none'}")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with housekeeping_lock(path, WAIT_S) as alone:
        if not alone:
            raise StreamingError(
                f"the run's own housekeeping has worked on {path.name} for {WAIT_S:.0f} s; try again later"
            )
        yield


def as_json(done: Housework) -> dict[str, Any]:
    fields = asdict(done)
    return fields | {"swept": done.swept._asdict()}
