"""Files that are complete or absent, even after a power failure.

A file is written under a temporary name, flushed to the disk, and moved to its own name. The move itself is durable
once the folder is flushed too (`sync`), which a writer of many files does once, after the last of them.

In the working copy of a run on object storage, what is flushed is put to the store (`working_copy`).
"""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
import threading
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from streaming.errors import DataLost, DiskFull, StreamingError
from streaming.store.objects import PART_SUFFIX
from streaming.store.working_copy import delete_stored, put_flushed, put_moved

MOST_AT_ONCE = 8

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; on leaving, flush it and move it to `path`, over any file of that name.

    Missing folders are created. An exception inside deletes the temporary file and leaves `path` as it was. The
    temporary name is the thread's own, so that concurrent writers of one path do not mix their bytes.
    Raises DiskFull when the disk is full.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "new" / "rows.bin"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"abc")
    ...     path.exists()
    False
    >>> path.read_bytes(), [other.name for other in path.parent.iterdir()]
    (b'abc', ['rows.bin'])
    """
    part = _part(path)
    make_folder(path.parent)
    with disk_full_named(path):
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


class Staged:
    """Files of one folder, written one after another, flushed together, and renamed into place on request. The folder
    must be there.

    Inside the context an exception, or its end, deletes what has not been moved. One writer at a time.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with Staged(folder) as staged:
    ...     for name in ("rows", "marks"):
    ...         with staged.writing(name) as file:
    ...             _ = file.write(b"abc")
    ...     staged.flush()
    ...     staged.move(["rows"])
    >>> [path.name for path in folder.iterdir()]
    ['rows']
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, Path] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a temporary file for writing, later renamed to `name`. Raises DiskFull when the disk is full."""
        part = self._parts[name] = _part(self._folder / name)
        with disk_full_named(self._folder / name), part.open("wb") as file:
            yield file

    def flush(self) -> None:
        """Sync the content of all files not yet moved. Raises DiskFull."""
        sync_all(self._parts.values())

    def move(self, names: Iterable[str]) -> None:
        """Rename flushed files to their own names, over existing ones; `sync` makes that durable."""
        for name in names:
            self._parts[name].replace(self._folder / name)
            del self._parts[name]

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    """The temporary name of a file that this thread writes."""
    return path.with_name(f".{path.name}.{threading.get_native_id()}{PART_SUFFIX}")


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; on leaving, flush it and move it to `path`, over any folder of that name.

    Missing folders above it are created. The files inside are the caller's to flush. An exception deletes the temporary
    folder. One writer at a time.
    """
    part = path.with_name(f".{path.name}{PART_SUFFIX}")
    shutil.rmtree(part, ignore_errors=True)
    make_folder(path.parent)
    with disk_full_named(part):
        part.mkdir()  # its name need not last
    try:
        yield part
        _sync(part)
        put_moved(part, path)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file at `path`, atomically; the disk has it, and its name, when this returns. Raises DiskFull."""
    with replacing(path) as file:
        file.write(content)
    with suppress(PermissionError):  # a folder that others made for us may not be ours to open
        _sync(path.parent)
    put_flushed([path])


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, like `write_bytes`."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, like `write_bytes`. Raises DiskFull, ValueError for NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def append_line(path: Path, line: str) -> None:
    """Add a line to the file at `path`, on the disk when this returns. Half a line, which a crash has left, is removed
    first: it was never added. One writer at a time. Raises DiskFull.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log"
    >>> append_line(path, "one")
    >>> _ = path.open("a").write("tw")
    >>> append_line(path, "two")
    >>> path.read_text()
    'one\\ntwo\\n'
    """
    make_folder(path.parent)
    new = not path.exists()
    with disk_full_named(path), path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync(path.parent)
    put_flushed([path])


def read_json(path: Path) -> Any | None:
    """Read the JSON value at `path`; None if there is no file yet. Raises StreamingError when it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StreamingError(f"{path} is damaged ({error}); delete it, or put it back from a copy") from None


@contextmanager
def damage_named(path: Path, remedy: str) -> Iterator[None]:
    """Convert Arrow's errors for a truncated or altered file into DataLost with the file's name.

    >>> with damage_named(Path("run/rows.parquet"), "put it back from a copy"):
    ...     raise ValueError("no magic bytes")
    Traceback (most recent call last):
    ...
    streaming.errors.DataLost: run/rows.parquet is damaged (no magic bytes); put it back from a copy
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DataLost(f"{path} is damaged ({str(error).partition(chr(10))[0]}); {remedy}") from error


def move(source: Path, target: Path) -> None:
    """Rename a file, over any file of that name, or a folder, over none but an empty one; `sync` of the folder around
    it makes that last. Raises OSError."""
    put_moved(source, target)
    source.replace(target)


def move_to_new_name(source: Path, target: Path) -> bool:
    """Rename a file unless `target` is there; False then, and `source` is gone either way. Of several writers that try
    at once, one succeeds.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("mine", "yours"):
    ...     _ = (folder / name).write_text(name)
    >>> [move_to_new_name(folder / name, folder / "0001.json") for name in ("mine", "yours")]
    [True, False]
    >>> [(path.name, path.read_text()) for path in folder.iterdir()]
    [('0001.json', 'mine')]
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    finally:
        source.unlink(missing_ok=True)
    return True


