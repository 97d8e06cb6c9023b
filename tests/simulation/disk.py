"""A disk that forgets what was not flushed.

Files are real ones, in memory where the machine has a file system for it. The calls that make something durable are
watched: a file's content is kept once it is flushed, a folder's names once the folder is. A power cut puts the tree
back to what was durable; of what was not, each name stays or goes by chance, and an unflushed file is torn.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.simulation.scheduler import Scheduler

WATCHED = ("fsync", "replace", "rename", "link", "unlink", "rmdir", "mkdir")
MEMORY = Path("/dev/shm")


class Disk:
    """The folder `root`, and what of it is durable."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._top = Path(tempfile.mkdtemp(prefix="exfm-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        self.root = self._top / "run"
        self._grave = self._top / "kept"
        self.root.mkdir()
        self._grave.mkdir()
        self._flushed: set[int] = set()
        self._kept: set[int] = set()
        self._names: dict[int, dict[str, int]] = {}
        self._folders: dict[int, bool] = {}
        self._real: dict[str, Callable[..., Any]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Calls of `os` that change the disk go through here."""
        self._real = {name: getattr(os, name) for name in WATCHED}
        for name in WATCHED:
            setattr(os, name, self._watch(name))
        try:
            yield
        finally:
            for name, call in self._real.items():
                setattr(os, name, call)
            shutil.rmtree(self._top, ignore_errors=True)

    def _watch(self, name: str) -> Callable[..., Any]:
        call, scheduler = self._real[name], self._scheduler
        grows = name in ("fsync", "link", "mkdir")

        def watched(*args: Any, **kwargs: Any) -> Any:
            process = scheduler.process
            if process is None:
                return call(*args, **kwargs)
            what = name if name == "fsync" or scheduler.trace is None else f"{name} {os.path.basename(args[0])}"
            scheduler.point(what, writes=grows)
            result = call(*args, **kwargs)
            if name == "fsync":
                self._note(args[0])
            return result

        return watched

    def _note(self, handle: int) -> None:
        """A file or folder was flushed."""
        found = os.fstat(handle)
        if not stat.S_ISDIR(found.st_mode):
            self._flushed.add(found.st_ino)
            return
        names = self._names[found.st_ino] = {}
        with os.scandir(handle) as entries:
            for entry in entries:
                names[entry.name] = entry.inode()
                self._folders[entry.inode()] = entry.is_dir(follow_symlinks=False)
                if not self._folders[entry.inode()]:
                    self._keep(entry.name, entry.inode(), handle)

    def _keep(self, name: str, inode: int, folder: int) -> None:
        """A second name, under which the content outlives a deletion that was not flushed."""
        if inode not in self._kept:
            self._real["link"](name, self._grave / str(inode), src_dir_fd=folder)
            self._kept.add(inode)

    def power_cut(self) -> None:
        """Start again from what was durable. No process is running."""
        after = self._top / "after"
        self._rebuild(self.root, self.root.stat().st_ino, after)
        shutil.rmtree(self.root)
        after.rename(self.root)
        shutil.rmtree(self._grave)
        self._grave.mkdir()
        self._kept.clear()
        self._flushed.clear()
        self._names.clear()
        self._folders.clear()
        for folder, _, files in os.walk(self.root):
            self._flushed |= {os.stat(Path(folder) / name).st_ino for name in files}
            handle = os.open(folder, os.O_RDONLY)
            self._note(handle)
            os.close(handle)

    def _rebuild(self, now: Path | None, inode: int, after: Path) -> None:
        """Write the durable form of a folder to `after`; `now` is where it lies, None where it was deleted."""
        after.mkdir()
        durable = self._names.get(inode, {})
        current: dict[str, tuple[int, bool]] = {}
        if now is not None:
            with os.scandir(now) as entries:
                current = {e.name: (e.inode(), e.is_dir(follow_symlinks=False)) for e in entries}
        for name in sorted({*durable, *current}):
            before, then = durable.get(name), current.get(name)
            lies = then is not None and (before == then[0] or self._scheduler.random.random() < 0.5)
            chosen = then if lies else None if before is None else (before, self._folders[before])
            if chosen is None:
                continue
            number, is_folder = chosen
            place = now / name if lies and now is not None else None
            if is_folder:
                self._rebuild(place, number, after / name)
            else:
                self._restore(place, number, after / name)

    def _restore(self, place: Path | None, inode: int, after: Path) -> None:
        source = self._grave / str(inode) if place is None else place
        if inode in self._flushed:
            self._real["link"](source, after)
            return
        content = source.read_bytes()
        torn = self._scheduler.random.choice([content, b"", content[: len(content) // 2], bytes(len(content))])
        after.write_bytes(torn)
