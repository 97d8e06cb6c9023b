"""This process and its machine: threads, memory that is kept, and instructions of the processor."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of the GNU C library's `mallopt`."""
LARGEST_KEPT = 2**30
"""Bytes of the largest buffer that is kept; larger tensors still go back to the system at once."""

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of processors with products of matrices in bf16: two of x86, one of Arm."""


def set_threads(threads: int) -> None:
    """Compute with exactly `threads` threads, inside operators and between them. May be called again.

    OpenMP and FBGEMM kernels busy-wait: two threads on a core that another process is using cost a factor of 100 and
    more. The number between operators can be set only before the first parallel work of the process; where that is
    past, it stays as it is (it is unused by eager models). Children inherit the choice through the environment.

    >>> set_threads(1)
    >>> torch.get_num_threads()
    1
    """
    os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != threads:
        try:
            torch.set_num_interop_threads(threads)
        except RuntimeError:
            return


def keep_memory() -> None:
    """Stop glibc from returning large freed buffers to the OS: the process stays at its peak size.

    A step of a wide teacher frees hundreds of MB, and the next one would get other pages, which the kernel has to find
    and clear: a tenth of the step. A C library that knows no `mallopt` decides by itself.

    >>> keep_memory()
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def multiplies_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """True if the processor multiplies matrices in bf16, and where its flags cannot be read. Without the instructions
    torch emulates them: a teacher's step was 18 × slower so than in fp32.

    >>> multiplies_bf16(Path("/nowhere"))
    True
    """
    flags = cpu_flags(cpuinfo)
    return not flags or bool(flags & BF16)


def cpu_flags(cpuinfo: Path = CPUINFO) -> set[str]:
    """The flags of the first processor: the line `flags` of x86, `Features` of Arm; empty if there is none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    line = next((line for line in lines if line.split(":")[0].strip() in ("flags", "Features")), "")
    return set(line.partition(":")[2].split())
