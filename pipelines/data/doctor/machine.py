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

from pipelines.data.doctor.scope import Check, Scope, limited, works
from pipelines.data.findings import Finding, Rules

RULES = Rules("""
stop  doctor.loopback-down  loopback
    no port of 127.0.0.1 could be bound and reached: {error}
    -> bring the loopback interface up (ip link set lo up), and let the firewall pass 127.0.0.1
stop  doctor.disk-read-only  disk
    {place} cannot be written: {error}
    -> name another place with --run-dir
ok|warn|stop  doctor.disk-free  disk
    {free:.1f} GB free at {place} (the demo writes about 1 GB; 10 are comfortable)
    -> free some space, or name a place on another disk with --run-dir
ok|warn|stop  doctor.memory-free  memory
    {have:.1f} GB available; the demo with Ray takes about 5 GB
    -> close other programs, or run with --local: one process instead of one per worker
warn  doctor.shared-memory-absent  shared_memory
    there is no {place}; Ray keeps objects on disk
    -> mount a tmpfs there
ok|warn  doctor.shared-memory-free  shared_memory
    {size:.1f} GB free in {place} for Ray's object store
    -> docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm; or run with --local
ok|warn|stop  doctor.open-files  open_files
    {soft} open files allowed; broker and Ray need 4096 or more
    -> ulimit -n {most}
warn  doctor.compiler-absent  compiler
    no C++ compiler: `teacher.model.compile` and `exfm serve --compile` are refused, all else runs
    -> install g++ if you want them
warn  doctor.gpu-broken  gpu
    nvidia-smi fails: {error}
    -> repair the driver, or make setup VARIANT=cpu
warn  doctor.clock-off  clock
    the clock says {now} UTC, {seconds:.0f} s apart from the disk's stamps
    -> set the clock (timedatectl set-ntp true)
""")

GB = 1e9
SHARED_MEMORY = Path("/dev/shm")
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
COMPILERS = ("c++", "g++", "clang++")


def loopback(scope: Scope) -> Finding:
    """A free port of 127.0.0.1 can be bound and reached: broker, Ray and gloo use it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        return RULES("doctor.loopback-down", error=error)
    return works("loopback", f"127.0.0.1 answers (tried port {port})")


def _existing(path: Path) -> Path:
    path = path.absolute()
    return path if path.exists() else _existing(path.parent)


def disk(scope: Scope) -> Finding:
    """The run directory can be written, and its disk has room for lake, checkpoints and topics."""
    place = _existing(scope.run_dir)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"exfm")
    except OSError as error:
        return RULES("doctor.disk-read-only", place=place, error=error.strerror)
    free = shutil.disk_usage(place).free / GB
    return RULES("doctor.disk-free", limited(free, 2, 10), free=free, place=place)


def available_memory() -> int:
    """Bytes that processes may still take: the system's figure, or the container's limit where that is lower."""
    return min(psutil.virtual_memory().available, *_limits(), sys.maxsize)


def total_memory() -> int:
    """Bytes of this machine, or of the container where that has fewer."""
    return min(psutil.virtual_memory().total, *_limits(), sys.maxsize)


def _limits() -> list[int]:
    return [int(text) for path in CGROUP_LIMITS if path.is_file() and (text := path.read_text().strip()).isdigit()]


def memory(scope: Scope) -> Finding:
    """Room for the broker (0.5 GB), Ray (1 GB) and half a gigabyte or more per worker."""
    have = available_memory() / GB
    return RULES("doctor.memory-free", limited(have, 2.5, 6), have=have)


def shared_memory(scope: Scope) -> Finding:
    """/dev/shm holds Ray's object store."""
    if not SHARED_MEMORY.is_dir():
        return RULES("doctor.shared-memory-absent", place=SHARED_MEMORY)
    size = shutil.disk_usage(SHARED_MEMORY).free / GB
    return RULES("doctor.shared-memory-free", limited(size, 0, 0.5), size=size, place=SHARED_MEMORY)


def open_files(scope: Scope) -> Finding:
    """The limit of open files: broker and Ray need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return works("open_files", "open files are not limited")
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    return RULES("doctor.open-files", limited(soft, 512, 4096), soft=soft, most=most)


def compiler(scope: Scope) -> Finding:
    """A C++ compiler, for `teacher.model.compile` and `exfm serve --compile` only."""
    path = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if path is None:
        return RULES("doctor.compiler-absent")
    return works("compiler", f"{Path(path).name} for `teacher.model.compile` and `exfm serve --compile`")


def gpu(scope: Scope) -> Finding:
    """The GPUs of this machine. It needs none."""
    if shutil.which("nvidia-smi") is None:
        return works("gpu", "no NVIDIA GPU; everything runs on the CPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        return RULES("doctor.gpu-broken", error=lines[0])
    return works("gpu", "; ".join(done.stdout.strip().splitlines()))


def clock(scope: Scope) -> Finding:
    """The wall clock against the one that stamps files: event times and retention depend on it."""
    with tempfile.NamedTemporaryFile(dir=_existing(scope.run_dir)) as file:
        file.write(b"exfm")
        file.flush()
        apart = abs(Path(file.name).stat().st_mtime - time.time())
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    if apart > 5 or time.gmtime().tm_year < 2025:
        return RULES("doctor.clock-off", now=now, seconds=apart)
    return works("clock", f"{now} UTC, files are stamped alike")


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
