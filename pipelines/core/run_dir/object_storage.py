"""Runs on object storage: their working copies on this machine, opened for a command, a coordinator or a server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, StreamingError
from streaming.store.lock import file_lock
from streaming.store.objects import is_url, normalised
from streaming.store.working_copy import Mirror, copy_of, open_copy

STATUS = ("status.json", "config.yaml")
FOLLOWED = ("registry/", "snapshots/students/", "students/", "config.yaml")
"""What a server reads of a run."""
FOLLOW_S = 5.0
PULL_WAIT_S = 600.0


def working_copy(run: str | os.PathLike[str], prefixes: Sequence[str] = ("",)) -> Path:
    """Folder of a run: itself, or the working copy of an address, brought up to what is at the store below these
    prefixes; not where its coordinator works in it, whose copy is the newer one.

    The working copy is a cache: it may be deleted whenever nothing runs in it. Raises BadInput for an address that is
    none, or that the store refuses, StreamingError where it cannot be reached.
    """
    if not is_url(run):
        return Path(run)
    url = normalised(run)
    root = cache_folder() / url.replace("://", "/").replace("//", "/")
    root.mkdir(parents=True, exist_ok=True)
    with file_lock(RunDir(root).lock) as idle:
        if idle:
            with file_lock(root / ".pull", wait_s=PULL_WAIT_S):
                open_copy(root, url).pull(prefixes, whole="" in prefixes)
    return root


def cache_folder() -> Path:
    """Folder of the working copies, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exfm" / "runs"


def check_storable(config: Config, run_dir: RunDir) -> None:
    """Raise BadInput where a run on object storage would keep something on this machine that it needs."""
    if (copy := copy_of(run_dir.root)) is None:
        return
    uri = config.tracking.uri
    if config.tracking.enabled and (uri is None or uri.startswith(("sqlite:", "file:")) or "://" not in uri):
        raise BadInput(
            f"{copy.url}: tracking writes {uri or 'a SQLite file in the run directory'}, which object storage cannot "
            "hold; give the address of an MLflow server (--set tracking.uri=http://HOST:PORT), or leave tracking out "
            "(--set tracking.enabled=false)"
        )
    if config.kafka.bootstrap_servers is None:
        raise BadInput(
            f"{copy.url}: the embedded broker keeps its topics on this machine's disk, and the run would be lost with "
            "it; give the address of a Kafka (--set kafka.bootstrap_servers=HOST:PORT). To try it out: exfm broker "
            "start --run-dir FOLDER"
        )
    if config.resources.address is not None:
        raise BadInput(
            f"{copy.url}: workers on other machines than the coordinator's (resources.address) need a folder that all "
            "of them share, and cannot have working copies of their own yet; leave resources.address out"
        )


@contextmanager
def coordinating(run_dir: RunDir, say: Callable[[str], None]) -> Iterator[Mirror | None]:
    """Context of the one coordinator of a run on object storage: the working copy is brought up to the store when the
    run is its own, and the store follows it from then on. Nothing for a run in a folder. Raises BadInput while another
    coordinator lives."""
    if (copy := copy_of(run_dir.root)) is None:
        yield None
        return
    epoch = copy.take_over()
    say(f"{copy.url}: coordinator {epoch}, working in {run_dir.root}")
    copy.pull()
    with Mirror(copy) as mirror:
        yield mirror


@contextmanager
def followed(root: Path | None) -> Iterator[None]:
    """Context in which a working copy follows what is published at the store, every `FOLLOW_S`. Nothing for a run in a
    folder, and where its coordinator works."""
    copy = None if root is None else copy_of(root)
    if copy is None:
        yield
        return
    ending = threading.Event()

    def follow() -> None:
        while not ending.wait(FOLLOW_S):
            try:
                working_copy(copy.url, FOLLOWED)
            except (StreamingError, OSError):
                continue  # what is served stays; the next look may find the store again

    thread = threading.Thread(target=follow, name="follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
