"""Checks of the machine: loopback, disk, memory, shared memory, open files, compiler, GPU, clock."""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from pipelines.data.doctor.verdict import Check, Scope, Verdict, at_least

GB = 1e9
SHARED_MEMORY = Path("/dev/shm")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
COMPILERS = ("c++", "g++", "clang++")


def loopback(scope: Scope) -> Verdict:
    """A free port of 127.0.0.1 can be bound and reached: broker, Ray and gloo use it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        remedy = "bring the loopback interface up (ip link set lo up), and let the firewall pass 127.0.0.1"
        return Verdict("fail", f"no port of 127.0.0.1 could be bound and reached: {error}", remedy)
    return Verdict("ok", f"127.0.0.1 answers (tried port {port})")


def _existing(path: Path) -> Path:
    path = path.absolute()
    return path if path.exists() else _existing(path.parent)


def disk(scope: Scope) -> Verdict:
    """The run directory can be written, and its disk has room for lake, checkpoints and topics."""
    place = _existing(scope.run_dir)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"exfm")
    except OSError as error:
        return Verdict("fail", f"{place} cannot be written: {error.strerror}", "name another place with --run-dir")
    free = shutil.disk_usage(place).free / GB
    remedy = "free some space, or name a place on another disk with --run-dir"
    return at_least(
        free, 2, 10, f"{free:.1f} GB free at {place} (the demo writes about 1 GB; 10 are comfortable)", remedy
    )


def available_memory() -> int:
    """Bytes that processes may still take: the system's figure, or the container's limit where that is lower."""
    return min(psutil.virtual_memory().available, *_limits(), sys.maxsize)


def total_memory() -> int:
    """Bytes of this machine, or of the container where that has fewer."""
    return min(psutil.virtual_memory().total, *_limits(), sys.maxsize)


def _limits() -> list[int]:
    return [int(text) for path in CGROUP_LIMITS if path.is_file() and (text := path.read_text().strip()).isdigit()]


def memory(scope: Scope) -> Verdict:
    """Room for the broker (0.5 GB), Ray (1 GB) and half a gigabyte or more per worker."""
    have = available_memory() / GB
    remedy = "close other programs, or run with --local: one process instead of one per worker"
    return at_least(have, 2.5, 6, f"{have:.1f} GB available; the demo with Ray takes about 5 GB", remedy)


def shared_memory(scope: Scope) -> Verdict:
    """/dev/shm holds Ray's object store."""
    if not SHARED_MEMORY.is_dir():
        return Verdict("warn", f"there is no {SHARED_MEMORY}; Ray keeps objects on disk", "mount a tmpfs there")
    size = shutil.disk_usage(SHARED_MEMORY).free / GB
    remedy = "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm; or run with --local"
    return at_least(size, 0, 0.5, f"{size:.1f} GB free in {SHARED_MEMORY} for Ray's object store", remedy)


def open_files(scope: Scope) -> Verdict:
    """The limit of open files: broker and Ray need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Verdict("ok", "open files are not limited")
    remedy = f"ulimit -n {65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)}"
    return at_least(soft, 512, 4096, f"{soft} open files allowed; broker and Ray need 4096 or more", remedy)


def compiler(scope: Scope) -> Verdict:
    """A C++ compiler, for `teacher.model.compile` and `exfm serve --compile` only."""
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        said = "no C++ compiler: `teacher.model.compile` and `exfm serve --compile` are refused, all else runs"
        return Verdict("warn", said, "install g++ if you want them")
    return Verdict("ok", f"{Path(found).name} for `teacher.model.compile` and `exfm serve --compile`")


def gpu(scope: Scope) -> Verdict:
    """The GPUs of this machine. It needs none."""
    if shutil.which("nvidia-smi") is None:
        return Verdict("ok", "no NVIDIA GPU; everything runs on the CPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        return Verdict("warn", f"nvidia-smi fails: {said[0]}", "repair the driver, or make setup VARIANT=cpu")
    return Verdict("ok", "; ".join(done.stdout.strip().splitlines()))


def clock(scope: Scope) -> Verdict:
    """The wall clock against the one that stamps files: event times and retention depend on it."""
    with tempfile.NamedTemporaryFile(dir=_existing(scope.run_dir)) as file:
        file.write(b"exfm")
        file.flush()
        apart = abs(Path(file.name).stat().st_mtime - time.time())
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    if apart > 5 or time.gmtime().tm_year < 2025:
        said = f"the clock says {now} UTC, {apart:.0f} s apart from the disk's stamps"
        return Verdict("warn", said, "set the clock (timedatectl set-ntp true)")
    return Verdict("ok", f"{now} UTC, files are stamped alike")


CHECKS: Mapping[str, Check] = {
    "loopback": loopback,
    "disk": disk,
    "memory": memory,
    "shared_memory": shared_memory,
    "open_files": open_files,
    "compiler": compiler,
    "gpu": gpu,
    "clock": clock,
}
