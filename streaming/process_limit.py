"""The most processes and threads that a user or a container may have, in words where it was met."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

SAID = ("Resource temporarily unavailable", "can't start new thread", "unable to create native thread")
"""What the C library, Python and Java say of it."""
POOLS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")


def met_limit(error: BaseException | str) -> str | None:
    """What to do where this is an error, or the log, of a process or a thread that could not be started; None where it
    is of something else.

    >>> met_limit(BlockingIOError(11, "Resource temporarily unavailable")).partition(":")[0]
    'no more processes or threads can be started here'
    >>> met_limit(ValueError("wrong")) is None
    True
    """
    if getattr(error, "errno", None) != errno.EAGAIN and not any(said in str(error) for said in SAID):
        return None
    return (
        f"no more processes or threads can be started here: {'; '.join(_limits())}. Raise that limit (of a container: "
        "docker's --pids-limit, podPidsLimit of Kubernetes), end what is not needed, or have students share "
        "processes (resources.students_per_host)"
    )


def _limits() -> list[str]:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    found = [] if most == resource.RLIM_INFINITY else [f"user {os.getuid()} may have {most:,} (ulimit -u)"]
    for pool in map(Path, POOLS):
        try:
            allowed, used = pool.read_text().strip(), pool.with_name("pids.current").read_text().strip()
        except OSError:
            continue
        if allowed != "max":
            found.append(f"the container has {int(used):,} of {int(allowed):,} ({pool})")
    return found or ["the system has no more to give (/proc/sys/kernel/threads-max)"]
