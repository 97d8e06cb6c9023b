"""Atomic and durable files: the one file of this package that renames, locks or flushes.

`streaming/store` is the same for the other two packages. This one has its own, because a training loop of one's own
saves checkpoints with `exfm` alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4


def replace_file(path: Path, *parts: bytes) -> None:
    """Write `parts` under another name, then move that over `path`: readers see the old file or the new one.

    Not flushed to the disk. One writer at a time; `.<name>.part` is what a killed one leaves behind.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "head.json"
    >>> replace_file(path, b"{}", b"\\n")
    >>> path.read_bytes(), [other.name for other in path.parent.iterdir()]
    (b'{}\\n', ['head.json'])
    """
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        for content in parts:
            file.write(content)
    move(part, path)


def move(source: Path, target: Path) -> None:
    """Rename a file, over any file of that name, or a folder, over none but an empty one. Raises OSError."""
    os.replace(source, target)


def remove_folder(path: Path) -> None:
    """Delete a folder, renamed first: no half of it ever has its name."""
    doomed = path.with_name(f".{path.name}.{uuid4().hex}")
    move(path, doomed)
    shutil.rmtree(doomed)


def flush(file: IO[Any]) -> None:
    """Force to the disk what was written to an open file."""
    file.flush()
    os.fsync(file.fileno())


def flush_names(folder: Path) -> None:
    """Force to the disk the names in a folder, so that a file moved into it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, from the top down, each name forced to the disk before the next is made;
    and the name of the lowest that exists, which a process that died may have made."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with suppress(PermissionError):  # the parent of a folder that others made for us may not be ours to open
        flush_names((missing[-1].parent if missing else path).parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        flush_names(folder.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, a file that is created where it is missing; wait for others that hold it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
