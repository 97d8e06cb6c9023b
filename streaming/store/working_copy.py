"""The working copy of a run that lies on object storage: a folder whose flushed files are at the store.

Workers read and write files of a folder, as those of any run. Where they flush, because the next step relies on what
was written, the file is put to the store before the flush returns. So what is at the store is what a disk holds after a
power failure that spares nothing but what was flushed, and a run goes on from there on another machine as it goes on
after such a failure.

    flush of a file             the file is put
    flush of a folder           its files are put, and those that are gone are deleted
    a folder moved into place   is put before it has its name, its manifest last
    a commit to a Delta table   is made at the store; the log here follows it (streaming/lake/delta/remote.py)

What need not last, as logs and status.json, follows every `MIRROR_S` (`mirror`). Some files stay on the machine: the
broker's, copies of a source, locks, whatever begins with a dot.

One coordinator works on a run. It has an epoch, a number that `put_if_absent` gives to one only; before a working copy
puts something, it looks whether there is a higher one, and stops if so.

Where the workers of a run are on several machines, each process has a copy of its own, and a `Share` in the run: it
puts what it writes, `follow`s what others put, and stops once a later process of its worker was begun.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psutil

from streaming.errors import BadInput, StreamingError
from streaming.store.lock import file_lock
from streaming.store.objects import PART_SUFFIX, ObjectStore, StoredObject, store_at

log = logging.getLogger(__name__)

MARKER = ".object-store.json"
"""Lies in a working copy, and says which store it is of, and in which epoch."""

MIRROR_S, ASKED_S = 30.0, 5.0
"""How often what need not last is put, and how often is looked for what others have put."""
BEAT_S, GONE_AFTER_S = 30.0, 100.0
"""How often a coordinator says that it lives, and after which silence it has ended."""
FORGOTTEN_S = 600.0
"""What is at the store and not here is deleted there once it is older."""
PUTTING = ".putting"
"""Folder of locks of what is being put before it has its name here."""
AT_ONCE = 8

COORDINATORS, WRITERS = "coordinators/", "writers/"
_FENCES = (COORDINATORS, WRITERS)
_STAYS = {"broker", "source", "mlflow.db", "mlartifacts", "place.json"}
_READERS = "lake/readers/"
_SHARED = ("checkpoints/augmentation/",)
"""Folders that the ranks of one worker write together."""
_OTHERS_WRITE = ("students/", _READERS)
"""What other machines put there is never deleted because it is not here yet."""
_TABLES = "lake/"
"""Data files are put with their commit, and deleted by vacuum."""
_LAST = "manifest.json"
"""Makes a folder complete, so it comes last, and goes first."""
_REFER = (_LAST, ".jsonl", "_last_checkpoint")
"""Files that name others are fetched after them, and SUMMARY, which says that a run has ended, after all."""
SUMMARY = "summary.json"
_VERSION = re.compile(r"v\d{8}.*")
"""A folder of this name has a manifest, and is followed whole."""
UNREAD_S = 3600.0
"""A fetched data file that was not read for so long is deleted here."""


class FileState(NamedTuple):
    """Size, time and inode of a file, which tell whether it has changed."""

    bytes: int
    changed_ns: int
    inode: int


class Coordinator(NamedTuple):
    """A coordinator: its epoch, how long ago it was heard of, in seconds, and `who` it said that it is."""

    epoch: int
    age_s: float
    who: Mapping[str, Any]

    @property
    def lives(self) -> bool:
        return not self.who["ended"] and self.age_s < GONE_AFTER_S and not _is_gone(self.who)


class Share(NamedTuple):
    """The share of one of several copies in a run. Of a key that begins with one of `own`, or with none of `others`,
    the copy's word holds: it is put from here, and deleted where it went here. All other keys are somebody else's.

    follows    what somebody else puts, and is fetched by `follow`
    successor  object that is there once a later process of the same worker was begun
    """

    own: tuple[str, ...]
    others: tuple[str, ...]
    follows: tuple[str, ...]
    successor: str | None = None

    def owns(self, key: str) -> bool:
        return key.startswith(self.own) or not key.startswith(self.others)


class WorkingCopy:
    """The working copy in `root` of the run at `url`; `epoch`: of the coordinator that works on it, None without one.

    >>> import tempfile
    >>> store, here, there = (Path(tempfile.mkdtemp()) for _ in range(3))
    >>> copy = open_copy(here, store.as_uri())
    >>> _ = (here / "checkpoints").mkdir(), (here / "checkpoints" / "one").write_text("1")
    >>> copy.put_folder(here / "checkpoints")
    >>> open_copy(there, store.as_uri()).pull()
    ['checkpoints/one']
    >>> (there / "checkpoints" / "one").read_text()
    '1'
    """

    def __init__(self, root: Path, url: str, epoch: int | None, share: Share | None = None) -> None:
        self.root, self.url, self.epoch = root, url, epoch
        self.share = share
        """None: all that the run writes is written here."""
        self.store: ObjectStore = store_at(url)
        self.taken_over: str | None = None
        """By whom, once it is known."""
        self._known: dict[str, FileState] = {}  # of files that were put or fetched
        self._tags: dict[str, str] = {}  # of the objects that they were then
        self._listed: dict[str, set[str]] = {}
        self._absent: set[str] = set()
        self._coordinated: bool | None = None
        self._writers: dict[str, int] = {}
        self._lock, self._following = threading.RLock(), threading.Lock()

    # --- where things are ----------------------------------------------------------------------------------------

    def key(self, path: Path) -> str | None:
        """The key of a file or folder; None for what stays on this machine."""
        parts = Path(os.path.abspath(path)).relative_to(self.root).parts
        if not parts or parts[0] in _STAYS or any(part.startswith(".") or "#" in part for part in parts):
            return None
        return None if parts[-1].endswith((PART_SUFFIX, ".lock", ".spool")) else "/".join(parts)

    def address(self, path: Path) -> str | None:
        """The address of a file or folder at the store; None for what stays on this machine."""
        key = self.key(path)
        return None if key is None else f"{self.url}/{key}"

    def delta_options(self) -> dict[str, str]:
        """Storage options of delta-rs to reach the store."""
        return self.store.delta_options()

    # --- from here to the store ----------------------------------------------------------------------------------

    def put_files(self, paths: Iterable[Path]) -> None:
        """Put files that have changed; those that are gone are passed over. Raises StreamingError where another
        coordinator works on the run."""
        keyed = [(path, key) for path in paths if (key := self.key(path)) is not None]
        self._put(keyed)

    def put_folder(self, folder: Path) -> None:
        """Make the store's files of a folder, without those in folders below it, what they are here."""
        key = self.key(folder) if folder != self.root else ""
        if key is None or f"{key}/".startswith(_TABLES):
            return
        under = f"{key}/" if key else ""
        names = {path.name for path in _files_of(folder)}
        self.put_files(folder / name for name in sorted(names))
        if self.epoch is None or under.startswith(_OTHERS_WRITE):
            return
        if self.share is not None:
            self.delete_keys([key for key in self._lost() if key.rpartition("/")[0] == under.rstrip("/")])
            return
        with self._lock:
            if under not in self._listed:
                keys = (found.key.removeprefix(under) for found in self.store.list(under))
                self._listed[under] = {name for name in keys if "/" not in name}
            gone = self._listed[under] - names
            self._listed[under] = {name for name in names if self.key(folder / name) is not None}
        self.delete_keys([f"{under}{name}" for name in sorted(gone) if self.key(folder / name) is not None])

    def put_tree(self, tree: Path, name: Path) -> None:
        """Put a whole folder under the name that it is about to get."""
        if self.key(name) is None:
            return
        keyed = []
        for path in sorted(tree.rglob("*")):
            key = self.key(name / path.relative_to(tree))
            if key is not None and path.is_file():
                keyed.append((path, key))
        if tree == name and any(key not in self._known for _, key in keyed):  # another process may have put it
            there = {found.key: found for found in self.store.list(f"{self.key(name)}/")}
            keyed = [(path, key) for path, key in keyed if key not in there or not self._same(path, key, there[key])]
        mark = self.root / PUTTING / uuid4().hex
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(f"{self.key(name)}/")
        with file_lock(mark, shared=True, wait_s=None):
            self._put(keyed)
            mark.unlink(missing_ok=True)

    def delete(self, path: Path) -> None:
        """Delete a file or a folder at the store."""
        key = self.key(path)
        if key is not None:
            below = [] if path.is_file() else [found.key for found in self.store.list(f"{key}/")]
            self.delete_keys(below or [key])

    def mirror(self) -> None:
        """Make the store what the working copy is: what need not last is put, what went is deleted. What is not here
        is deleted only where it was not here at the last call either, and is older than `FORGOTTEN_S`: a folder is put
        before it has its name here, and none of what is being put, however long that takes, is deleted."""
        if self.share is not None:
            self._mirror_own(self.share)
            return
        here = [(path, key) for path in _files_below(self.root) if (key := self.key(path)) is not None]
        # Listed after that: of what was put before it got its name, the store has all that was seen here.
        listed = {found.key: found for found in self.store.list() if not found.key.startswith(_FENCES)}
        keyed = []
        for path, key in here:
            if key.startswith(_TABLES):
                continue
            found = listed.pop(key, None)
            if found is None:
                self._known.pop(key, None)  # it went there, by whoever
            if found is None or not self._same(path, key, found):
                keyed.append((path, key))
        self._put(keyed)
        putting = tuple(self._being_put())
        old = (key for key, found in listed.items() if found.age_s > FORGOTTEN_S and not key.startswith(putting))
        absent = {key for key in old if not key.startswith((_TABLES, *_OTHERS_WRITE))}
        gone = [key for key in absent & self._absent if not (self.root / key).exists()]
        self._absent = absent
        self.delete_keys(sorted(gone, key=lambda key: (not key.endswith(_LAST), key)))
        for key in sorted(gone):
            self.put_files([self.root / key])  # one that was made anew meanwhile

    def put_all(self) -> None:
        """Make the store what the working copy is, at once: put what has changed since it was pulled, and delete what
        has gone. Of tables, and where other machines put something, nothing is deleted."""
        here = [(path, key) for path in _files_below(self.root) if (key := self.key(path)) is not None]
        self._put([(path, key) for path, key in here if not key.startswith(_TABLES)])
        self.delete_keys(sorted(self._lost(), key=lambda key: (not key.endswith(_LAST), key)))

    def _mirror_own(self, share: Share) -> None:
        """Put what is this copy's own and has changed; delete what it had, and had lost at the last call already."""
        here = [(path, key) for path in _files_below(self.root) if (key := self.key(path)) is not None]
        self._put([(path, key) for path, key in here if share.owns(key) and not key.startswith(_TABLES)])
        putting = tuple(self._being_put())
        lost = {key for key in {*self._lost(), *self._left_over(share)} if not key.startswith(putting)}
        gone, self._absent = lost & self._absent, lost
        self.delete_keys(sorted(gone, key=lambda key: (not key.endswith(_LAST), key)))
        self.delete_unread()

    def delete_unread(self) -> None:
        """Delete here the data files of others that no process has read for `UNREAD_S`."""
        for path in (self.root / _TABLES).rglob("*.parquet"):
            with suppress(FileNotFoundError):
                if self._is_others_data(path) and time.time() - path.stat().st_atime > UNREAD_S:
                    path.unlink()

    def _is_others_data(self, path: Path) -> bool:
        key = self.key(path)
        return key is not None and self.share is not None and _is_data(key) and not self.share.owns(key)

    def _left_over(self, share: Share) -> list[str]:
        """Own keys that are not here, and older than `FORGOTTEN_S`: a process before this one put them late. Not of
        folders that others write into, too, nor logs, of which more was written than is here."""
        kept = (_TABLES, "logs/", "registry/", *_SHARED)
        prefixes = [prefix for prefix in share.own if prefix.endswith("/") and not prefix.startswith(kept)]
        found = [each for prefix in prefixes for each in self.store.list(prefix) if each.age_s > FORGOTTEN_S]
        return [each.key for each in found if not (self.root / each.key).exists() and (self.root / MARKER).exists()]

    def _lost(self) -> list[str]:
        """Own keys that were put from here, or fetched, and are here no more; none where the copy itself is gone."""
        if not (self.root / MARKER).exists():
            return []
        with self._lock:
            own = [key for key in self._known if self.share is None or self.share.owns(key)]
        kept = (_TABLES, *_OTHERS_WRITE)
        return [key for key in own if not key.startswith(kept) and not (self.root / key).exists()]

    def _being_put(self) -> Iterator[str]:
        """Folders that some process puts, before they have their names here."""
        for mark in _files_of(self.root / PUTTING):
            with suppress(FileNotFoundError):
                folder = mark.read_text()
                with file_lock(mark) as nobody:
                    if not nobody:
                        yield folder
                        continue
                    mark.unlink(missing_ok=True)  # of one that was killed

    def _put(self, keyed: Collection[tuple[Path, str]]) -> None:
        changed = [(path, key, now) for path, key in keyed if (now := _state_of(path)) != self._known.get(key) and now]
        if not changed:
            return
        self.check_fence()
        for last in (False, True):
            some = [each for each in changed if each[1].endswith(_LAST) == last]
            if len(some) == 1:
                self._put_one(*some[0])
            elif some:
                list(_putting(os.getpid()).map(lambda each: self._put_one(*each), some))

    def _put_one(self, path: Path, key: str, state: FileState) -> None:
        with suppress(FileNotFoundError):  # replaced or deleted meanwhile, by who knows
            tag = self.store.put(key, path)
            with self._lock:
                self._known[key], self._tags[key] = state, tag

    def delete_keys(self, keys: Collection[str]) -> None:
        """Delete objects."""
        if keys:
            self.check_fence()
            self.store.delete(keys)
            with self._lock:
                for key in keys:
                    self._known.pop(key, None)
                    self._tags.pop(key, None)

    def _same(self, path: Path, key: str, found: StoredObject) -> bool:
        """True if the file is the object: neither has changed since we put or fetched it, or their content says so."""
        now = _state_of(path)
        if now is None or now.bytes != found.bytes:
            return False
        if now == self._known.get(key) and found.tag == self._tags.get(key):
            return True
        if self.store.tag_of(path) != found.tag:
            return False
        with self._lock:
            self._known[key], self._tags[key] = now, found.tag
        return True

    # --- from the store to here ----------------------------------------------------------------------------------

    def pull(
        self,
        prefixes: Collection[str] = ("",),
        *,
        whole: bool = True,
        only: Callable[[str], bool] = lambda key: not key.startswith(_FENCES),
    ) -> list[str]:
        """Make the working copy what the store is, below these prefixes; returns the keys that are there. Data files of
        tables are fetched when they are read (`fetched`).

        whole  files that are not at the store are deleted: they were never flushed
        only   whether a key is to be here
        """
        found = [f for prefix in prefixes for f in self.store.list(prefix) if only(f.key)]
        wanted = [f for f in found if not _is_data(f.key) and not self._same(self.root / f.key, f.key, f)]
        for each in sorted(wanted, key=lambda f: (f.key.endswith(_REFER), f.key)):
            with suppress(FileNotFoundError):  # a run that lives has deleted it since it was listed
                self._fetch(each.key, each)
        keys = [f.key for f in found]
        if whole:
            there = set(keys)
            for path in _files_below(self.root):
                key = self.key(path)
                if key is not None and key.startswith(tuple(prefixes)) and key not in there:
                    path.unlink(missing_ok=True)
        return keys

    def follow(self, prefixes: Collection[str] | None = None) -> None:
        """Fetch what others have put below these prefixes (None: all that this copy follows), and delete what they have
        deleted. A version's folder is here whole or not at all. Nothing of this copy's own is touched."""
        share = self.share
        if share is None:
            return
        prefixes = share.follows if prefixes is None else tuple(prefixes)
        with self._following:
            here = self._others_here(share, prefixes)  # before the listing: what came since may be newer than that
            listed = {found.key: found for each in prefixes for found in self.store.list(each)}
            there = {key: found for key, found in listed.items() if not share.owns(key) and not _is_data(key)}
            gone = here.keys() - listed.keys()
            for key in sorted(gone, key=lambda key: (not key.endswith(_LAST), key)):
                if _state_of(self.root / key) == here[key]:
                    (self.root / key).unlink(missing_ok=True)
                self._forget(key)
            for parent in {(self.root / key).parent for key in gone}:
                with suppress(OSError):  # it holds something, or went
                    parent.rmdir()
            changed = [f for f in there.values() if self._tags.get(f.key) != f.tag or not (self.root / f.key).exists()]
            folders = {each.key.rpartition("/")[0] for each in changed if _is_of_version(each.key)}
            for each in sorted(changed, key=lambda f: (f.key == SUMMARY, f.key.endswith(_REFER), f.key)):
                if not _is_of_version(each.key):
                    with suppress(FileNotFoundError):  # deleted since it was listed
                        self._fetch(each.key, each)
            for folder in sorted(folders):
                if f"{folder}/{_LAST}" in there:
                    self._fetch_folder(folder, [f for key, f in there.items() if key.rpartition("/")[0] == folder])

    def _others_here(self, share: Share, prefixes: Collection[str]) -> dict[str, FileState]:
        """Files here, but for data files of tables, that somebody else puts below these prefixes. A process of the run
        itself looks at those that it has fetched only: another one may just have been written."""
        paths: list[Path] = []
        for prefix in prefixes:
            place = self.root / prefix
            paths += _files_below(place) if place.is_dir() else [place]
        keys = {key: path for path in paths if (key := self.key(path)) is not None}
        others = {key: _state_of(path) for key, path in keys.items() if not share.owns(key) and not _is_data(key)}
        mine = self.epoch is not None
        return {key: state for key, state in others.items() if state is not None and (key in self._known or not mine)}

    def _fetch_folder(self, folder: str, files: Collection[StoredObject]) -> None:
        """Fetch a folder under another name, and move it to its own; nothing where it is deleted meanwhile."""
        target = self.root / folder
        part = target.with_name(f".{target.name}.{uuid4().hex}{PART_SUFFIX}")
        try:
            for each in files:
                self._fetch(each.key, each, part / Path(each.key).name)
        except FileNotFoundError:
            for each in files:
                self._forget(each.key)
        else:
            shutil.rmtree(target, ignore_errors=True)
            with suppress(OSError):  # another process that follows has moved it there
                part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)
            self._tags.pop(key, None)

    def look_for_requests(self) -> None:
        """Fetch what other machines have put since the last call: what students shall be, readers of the lake."""
        for found in self.store.list("students/"):
            desired = found.key.endswith("/wish.json") or "/start/" in found.key
            if desired and self._tags.get(found.key) != found.tag:  # what was asked here may not be there yet
                with suppress(FileNotFoundError):
                    if not self._same(self.root / found.key, found.key, found):
                        self._fetch(found.key, found)
        with self._lock:  # workers put files meanwhile
            known = {key: state for key, state in self._known.items() if key.startswith(_READERS)}
        there = {found.key: found for found in self.store.list(_READERS)}
        for key, found in there.items():
            path = self.root / key
            renewed = self._tags.get(key) != found.tag and _state_of(path) == self._known.get(key)
            with suppress(FileNotFoundError):  # what a worker here has written since is newer than its object
                if renewed or not path.exists():
                    self._fetch(key, found)
        for key in known.keys() - there.keys():  # retired on another machine; one that was made anew here stays
            if _state_of(self.root / key) == known[key]:
                (self.root / key).unlink(missing_ok=True)
            self._known.pop(key, None)

    def fetched(self, path: Path) -> Path:
        """`path`, fetched if it is not here. Raises FileNotFoundError where the store has none."""
        key = self.key(path)
        if key is not None and not path.exists():
            self._fetch(key)
        if self._is_others_data(path):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # read now
        return path

    def _fetch(self, key: str, found: StoredObject | None = None, path: Path | None = None) -> None:
        """Fetch an object to the file of its key, or to `path`, which is to be moved there."""
        path = self.root / key if path is None else path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}{PART_SUFFIX}")
        try:
            self.store.fetch(key, part)
            put_at = time.time() - (0.0 if found is None else found.age_s)
            os.utime(part, (put_at, put_at))  # as old as it is: a snapshot's age decides whether it may score
            state = _state_of(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        if state is not None and found is not None:
            with self._lock:
                self._known[key], self._tags[key] = state, found.tag

    # --- the one coordinator -------------------------------------------------------------------------------------

    def take_over(self, share: Share | None = None, *, runs: bool = True) -> int:
        """Become the run's coordinator, the only one; returns the epoch. `share`: where workers have copies of their
        own; `runs`: False for a command, which changes the run and does not run it. Raises BadInput where one lives."""
        last = self._last_coordinator()
        if last is not None and last.lives:
            raise BadInput(
                f"{self.url} is being run by pid {last.who['pid']} on {last.who['host']}, heard of "
                f"{last.age_s:.0f} s ago; stop it there (exfm stop --run-dir {self.url}). Where that machine is "
                f"gone, start this again {GONE_AFTER_S - last.age_s:.0f} s from now"
            )
        epoch = 1 if last is None else last.epoch + 1
        if not self.store.put_if_absent(_of_epoch(epoch), _who(ended=False, runs=runs)):
            raise BadInput(f"{self.url}: another coordinator started at the same moment; it runs, this one does not")
        self.taken_over = None
        self._mark(epoch, share)
        return epoch

    @property
    def is_coordinated(self) -> bool:
        """True while a coordinator that runs it is heard of, on whatever machine; by the store's clock."""
        if self._coordinated is None:
            return self._looked_for_coordinator()
        return self._coordinated

    def look_for_coordinator(self) -> None:
        """Keep whether a coordinator lives, for those who may not wait for the store; until `forget_coordinator`."""
        self._coordinated = self._looked_for_coordinator()

    def forget_coordinator(self) -> None:
        self._coordinated = None

    def _looked_for_coordinator(self) -> bool:
        last = self._last_coordinator()
        return last is not None and last.lives and last.who.get("runs", True)

    def _last_coordinator(self) -> Coordinator | None:
        newest = max(self.store.list(COORDINATORS), key=lambda found: found.key, default=None)
        if newest is None:
            return None
        return Coordinator(int(Path(newest.key).stem), newest.age_s, json.loads(self.store.read(newest.key)))

    def check_fence(self) -> None:
        """Raise StreamingError if a later coordinator has taken the run over."""
        if self.epoch is None:
            return
        if self.share is not None and self.share.successor is not None:
            with suppress(FileNotFoundError):
                self.store.read(self.share.successor)
                raise StreamingError(f"fenced: {self.share.successor} of {self.url} was begun after this process")
        try:
            later = json.loads(self.store.read(_of_epoch(self.epoch + 1)))
        except FileNotFoundError:
            return
        self.taken_over = (
            f"fenced: {self.url} was taken over by pid {later['pid']} on {later['host']}; this coordinator (epoch "
            f"{self.epoch}) and its workers must end"
        )
        raise StreamingError(self.taken_over)

    @contextmanager
    def coordinated(self, share: Share | None = None, *, runs: bool = True, beat_s: float = BEAT_S) -> Iterator[int]:
        """Context of the run's coordinator, the only one, with its epoch: others hear every `beat_s` that it lives,
        whatever it is busy with, and at last that it has ended. `share`, `runs`: as `take_over` has them. Raises
        BadInput where one lives."""
        epoch = self.take_over(share, runs=runs)
        try:
            with RepeatedWork("heartbeat", beat_s, lambda: self._heard_of(epoch, ended=False, runs=runs)):
                yield epoch
        finally:
            self._heard_of(epoch, ended=True, runs=runs)
            self._mark(None)

    def begin_writer(self, worker: str) -> str:
        """Begin a process of a worker, as the run's coordinator: from now on earlier ones put nothing. Returns the
        `successor` that would end it."""
        assert self.epoch is not None
        number = self._writers[worker] = self._writers.get(worker, 0) + 1
        self.check_fence()
        self.store.put(_of_writer(worker, self.epoch, number), _who(ended=False))
        return _of_writer(worker, self.epoch, number + 1)

    def _heard_of(self, epoch: int, *, ended: bool, runs: bool) -> None:
        self.check_fence()
        self.store.put(_of_epoch(epoch), _who(ended=ended, runs=runs))

    def _mark(self, epoch: int | None, share: Share | None = None) -> None:
        self.epoch, self.share = epoch, share
        part = self.root / f"{MARKER}.{uuid4().hex}{PART_SUFFIX}"  # several ranks may mark their copy at once
        part.write_text(json.dumps({"url": self.url, "epoch": epoch, "share": share}) + "\n")
        part.replace(self.root / MARKER)


def open_copy(root: Path, url: str) -> WorkingCopy:
    """Make `root` a working copy of the run at `url`, or take the one it is; without an epoch. Raises BadInput where
    it is one of another run."""
    root.mkdir(parents=True, exist_ok=True)
    root = root.resolve()
    if not (root / MARKER).exists():
        WorkingCopy(root, url, None)._mark(None)
        _copy_around.cache_clear()
    copy = _opened(root, os.getpid())
    if copy.url != url:
        raise BadInput(f"{root} is a working copy of {copy.url}, not of {url}; delete it, if nothing runs in it")
    copy._mark(None)
    return copy


def open_share(root: Path, url: str, epoch: int | None, share: Share) -> WorkingCopy:
    """Make a folder a working copy with a share in the run, or take the one that it is. `epoch`: of the coordinator
    whose processes put from there, None for another run's."""
    root = root.resolve()
    copy = _opened(root, os.getpid()) if (root / MARKER).exists() else None
    if copy is None or (copy.url, copy.epoch, copy.share) != (url, epoch, share):
        WorkingCopy(root, url, None)._mark(epoch, share)
        _copy_around.cache_clear()
        _opened.cache_clear()
    return _opened(root, os.getpid())


def copy_of(path: Path) -> WorkingCopy | None:
    """The working copy that `path` is, or lies in; None for a folder of its own."""
    folder = path if path.is_dir() else path.parent
    root = _copy_around(folder)
    return None if root is None else _opened(root, os.getpid())


def put_flushed(paths: Iterable[Path]) -> None:
    """Put what was flushed, where it lies in a working copy."""
    files: dict[WorkingCopy, list[Path]] = {}
    for path in paths:
        if (copy := copy_of(path)) is None:
            continue
        if path.is_dir():
            copy.put_folder(path)
        else:
            files.setdefault(copy, []).append(path)
    for copy, some in files.items():
        copy.put_files(some)


def put_moved(source: Path, target: Path) -> None:
    """Put a folder that is about to be moved into place in a working copy."""
    if source.is_dir() and (copy := copy_of(target)) is not None:
        copy.put_tree(source, target)


def put_tree(folder: Path) -> None:
    """Put a folder in a working copy, with all that it holds, as far as it is not at the store."""
    put_moved(folder, folder)


def delete_stored(path: Path) -> None:
    """Delete a file or folder at the store, where it lies in a working copy."""
    if (copy := copy_of(path)) is not None:
        copy.delete(path)


def fetched(path: Path) -> Path:
    """`path`, fetched where it lies in a working copy and is not there yet."""
    if (copy := copy_of(path)) is not None and (copy.share is not None or not path.exists()):
        copy.fetched(path)
    return path


def put_shared(path: Path) -> None:
    """Put a file that is not flushed and that processes with copies of their own wait for."""
    if (copy := copy_of(path)) is not None and copy.share is not None:
        copy.put_files([path])


def brought_up(path: Path) -> Path:
    """`path`, a file or a folder, as it is at the store by now, where another process has just put it, too."""
    if (copy := copy_of(path)) is not None and copy.share is not None and (key := copy.key(path)) is not None:
        if copy.share.owns(f"{key}/"):
            copy.pull([f"{key}/"], whole=False)
        else:
            copy.follow([key if path.suffix else f"{key}/"])
    return path


@lru_cache(maxsize=4096)
def _copy_around(folder: Path) -> Path | None:
    folder = Path(os.path.abspath(folder))
    return next((each for each in (folder, *folder.parents) if (each / MARKER).exists()), None)


@lru_cache(maxsize=16)
def _opened(root: Path, process: int) -> WorkingCopy:
    marked = json.loads((root / MARKER).read_text())
    share = marked.get("share")
    return WorkingCopy(root, marked["url"], marked["epoch"], None if share is None else _share(*share))


def _share(own: list[str], others: list[str], follows: list[str], successor: str | None) -> Share:
    return Share(tuple(own), tuple(others), tuple(follows), successor)


def _files_of(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_file()]
    return []


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        top = Path(folder) == root
        folders[:] = [name for name in folders if not name.startswith(".") and not (top and name in _STAYS)]
        yield from (Path(folder) / name for name in names)


def _is_data(key: str) -> bool:
    """True for a data file of a table."""
    return key.startswith(_TABLES) and key.endswith(".parquet") and "_delta_log/" not in key


def _is_of_version(key: str) -> bool:
    """True for a file of a folder with a manifest."""
    return "/" in key and _VERSION.fullmatch(key.split("/")[-2]) is not None


def _state_of(path: Path) -> FileState | None:
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=1)
def _putting(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, "put")


