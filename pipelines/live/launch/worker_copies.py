"""Working copies of a run's workers on the machines of a cluster, where the run lies on object storage.

    coordinator's copy ──put──► the store ◄──put── copy of a worker's process, on whatever machine
                       ◄─follow─┘         └─follow──►

Each process of a worker begins with an empty folder of its own, fetches what it needs, puts what it writes, and follows
what it reads of others. So it makes no difference on which machine it is, nor what was there before. The ranks of one
model are on one machine, and share the folder of rank 0, which fetches, follows and puts for all.
"""

from __future__ import annotations

import platform
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

from pipelines.core.config.identity import AUGMENTATION, STUDENT
from pipelines.core.run_dir.object_storage import cache_folder
from streaming.errors import StreamingError
from streaming.store.lock import file_lock
from streaming.store.working_copy import MARKER, MIRROR_S, RepeatedWork, Share, WorkingCopy, open_share

SNAPSHOTS, COMMITS, LEARNED = "snapshots/teacher/", "lake/augmented_examples/_delta_log/", "teachers/versions.jsonl"
SETS, READERS = "lake/logit_sets/", "lake/readers/"
SOON = (SNAPSHOTS, COMMITS, LEARNED, READERS)
SOON_S, FOLLOW_S = 1.0, 10.0
"""How often a worker looks for what it may wait for, and for whatever else others put."""
STARTS_WITH = ("students/", LEARNED, "teachers/takeovers.json", "lake/")
"""What every worker may read when it starts, beside files at the top."""

BEGUN = ".begun"
"""Lies in a copy once it has what its ranks start with."""
FIRST_WAIT_S = 1800.0

_held = ExitStack()
"""The lock of this process's copy, for as long as it lives."""


def worker_folder(url: str) -> Path:
    """Folder of the copies that workers of a run have on this machine, in the user's cache. It has the machine's name:
    others may share the home folder, and their locks need not be seen here."""
    return cache_folder(f"workers/{platform.node()}", url)


class WorkerPlace(NamedTuple):
    """One process of a worker: rank `rank` of `worker`, begun in the coordinator's `epoch`. `successor`: the object by
    which it knows that a later one was begun; `shared_copy`: name of the copy of all ranks, "" for one of its own."""

    url: str
    epoch: int
    worker: str
    rank: int
    successor: str
    shared_copy: str = ""

    @property
    def led(self) -> bool:
        """True if rank 0 fetches and puts for this one."""
        return bool(self.shared_copy) and self.rank > 0

    @property
    def share(self) -> Share:
        """Keys that are its own, and that it follows.

        >>> WorkerPlace("s3://b/x", 1, "student-news", 0, "").share.owns("registry/news.jsonl")
        True
        """
        worker, student = self.worker, self.worker.removeprefix(STUDENT)
        logs = [f"logs/{worker}.", f"logs/{worker}-rank"] if self.shared_copy else [self._logs]
        own, follows = [f"checkpoints/{worker}/", *logs], [COMMITS, LEARNED]
        own += [f"quarantine/{worker}.json", f"{READERS}{quote(worker, safe='')}.json"]
        if worker == "ingest":
            own, follows = [*own, "truth/"], []
        elif worker == AUGMENTATION and self.rank:
            follows = [SNAPSHOTS]
        elif worker == AUGMENTATION:
            own += ["kept_columns.json", f"{READERS}{quote('examples topic')}.json"]
            follows = [SNAPSHOTS, LEARNED, READERS]
        elif worker == "teacher":
            own, follows = [*own, SNAPSHOTS, LEARNED], [COMMITS]
        elif student != worker:
            own += [f"predictions/{student}/", f"registry/{student}/", f"registry/{student}.jsonl"]
            own += [f"snapshots/{kind}/{student}/" for kind in ("students", "twins", "live")]
            follows = [*follows, SETS]
        else:
            further = worker.removeprefix("teacher-")
            own, follows = [*own, f"teachers/further/{further}/", f"{SETS}{further}/"], [COMMITS]
        return Share(tuple(own), ("",), tuple(follows), self.successor)

    @property
    def _logs(self) -> str:
        return f"logs/{self.worker}-rank{self.rank}." if self.rank else f"logs/{self.worker}."

    def opened(self) -> WorkingCopy:
        """An empty copy for this process, or for all ranks, but for its log, which goes on; folders that processes of
        before have left on this machine are deleted. Raises StreamingError where the store is away."""
        (folder := worker_folder(self.url)).mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            if (left / MARKER).exists():
                with file_lock(lock := _lock_of(left)) as nobody:
                    if nobody:
                        shutil.rmtree(left, ignore_errors=True)
                        lock.unlink(missing_ok=True)
        root = folder / f"{self.worker}-{self.shared_copy or f'{self.rank}-{uuid4().hex[:8]}'}"
        # Before it is there: nobody takes it for left.
        _held.enter_context(file_lock(_lock_of(root), shared=True, wait_s=None))
        root.mkdir(mode=0o700, exist_ok=bool(self.shared_copy))
        copy = open_share(root, self.url, self.epoch, self.share)
        copy.pull([self._logs], whole=False)
        return copy


def wait_for_first(root: Path, within_s: float = FIRST_WAIT_S) -> None:
    """Wait until rank 0 has fetched what its ranks need to this copy. Raises StreamingError where it does not."""
    until = time.monotonic() + within_s
    while not (root / BEGUN).exists():
        if time.monotonic() > until:
            raise StreamingError(
                f"rank 0 has fetched nothing to {root} within {within_s:g} s: where a run is on object storage the "
                "ranks of one model have to be on one machine, with one cache folder"
            )
        time.sleep(0.1)


def _lock_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.lock")


class Following:
    """The thread that keeps a worker's copy up to the store, and the store up to the copy; until the context ends."""

    def __init__(self, copy: WorkingCopy) -> None:
        self._copy = copy
        self._soon = [prefix for prefix in copy.share.follows if prefix in SOON] if copy.share else []
        self._follow_at = self._mirror_at = time.monotonic()
        self._running = ExitStack()

    def begin(self) -> None:
        """Fetch what the worker needs, and follow from then on. Raises StreamingError where the store is away."""
        share = self._copy.share
        assert share is not None
        needed = (*(own for own in share.own if not own.startswith("logs/")), *STARTS_WITH)
        self._copy.pull(only=lambda key: "/" not in key or key.startswith(needed), whole=False)
        self._copy.follow()
        (self._copy.root / BEGUN).touch()
        self._running.enter_context(RepeatedWork("follow", SOON_S, self._look))

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._follow_at:
            self._follow_at = now + FOLLOW_S
            self._copy.follow()
        elif self._soon:
            self._copy.follow(self._soon)
        if now >= self._mirror_at:
            self._mirror_at = now + MIRROR_S
            self._copy.mirror()
