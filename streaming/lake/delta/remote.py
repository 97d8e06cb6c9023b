"""Tables of a run on object storage: commits are made there, by delta-rs, and the log in the working copy follows.

A version is an entry of the log, which is put only if there is none of its number: of two writers on two machines one
makes it, and the other is refused, as two processes are on one disk. Here nobody sees a commit before it is at the
store; so whatever is derived from a row, a checkpoint or a prediction, is of a row that lasts.

All of this does nothing for a table in a folder of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from streaming.store.working_copy import WorkingCopy, copy_of, fetched

LOG = "_delta_log"

ATTEMPTS, PAUSE_S = 6, 0.1
T = TypeVar("T")


def address(table: Path) -> str | Path:
    """The address at which commits to a table are made."""
    copy = copy_of(table)
    return table if copy is None else copy.address(table) or table


def options(table: Path) -> dict[str, str] | None:
    """Storage options of delta-rs to reach it."""
    copy = copy_of(table)
    return None if copy is None or copy.address(table) is None else copy.delta_options()


def committing(table: Path, version: int | None = None) -> DeltaTable:
    """A handle to commit through. Raises as DeltaTable does."""
    return patiently(table, lambda: DeltaTable(address(table), version=version, storage_options=options(table)))


def patiently(table: Path, call: Callable[[], T]) -> T:
    """Result of `call`, which reads a table; at a store it is tried again where that did not answer well: delta-rs
    itself repeats requests that were refused, but not one whose answer was cut off."""
    for attempt in range(ATTEMPTS if is_remote(table) else 0):
        try:
            return call()
        except (TableNotFoundError, CommitFailedError):
            raise
        except (DeltaError, OSError):
            time.sleep(PAUSE_S * 2**attempt)
    return call()


def is_remote(table: Path) -> bool:
    """True if commits to a table are made at a store."""
    return remote_table(table) is not None


def follow(table: Path) -> None:
    """Let the log here be the one at the store. Entries that were deleted there as old are deleted here."""
    if (copy := remote_table(table)) is None:
        return
    there = {Path(key).name for key in copy.pull([f"{copy.key(table)}/{LOG}/"], whole=False)}
    oldest = min((name for name in there if name.endswith(".json")), default="")
    for path in (table / LOG).glob("*.json"):
        if path.name < oldest:
            path.unlink(missing_ok=True)


def fetch_data(table: Path, handle: DeltaTable) -> None:
    """Fetch the data files that are not here."""
    if is_remote(table):
        for path in pa.table(handle.get_add_actions())["path"].to_pylist():
            fetched(table / unquote(path))


def put_entry(table: Path, version: int, content: bytes) -> bool | None:
    """Make an entry of the log, unless there is one of its number; False then. None for a table that is not at a
    store."""
    if (copy := remote_table(table)) is None:
        return None
    made = copy.store.put_if_absent(f"{copy.key(table)}/{LOG}/{version:020d}.json", content)
    follow(table)
    return made


def check_fence(table: Path) -> None:
    """Raise StreamingError if a later coordinator has taken over the run that a table is of, at a store."""
    if (copy := remote_table(table)) is not None:
        copy.check_fence()


def remote_table(table: Path) -> WorkingCopy | None:
    """The working copy that a table lies in, where commits to it are made at a store."""
    copy = copy_of(table)
    return None if copy is None or copy.key(table) is None else copy
