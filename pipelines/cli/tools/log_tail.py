"""Tail of a worker's log, optionally following it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pipelines.core.config.identity import STUDENT
from pipelines.core.run_dir.logs import as_text
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput

LOOK_EVERY_S = 0.3


def log_lines(root: Path, name: str, lines: int, *, follow: bool = False) -> Iterator[str]:
    """The last lines of the log of a student, or of another worker; with `follow`, then new ones until the caller
    stops. Raises BadInput where there is no such log."""
    folder = RunDir(root).logs
    path = next((p for p in (folder / f"{STUDENT}{name}.log", folder / f"{name}.log") if p.exists()), None)
    if path is None:
        there = ", ".join(sorted(p.stem.removeprefix(STUDENT) for p in folder.glob("*.log")))
        raise BadInput(f"{folder} has no log of `{name}`; choose from {there or 'none'}")
    return _lines(path, lines, follow=follow)


def _lines(path: Path, lines: int, *, follow: bool) -> Iterator[str]:
    shown: int | None = lines
    while True:
        with path.open(errors="replace") as file:
            yield from (as_text(line.rstrip("\n")) for line in deque(file, maxlen=shown))
            if not follow:
                return
            inode, over = os.fstat(file.fileno()).st_ino, False
            while not over:
                time.sleep(LOOK_EVERY_S)
                over = _is_another(path, inode)  # asked before the rest is read: nothing is written to it from then on
                yield from (as_text(line.rstrip("\n")) for line in file)
        shown = None  # all of the file that took its name


def _is_another(path: Path, inode: int) -> bool:
    """True if the log was rotated: another file has its name."""
    try:
        return path.stat().st_ino != inode
    except FileNotFoundError:  # between the two steps of that
        return False
