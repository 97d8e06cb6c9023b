"""Files that are whole or not there, and outlive the power: written aside, flushed to the disk, moved into place."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from streaming.errors import DiskFull

PART = ".part"
"""Ends the name of a file that is still being written; one that is left over belongs to nobody."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put what `write` writes at `path`, replacing what is there; `sync` then makes the name durable too.

    Raises DiskFull, and leaves nothing behind, when the disk takes no more.
    """
    part = path.with_name(path.name + PART)
    with told_when_full(path):
        try:
            with part.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def link_file(source: Path, target: Path) -> None:
    """Give a file that never changes a second name; a copy where the file system has no links."""
    with told_when_full(target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with source.open("rb") as file:
                write_file(target, lambda copy: shutil.copyfileobj(file, copy, 1 << 20))


def make_folder(path: Path) -> None:
    """Create `path` and what it lies in, where it is missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with told_when_full(path):
        path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, as they stand, outlive the power."""
    with told_when_full(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """Turn the system's error for a full disk, or a used-up quota, into DiskFull with the name of what was written."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(f"no space left for {path}: {os.strerror(error.errno)}; free some, it is tried again") from error
