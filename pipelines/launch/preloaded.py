"""What the processes of workers are forked with. Importing this imports next to nothing, so that a command can have it
begin before it does anything else: on a second core all is imported by when the first worker is to start."""

from __future__ import annotations

from pipelines.launch.fork_server import ForkServer

MODULES = (
    "pipelines.workers.ingest",
    "pipelines.workers.augmentation.worker",
    "pipelines.workers.teacher.worker",
    "pipelines.workers.student.worker",
    "pandas",  # hashes texts, and is imported when the first is hashed
)
RAYS = ("ray._private.workers.default_worker",)
"""Last, since Ray reads the environment as it is imported: which job a worker is of, and of which raylet."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS", "RAYON_NUM_THREADS")


def worker_environment(threads: int) -> dict[str, str]:
    """What the environment of a worker has as well.

    >>> worker_environment(2)["OMP_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(THREADS, str(threads)) | {"OMP_WAIT_POLICY": "passive", "RAY_DEDUP_LOGS": "0"}


def worker_forks(threads: int = 1) -> ForkServer:
    """A server that the processes of a run's workers are forked from."""
    return ForkServer(MODULES, worker_environment(threads), RAYS)


def fitting(given: ForkServer | None, threads: int, address: str | None) -> ForkServer | None:
    """`given`, where it has that number of threads, else a new one; None for a cluster at `address`, whose other nodes
    have no server to ask. One that does not fit is closed."""
    if given is not None and (address is not None or given.environment != worker_environment(threads)):
        given.close()
        given = None
    return given if given is not None or address is not None else worker_forks(threads)
