"""Instructions that this machine's processor has."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of processors with products of matrices in bf16: two of x86, one of Arm."""


def multiplies_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """True if the processor multiplies matrices in bf16, and where its flags cannot be read. Without the instructions
    torch emulates them: a teacher's step was 18 × slower so than in fp32.

    >>> multiplies_bf16(Path("/nowhere"))
    True
    """
    flags = _flags(cpuinfo)
    return not flags or bool(flags & BF16)


def _flags(cpuinfo: Path) -> set[str]:
    """The flags of the first processor: the line `flags` of x86, `Features` of Arm; empty if there is none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    line = next((line for line in lines if line.split(":")[0].strip() in ("flags", "Features")), "")
    return set(line.partition(":")[2].split())