def link_beside(source: Path, target: Path) -> None:
    """Give a file a second name in its folder, so that its blocks stay when the first is taken by another file."""
    os.link(source, target)


def share_blocks(copy: Path, of: Path) -> None:
    """Make a copy another name of the file that it copies, so that both take the disk's room once. Neither may ever be
    written in place. Nothing changes where their bytes differ, or the file system has no links.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, content in (("model", b"abc"), ("copy", b"abc"), ("other", b"abd")):
    ...     _ = (folder / name).write_bytes(content)
    >>> share_blocks(folder / "copy", folder / "model"), share_blocks(folder / "other", folder / "model")
    (None, None)
    >>> [(folder / name).samefile(folder / "model") for name in ("copy", "other")]
    [True, False]
    """
    if copy.samefile(of) or not filecmp.cmp(copy, of, shallow=False):
        return
    part = _part(copy)
    try:
        os.link(of, part)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return
    part.replace(copy)


def remove_file(path: Path) -> None:
    """Delete a file, at the store too. Raises FileNotFoundError."""
    delete_stored(path)
    path.unlink()


def remove_folder(path: Path) -> None:
    """Delete a folder, renamed first: no half of it ever has its name."""
    doomed = path.with_name(f".{path.name}.{uuid4().hex}")
    move(path, doomed)
    shutil.rmtree(doomed)


def link_file(source: Path, target: Path) -> None:
    """Give a file that never changes a second name; a copy where the file system has no links. Raises DiskFull."""
    with disk_full_named(target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with source.open("rb") as file, replacing(target) as copy:
                shutil.copyfileobj(file, copy, 1 << 20)


def make_folder(path: Path) -> None:
    """Create `path` and its missing parents, durably. Raises DiskFull.

    From the top down, each name flushed before the next is made. So of the folders that exist already only the lowest
    may be unflushed, by a process that died in between; its name is flushed too, once by each process.
    """
    missing: list[Path] = []
    lowest = path
    while (inode := _inode_of(lowest)) is None:
        missing.append(lowest)
        lowest = lowest.parent
    if not missing and not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with suppress(PermissionError):  # the parent of a folder that others made for us may not be ours to open
        _flush_name(lowest, inode)
    for folder in reversed(missing):
        with disk_full_named(folder):
            folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _inode_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


@lru_cache(maxsize=4096)
def _flush_name(folder: Path, inode: int) -> None:
    """Flush the name of a folder. `inode`: its own; one that takes its name later is another folder."""
    _sync(folder.parent)


def sync(path: Path) -> None:
    """Flush to the disk the content of a file, or the names in a folder. Raises DiskFull."""
    _sync(path)
    put_flushed([path])


def _sync(path: Path) -> None:
    with disk_full_named(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_all(paths: Collection[Path]) -> None:
    """`sync` of several paths in parallel, which takes a disk little longer than one. Those that are gone are passed
    over."""

    def flush(path: Path) -> None:
        with suppress(FileNotFoundError):
            _sync(path)

    list(_flushing(os.getpid()).map(flush, paths))
    put_flushed(paths)


@lru_cache(maxsize=1)
def _flushing(process: int) -> ThreadPoolExecutor:
    """Threads of this process that flush, for as long as it lives: a commit would start fourteen. One that was forked
    has none of those of its parent."""
    return ThreadPoolExecutor(MOST_AT_ONCE, "flush")


def is_disk_full(error: BaseException) -> bool:
    """True for ENOSPC and EDQUOT, also where a library (delta-rs) quotes the system's error inside its own.

    >>> is_disk_full(OSError(28, "No space left on device")), is_disk_full(OSError(13, "Permission denied"))
    (True, False)
    """
    return getattr(error, "errno", None) in _FULL or any(f"(os error {code})" in str(error) for code in _FULL)


@contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Convert the system's error for a full disk, or an exhausted quota, into DiskFull with the name of the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(
            f"no space left for {path}: {os.strerror(error.errno)}; free some space; a run that goes on "
            "tries it again, a command that ends here is to be given again"
        ) from error
