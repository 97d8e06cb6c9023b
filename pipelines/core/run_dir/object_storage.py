"""Runs on object storage: their working copies on this machine, opened for a command, a coordinator or a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, StreamingError
from streaming.store.lock import file_lock
from streaming.store.objects import is_url, normalised, store_at
from streaming.store.working_copy import RepeatedWork, Share, WorkingCopy, copy_of, mirrored, open_copy, open_share

STATUS = ("status.json", "config.yaml")
FOLLOWED = ("registry/", "snapshots/students/", "students/", "config.yaml")
"""What a server reads of a run."""
ANSWERS = ("students/", "status.json", "summary.json", "registry/", "config.yaml")
"""What a command that waits for a run reads again."""
WORKERS_PUT = (
    "checkpoints/", "snapshots/", "predictions/", "truth/", "quarantine/", "registry/", "teachers/", "lake/", "logs/",
    "kept_columns.json",
)  # fmt: skip
"""What workers put from copies of their own, and the coordinator does not, but for its log."""
READ_AT_END = (
    "predictions/", "truth/", "registry/", "snapshots/students/", "snapshots/twins/", "lake/", "logs/", "quarantine/",
)  # fmt: skip
"""What a coordinator reads of that, for the summary and for people."""
OF_LEADER = Share(
    own=("lake/readers/",),
    others=("",),
    follows=(
        "config.yaml", "follows.json", "kept_columns.json", "status.json", "summary.json", "lake/",
        "teachers/versions.jsonl", "teachers/takeovers.json", "truth/",
    ),
)  # fmt: skip
"""What a run that follows another's lake has of that run: it reads, and puts where its own readers are."""
FOLLOW_S, FOLLOW_LAKE_S = 5.0, 2.0
COMMAND = ".command"
"""Lock of a working copy in which a command changes the run."""
COMMAND_WAIT_S = 5.0
LOOKED_AT_S = 0.2
"""Commands hold the lock of a run for a moment, to see whether anybody has it."""
PULL_WAIT_S = 600.0

_looked_at: dict[Path, float] = {}


def working_copy(run: str | os.PathLike[str], prefixes: Sequence[str] = ("",)) -> Path:
    """Folder of a run: itself, or the working copy of an address, brought up to what is at the store below these
    prefixes; not where its coordinator works in it, whose copy is the newer one.

    The working copy is a cache: it may be deleted whenever nothing runs in it. Raises BadInput for an address that is
    none, or that the store refuses, StreamingError where it cannot be reached.
    """
    if not is_url(run):
        return Path(run)
    url = normalised(run)
    root = cache_folder("runs", url)
    root.mkdir(parents=True, exist_ok=True)
    with _pulling(root):
        if _is_idle(root):
            open_copy(root, url).pull(prefixes, whole="" in prefixes)
    return root


def leader_copy(address: str) -> Path:
    """Folder of a run that leads, for those on this machine that follow its lake: a copy of what they read of it,
    brought up to the store. Raises BadInput for an address that is none, or that the store refuses, StreamingError
    where it cannot be reached."""
    copy = _opened_of_leader(address)
    copy.follow()
    return copy.root


def retire_followers(address: str, readers: Path) -> None:
    """Delete what a run has in the registry of readers of a lake at a store; `readers`: its folder there, as in
    `leader_copy`."""
    copy = _opened_of_leader(address)
    copy.delete(copy.root / readers)


def _opened_of_leader(address: str) -> WorkingCopy:
    url = normalised(address)
    root = cache_folder("followed", url)
    root.mkdir(parents=True, exist_ok=True)
    return open_share(root, url, None, OF_LEADER)


@contextmanager
def following_leader(leader: RunDir) -> Iterator[None]:
    """Context in which the copy of a run that leads follows the store. Nothing for one in a folder."""
    copy = copy_of(leader.root)
    if copy is None or copy.share != OF_LEADER:
        yield
        return

    def look() -> None:
        copy.follow()
        copy.look_for_coordinator()
        copy.delete_unread()

    copy.look_for_coordinator()  # the coordinator's loop waits for no store
    try:
        with RepeatedWork(copy.url, FOLLOW_LAKE_S, look):
            yield
    finally:
        copy.forget_coordinator()


