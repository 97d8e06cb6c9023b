"""An advisory lock on a file. It belongs to the open file, so it ends with the process that holds it, however that
process ends; a process that is stopped (SIGSTOP) keeps it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

RETRY_S = 0.005


@contextmanager
def file_lock(path: Path, *, shared: bool = False, wait_s: float | None = 0.0) -> Iterator[bool]:
    """Hold the lock on `path` inside; yields False where others held it for all of `wait_s` (None: wait for ever).

    shared  other shared holders are let in, exclusive ones are not
    The file is created where it is missing, its folder is not.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.lock"
    >>> with file_lock(path) as first, file_lock(path) as second:
    ...     first, second
    (True, False)
    """
    with path.open("a") as file:
        yield _acquired(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait_s)


def _acquired(file: IO[str], mode: int, wait_s: float | None) -> bool:
    if wait_s is None:
        fcntl.flock(file, mode)
        return True
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_S)
