"""The two locks of a Delta table.

in_flight      shared by writers whose data files are not committed yet; exclusive, for a moment, for vacuum: while no
               writer holds it, no commit will ever name a file that the table does not name yet
housekeeping   exclusive: one compaction, retention or vacuum of a table at a time

A writer that is stopped (SIGSTOP) inside a commit keeps its lock, so its files are still there when it continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from streaming.lake.delta.log import LOG
from streaming.store.lock import file_lock


@contextmanager
def in_flight_lock(table: Path) -> Iterator[None]:
    """Context in which data files are written and committed. Waits while a vacuum looks for files to delete
    (milliseconds)."""
    with file_lock(table / LOG / ".in_flight", shared=True, wait_s=None):
        yield


def nothing_in_flight(table: Path, wait_s: float) -> AbstractContextManager[bool]:
    """Context in which no uncommitted files exist; yields False if a writer had some for all of `wait_s`."""
    return file_lock(table / LOG / ".in_flight", wait_s=wait_s)


def housekeeping_lock(table: Path, wait_s: float) -> AbstractContextManager[bool]:
    """Context in which no other process compacts, deletes or vacuums; yields False if one did for all of `wait_s`."""
    return file_lock(table / LOG / ".housekeeping", wait_s=wait_s)
