"""Vacuum: deletes files of a table that no commit names any more or can ever name.

Such a file was replaced by a compaction, held rows that retention deleted, or was left by a commit that was killed,
overtaken, or ran into a full disk. Replacing a file sets its time of change (`retire`), so one rule serves all: not in
the newest version of the table, and unchanged for longer than asked. Files of a commit in flight are in no version
either; nothing is deleted unless there was a moment at which no commit was in flight (`streaming.lake.delta.lock`).

Of a table at a store, its log there and its files there decide, and what is deleted is older than an hour, however
little is asked: a commit of another machine may be in flight.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from streaming.lake.delta.lock import nothing_in_flight
from streaming.lake.delta.remote import LOG, committing, patiently, remote_table
from streaming.store.files import remove_file
from streaming.store.working_copy import WorkingCopy


class Vacuumed(NamedTuple):
    """Result of a vacuum. `waiting`: files that are not old enough yet; `busy`: a commit was in flight all the time."""

    files: int = 0
    bytes: int = 0
    waiting: int = 0
    busy: bool = False


def vacuum_table(table: Path, older_than_s: float, *, wait_s: float = 0.0) -> Vacuumed:
    """Delete the files unneeded from the newest version on, if unneeded for longer than `older_than_s`.

    wait_s  for a moment without a commit in flight; a writer that commits all the time leaves such moments
    """
    if (copy := remote_table(table)) is not None:
        return _vacuumed_at(copy, table, max(1, math.ceil(older_than_s / 3600)))
    with nothing_in_flight(table, wait_s) as quiet:
        if not quiet:
            return Vacuumed(busy=True)
        unneeded = unneeded_files(table)
        now_s = time.time()
    files = bytes_ = waiting = 0
    for path, size in unneeded:
        with suppress(FileNotFoundError):
            if older_than_s and now_s - path.stat().st_mtime < older_than_s:
                waiting += 1
                continue
            remove_file(path)
            files, bytes_ = files + 1, bytes_ + size
    return Vacuumed(files, bytes_, waiting)


def _vacuumed_at(copy: WorkingCopy, table: Path, older_than_h: int) -> Vacuumed:
    """Vacuum at a store: files that were replaced, or put and never committed, so many hours ago."""

    def unneeded() -> list[str]:
        return committing(table).vacuum(older_than_h, enforce_retention_duration=False, full=True)

    names = {name for each in patiently(table, unneeded) for name in (each, unquote(each))}
    bytes_ = {found.key: found.bytes for found in copy.store.list(f"{copy.key(table)}/")} if names else {}
    keys = [key for name in sorted(names) if (key := f"{copy.key(table)}/{name}") in bytes_]
    copy.delete_keys(keys)
    for key in keys:
        (copy.root / key).unlink(missing_ok=True)
    return Vacuumed(len(keys), sum(bytes_[key] for key in keys))


def unneeded_files(table: Path) -> list[tuple[Path, int]]:
    """(path, bytes) of the files that the newest version does not name; some may belong to a commit in flight."""
    paths = list(_files(table))  # first: what is committed after that is not among them, or named
    actions = pa.table(DeltaTable(table).get_add_actions())
    live = {unquote(path) for path in actions["path"].to_pylist()}
    sizes = []
    for path in paths:
        if os.path.relpath(path, table) not in live:
            with suppress(FileNotFoundError):
                sizes.append((path, path.stat().st_size))
    return sizes


def retire(paths: Iterable[Path]) -> None:
    """Start the vacuum delay of files; call before replacing them."""
    for path in paths:
        with suppress(FileNotFoundError):
            os.utime(path)


def _files(table: Path) -> Iterable[Path]:
    """Data files, and what is left of files that were being written: `name#1`, also in the log's folder."""
    for folder, folders, names in os.walk(table):
        if folder == str(table):
            folders[:] = [name for name in folders if name == LOG or not name.startswith((".", "_"))]
        in_log = Path(folder).name == LOG
        for name in names:
            staged = "#" in name and name.rpartition("#")[2].isdigit()
            if staged or (name.endswith(".parquet") and not in_log):
                yield Path(folder) / name
