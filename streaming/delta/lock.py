"""Locks of a Delta table, held by open files: they end with the process that holds them, however it ends.

    in_flight      shared, by whoever writes data files and has not committed them yet; exclusive, for a moment, by
                   vacuum: while nobody writes, a file that the table does not name is one that nobody will ever commit
    housekeeping   exclusive: one compaction, retention or vacuum of a table at a time

A writer that is stopped (SIGSTOP) inside a commit keeps its lock, so its files are there when it goes on.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RETRY_S = 0.005


@contextmanager
def in_flight(table: Path) -> Iterator[None]:
    """Data files are written and committed inside. Waits while a vacuum looks around (milliseconds)."""
    with (table / "_delta_log" / ".in_flight").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def nothing_in_flight(table: Path, wait_s: float) -> Iterator[bool]:
    """Nobody has uncommitted files inside; False where somebody had some all the time for `wait_s`."""
    with _exclusive(table / "_delta_log" / ".in_flight", wait_s) as held:
        yield held


@contextmanager
def housekeeping(table: Path, wait_s: float) -> Iterator[bool]:
    """Nobody else keeps house inside; False where somebody did all the time for `wait_s`."""
    with _exclusive(table / "_delta_log" / ".housekeeping", wait_s) as held:
        yield held


@contextmanager
def _exclusive(path: Path, wait_s: float) -> Iterator[bool]:
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(RETRY_S)
            else:
                yield True
                return
