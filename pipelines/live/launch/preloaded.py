"""Imports and environment with which workers' processes are forked.

A command imports half of it by itself, so it makes the server a fork of its own once it has: torch and much else is
imported once, and by when the first worker is to start, a second core has imported the rest. Importing this module
imports next to nothing: what the environment says of threads is read as torch is imported.
"""

from __future__ import annotations

import os
import sys

from pipelines.live.launch.fork_server import ForkServer

MODULES = (
    "pipelines.live.workers.ingest",
    "pipelines.live.workers.augmentation.worker",
    "pipelines.live.workers.teacher.worker",
    "pipelines.live.workers.student.worker",
    "pandas",  # hashes texts, and is imported when the first is hashed
)
RAYS = ("ray._private.workers.default_worker",)
"""Last, since Ray reads the environment as it is imported: which job a worker is of, and of which raylet."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS", "RAYON_NUM_THREADS")


def worker_environment(threads: int) -> dict[str, str]:
    """Environment variables added for a worker.

    >>> worker_environment(2)["OMP_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(THREADS, str(threads)) | {"OMP_WAIT_POLICY": "passive", "RAY_DEDUP_LOGS": "0"}


PLAIN = "EXFM_PLAIN_START"
"""An environment variable: where it is set, Ray starts a run's workers as it starts any, in processes that import all
that they need. Two short cuts are left out then: the fork server (a worker of the demo takes 1 s of a core instead of
5), and a Ray without dashboard, autoscaler and readers of logs (3 s of a core, 280 MB)."""


def starts_plainly() -> bool:
    return bool(os.environ.get(PLAIN))


def worker_forks(threads: int = 1, *, of_owner: bool = False) -> ForkServer:
    """A fork server for the processes of a run's workers. `of_owner`: it is a fork of this process, which was
    prepared for it."""
    return ForkServer(MODULES, worker_environment(threads), RAYS, of_owner=of_owner)


def prepare_to_fork(threads: int = 1) -> bool:
    """Prepare this process's environment for a server forked from it later; False if it is too late."""
    if "torch" in sys.modules or starts_plainly():
        return False
    os.environ.update(worker_environment(threads))
    return True


def fitting(given: ForkServer | None, threads: int, address: str | None) -> ForkServer | None:
    """`given`, where it has that number of threads, else a new one; None where workers start plainly, and for a cluster
    at `address`, whose other nodes have no server to ask. One that does not fit is closed."""
    forks = address is None and not starts_plainly()
    if given is not None and (not forks or given.environment != worker_environment(threads)):
        given.close()
        given = None
    return worker_forks(threads) if given is None and forks else given
