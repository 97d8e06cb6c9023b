"""A table's commit log on the disk: its length, and damage to it.

Entries are `<version>.json`; a checkpoint `<version>.checkpoint.parquet` holds all that the entries up to it say, and
`_last_checkpoint` names the newest. Entries from before a checkpoint are deleted when they are old enough.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import DataLost, StreamingError
from streaming.lake.delta.remote import LOG, follow, is_remote
from streaming.store.files import sync_all


class LogFiles(NamedTuple):
    """Versions that have an entry, and versions that have a checkpoint, both ascending."""

    entries: list[int]
    checkpoints: list[int]

    @classmethod
    def of(cls, table: Path) -> LogFiles:
        return cls(_versions(table, ".json"), _versions(table, ".checkpoint.parquet"))


def _versions(table: Path, ending: str) -> list[int]:
    names = (path.name.removesuffix(ending) for path in (table / LOG).glob(f"*{ending}"))
    return sorted(int(name) for name in names if name.isdigit())


def unfinished(table: Path) -> Path | None:
    """The only entry of a log if it is truncated, by a crash while the table was being created; else None. Nothing
    was ever in it, so it is made again; until then there is no table. None otherwise."""
    files, first = LogFiles.of(table), table / LOG / f"{0:020d}.json"
    if files.checkpoints or files.entries != [0] or _makes_a_table(first):
        return None
    data = (path for path in table.rglob("*.parquet") if LOG not in path.parts)
    return first if next(data, None) is None else None


def goes_beyond(table: Path, version: int) -> bool:
    """True where the log has commits after `version`: the next entry, or a checkpoint where that was deleted."""
    named = table / LOG / f"{version + 1:020d}.json"
    return named.exists() or (_named(table / LOG / "_last_checkpoint") or 0) > version


def flush(table: Path, versions: range) -> None:
    """Flush the entries of these commits, and their checkpoints: Delta leaves that to the system.

    The data files of a commit were flushed before it. What is gone since is passed over. Of a table at a store, which
    flushes by itself, the log here is brought up to it.
    """
    if is_remote(table):
        follow(table)
        return
    for version in versions:
        entry = table / LOG / f"{version:020d}.json"
        sync_all([entry, entry.with_suffix(".checkpoint.parquet"), entry.parent])


def unopened(table: Path, error: Exception) -> StreamingError:
    """The error for a table that cannot be opened: DataLost, which no retry repairs, if its log is damaged."""
    fault = damage(table)
    kind = StreamingError if fault is None else DataLost
    return kind(f"the table at {table} cannot be opened: {fault or str(error).partition(chr(10))[0]}")


def damage(table: Path) -> str | None:
    """Describe the damage that keeps the log of `table` from being read, with a remedy; None if there is none.

    Files are cut short when the machine, not only the process, stops before the disk has them.
    """
    log, files = table / LOG, LogFiles.of(table)
    base = max(files.checkpoints, default=-1)
    if files.checkpoints and not _is_parquet(path := log / f"{base:020d}.checkpoint.parquet"):
        return f"the checkpoint {path} is cut short or damaged. {_without(path, base, files)}"
    named = _named(log / "_last_checkpoint")
    if named is not None and named > base:
        path = log / f"{named:020d}.checkpoint.parquet"
        return f"the checkpoint {path} is gone. {_without(path, named, files)}"
    after = [version for version in files.entries if version > base]
    for version, entry in enumerate(after, base + 1):
        if version != entry:
            return (
                f"the log entry {log / f'{version:020d}.json'} is gone, and {entry:,} is there: what it committed is "
                "not known any more. Put the file back from a copy, or the whole table; no other way leads on"
            )
    for version in after:
        path = log / f"{version:020d}.json"
        if _makes_a_table(path) if version == 0 else _is_json_lines(path):
            continue
        if version == 0:
            return (
                f"the first log entry {path} is cut short: what the table is, is not known any more. Put the file back "
                "from a copy, or the whole table; no other way leads on"
            )
        if version == after[-1]:
            return (
                f"the newest log entry {path} is cut short: its commit did not reach the disk whole. Move the file "
                "away, and the table ends with the commit before; its rows are made again"
            )
        return f"the log entry {path} is damaged. Put it back from a copy, or the whole table"
    return None


def _without(path: Path, version: int, files: LogFiles) -> str:
    """Remedy for a checkpoint that is of no use: entries hold the same, as long as they are there."""
    base = max((other for other in files.checkpoints if other < version), default=-1)
    lacking = sorted(set(range(base + 1, version + 1)) - set(files.entries))
    if not lacking:
        return (
            f"Move it away, and {path.parent / '_last_checkpoint'} too: the log's entries from {base + 1:,} on hold "
            "all that it held"
        )
    return (
        f"The entries {lacking[0]:,} to {lacking[-1]:,} that it stands for have been deleted: put it back from a copy, "
        "or the whole table; no other way leads on"
    )


def _is_parquet(path: Path) -> bool:
    try:
        pq.ParquetFile(path).close()
    except (pa.ArrowInvalid, OSError):
        return False
    return True


def _is_json_lines(path: Path) -> bool:
    return bool(_actions(path))


def _makes_a_table(path: Path) -> bool:
    return {"protocol", "metaData"} <= _actions(path)


def _actions(path: Path) -> set[str]:
    """The kinds of actions in an entry; empty where it is cut short, or empty itself."""
    try:
        return {name for line in path.read_text().splitlines() for name in json.loads(line)}
    except (ValueError, TypeError):
        return set()


def _named(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