def shown(run_dir: RunDir) -> str:
    """Name of the place of a run, for people: its folder, or its address."""
    return str(run_dir.root) if (copy := copy_of(run_dir.root)) is None else copy.url


@contextmanager
def _pulling(root: Path) -> Iterator[None]:
    with file_lock(root / ".pull", wait_s=PULL_WAIT_S) as mine:
        if not mine:
            raise StreamingError(f"another command has been fetching files to {root} for {PULL_WAIT_S:g} s; try again")
        yield


def _is_idle(root: Path) -> bool:
    """True where neither a coordinator works in the copy nor a command that changes the run."""
    with file_lock(root / COMMAND) as free:
        return free and _is_stopped(root)


def _is_stopped(root: Path) -> bool:
    """True where no coordinator works in the copy."""
    with file_lock(RunDir(root).lock, wait_s=LOOKED_AT_S) as stopped:
        return stopped


def cache_folder(kind: str, url: str) -> Path:
    """Folder of copies of the run at `url`, in the user's cache. `kind`: runs, followed, or workers/MACHINE."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "exfm" / kind / url.replace("://", "/").replace("//", "/")


@contextmanager
def coordinating(run_dir: RunDir, say: Callable[[str], None], *, shared: bool = False) -> Iterator[None]:
    """Context of the one coordinator of a run on object storage: the working copy is brought up to the store when the
    run is its own, and the store follows it from then on. Nothing for a run in a folder. `shared`: workers have copies
    of their own. Raises BadInput while another coordinator lives."""
    if (copy := copy_of(run_dir.root)) is None:
        yield
        return
    with ExitStack() as stack:
        with _pulling(run_dir.root):
            share = Share(("logs/coordinator",), WORKERS_PUT, READ_AT_END) if shared else None
            epoch = stack.enter_context(copy.coordinated(share))
            say(f"{copy.url}: coordinator {epoch}, working in {run_dir.root}")
            copy.pull()
        stack.enter_context(mirrored(copy))
        yield


@contextmanager
def taking_over(run: str) -> Iterator[Path]:
    """Context of a command that changes the run at this address, in the folder that it is given: the coordinator's, if
    that works on this machine, else one whose coordinator it is meanwhile. Raises BadInput where another one works on
    the run, or workers do on several machines."""
    url = normalised(run)
    if "config.yaml" not in (found.key for found in store_at(url).list("config.yaml")):
        raise BadInput(f"{url} holds no run (no config.yaml): give the address at which the run was started")
    root = working_copy(url)
    copy = copy_of(root)
    assert copy is not None
    with ExitStack() as stack:
        # While it is locked, no command of this machine fetches over what this one writes.
        if not stack.enter_context(file_lock(root / COMMAND, wait_s=COMMAND_WAIT_S)):
            raise BadInput(f"{copy.url}: another command of this machine changes the run; try again")
        if not _is_stopped(root):
            stack.close()  # commands change a run that lives side by side
            if copy.share is not None:
                raise BadInput(
                    f"{copy.url}: its workers are on several machines and would not see what this changes; stop the "
                    f"run first (exfm stop --run-dir {copy.url})"
                )
            yield root
            return
        with _pulling(root):
            stack.enter_context(copy.coordinated(runs=False))
            copy.pull()
        try:
            yield root
        finally:
            copy.put_all()


def is_elsewhere(root: Path | None) -> bool:
    """True for the working copy of a run whose coordinator does not work in it."""
    copy = None if root is None else copy_of(root)
    return copy is not None and _is_stopped(copy.root)


def look_again(root: Path, *, every_s: float = 2.0) -> None:
    """Fetch what the run has answered, and its status, where it runs on another machine; at most every `every_s`."""
    if (copy := copy_of(root)) is not None and time.monotonic() - _looked_at.get(root, -every_s) >= every_s:
        working_copy(copy.url, ANSWERS)
        _looked_at[root] = time.monotonic()


@contextmanager
def followed(root: Path | None) -> Iterator[None]:
    """Context in which a working copy follows what is published at the store, every `FOLLOW_S`. Nothing for a run in a
    folder, and where its coordinator works."""
    copy = None if root is None or not is_elsewhere(root) else copy_of(root)
    if copy is None:
        yield
        return
    with RepeatedWork(copy.url, FOLLOW_S, lambda: working_copy(copy.url, FOLLOWED)):  # what is served stays meanwhile
        yield
