"""The end of a worker's log, and what is written to it from then on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pipelines.config import STUDENT
from pipelines.run_dir import RunDir
from streaming.errors import BadInput

LOOK_EVERY_S = 0.3


def log_lines(root: Path, name: str, lines: int, *, follow: bool = False) -> Iterator[str]:
    """The last lines of the log of a student, or of another worker of that name; with `follow`, what comes, until the
    caller stops. Raises BadInput where there is no such log."""
    folder = RunDir(root).logs
    path = next((p for p in (folder / f"{STUDENT}{name}.log", folder / f"{name}.log") if p.exists()), None)
    if path is None:
        there = ", ".join(sorted(p.stem.removeprefix(STUDENT) for p in folder.glob("*.log")))
        raise BadInput(f"{folder} has no log of `{name}`; there are: {there or 'none'}")
    return _lines(path, lines, follow=follow)


def _lines(path: Path, lines: int, *, follow: bool) -> Iterator[str]:
    with path.open(errors="replace") as file:
        yield from (line.rstrip("\n") for line in deque(file, maxlen=lines))
        inode = path.stat().st_ino
        while follow:
            if line := file.readline():
                yield line.rstrip("\n")
            elif path.exists() and path.stat().st_ino != inode:  # rotated: a new file has its name
                yield from _lines(path, 10**9, follow=True)
                return
            else:
                time.sleep(LOOK_EVERY_S)
