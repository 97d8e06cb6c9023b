"""Limits on processes and threads of a user or a container: the number left, and an explanation when none is."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SAID = ("Resource temporarily unavailable", "can't start new thread", "unable to create native thread")
"""What the C library, Python and Java say of it."""
POOLS = ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max")
REMEDY = (
    "Raise that limit (of a container: docker's --pids-limit, podPidsLimit of Kubernetes), end what is not needed, or "
    "have students share processes (resources.students_per_host)"
)


class Limit(NamedTuple):
    whose: str
    used: int
    most: int

    def __str__(self) -> str:
        return f"{self.whose} has {self.used:,} of {self.most:,}"


def limits() -> Iterator[Limit]:
    """Limits that apply to this process; only the container's for root."""
    most, user = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid()
    if most != resource.RLIM_INFINITY and user != 0:
        yield Limit(f"user {user} (ulimit -u)", _tasks_of(user), most)
    for pool in map(Path, POOLS):
        try:
            allowed, used = pool.read_text().strip(), pool.with_name("pids.current").read_text()
        except OSError:
            continue
        if allowed != "max":
            yield Limit(f"the container ({pool})", int(used), int(allowed))


def too_few_left(needed: int) -> str | None:
    """Remedy if this many processes and threads cannot be started; None if they can, as far as known."""
    short = [limit for limit in limits() if limit.most - limit.used < needed]
    return f"{'; '.join(map(str, short))}. {REMEDY}" if short else None


def met_limit(error: BaseException | str) -> str | None:
    """Remedy if an error, or a log, shows that a process or a thread could not be started; None for other errors.

    >>> met_limit(BlockingIOError(11, "Resource temporarily unavailable")).partition(":")[0]
    'no more processes or threads can be started here'
    >>> met_limit(ValueError("wrong")) is None
    True
    """
    if getattr(error, "errno", None) != errno.EAGAIN and not any(text in str(error) for text in SAID):
        return None
    words = "; ".join(map(str, limits())) or "the system has no more to give (/proc/sys/kernel/threads-max)"
    return f"no more processes or threads can be started here: {words}. {REMEDY}"


def _tasks_of(user: int) -> int:
    """The user's processes and threads on this machine; those that others hide from it are not counted."""
    tasks = 0
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                tasks += len(os.listdir(f"/proc/{process}/task"))
        except OSError:  # it has ended
            continue
    return tasks