def _of_epoch(epoch: int) -> str:
    return f"{COORDINATORS}{epoch:08d}.json"


def _of_writer(worker: str, epoch: int, number: int) -> str:
    return f"{WRITERS}{worker}/{epoch:08d}-{number:08d}.json"


def _who(*, ended: bool, runs: bool = True) -> bytes:
    """This process, such that another one can tell whether it lives; no two answers are the same."""
    process = psutil.Process()
    who: dict[str, Any] = {"host": platform.node(), "machine": _machine(), "pid": process.pid}
    who |= {"since": process.create_time(), "ended": ended, "runs": runs, "token": uuid4().hex}
    return json.dumps(who).encode()


def _is_gone(who: Mapping[str, Any]) -> bool:
    """True if a process is known to have ended: it was one of this machine."""
    if who["machine"] != _machine():
        return False
    try:
        process = psutil.Process(who["pid"])
        return process.create_time() != who["since"] or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _machine() -> str:
    """Name of the machine, its boot and its container: there a process has its number once."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


class RepeatedWork:
    """A thread that calls `work` now and every `every_s`, until the end of the context. Where the store does not
    answer, the log says so once, and once more when it answers again."""

    def __init__(self, name: str, every_s: float, work: Callable[[], object]) -> None:
        self._name, self._every_s, self._work = name, every_s, work
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def __enter__(self) -> RepeatedWork:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _repeat(self) -> None:
        failing = False
        while True:
            try:
                self._work()
            except Exception as error:  # a heartbeat that ended would have a coordinator that lives taken over
                if not failing:
                    of_store = isinstance(error, StreamingError | OSError)  # another's traceback says where it is from
                    log.warning("%s: the store does not follow: %s", self._name, error, exc_info=not of_store)
                failing = True
            else:
                if failing:
                    log.warning("%s: the store follows again", self._name)
                failing = False
            if self._ending.wait(self._every_s):
                return


@contextmanager
def mirrored(copy: WorkingCopy, *, mirror_s: float = MIRROR_S, asked_s: float = ASKED_S) -> Iterator[None]:
    """Context in which the store is kept up to date: `mirror` every `mirror_s` and at its end, the first time after
    `asked_s`, when there is a status; and what other machines ask for is looked for every `asked_s`."""
    next_mirror = time.monotonic() + asked_s

    def look() -> None:
        nonlocal next_mirror
        copy.look_for_requests()
        if time.monotonic() >= next_mirror:
            copy.mirror()
            copy.follow()
            next_mirror = time.monotonic() + mirror_s

    try:
        with RepeatedWork("mirror", asked_s, look):
            yield
    finally:
        copy.mirror()
