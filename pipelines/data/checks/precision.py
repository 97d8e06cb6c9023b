"""Whether this machine's processor computes what a config asks for in the precision that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipelines.core.config.settings import Config
from pipelines.data.profile.finding import Finding, warn

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of processors with products of matrices in bf16: two of x86, one of Arm."""


def judge_precision(config: Config, cpuinfo: Path = CPUINFO) -> Iterator[Finding]:
    """Of this machine; nothing is said of a cluster, nor of a processor whose flags are not known."""
    if config.teacher.model.precision != "bf16" or config.resources.address is not None:
        return
    flags = _flags(cpuinfo)
    if flags and not flags & BF16:
        seen = (
            "bf16 is asked for, and this processor has no instructions for it (avx512_bf16 or amx_bf16): it is "
            "emulated, and a teacher's step was 18 × slower so than in fp32"
        )
        yield warn("teacher.model.precision", seen, "leave it out (fp32), unless the teacher will run elsewhere")


def _flags(cpuinfo: Path) -> set[str]:
    """Of the first processor: the line `flags` of x86, `Features` of Arm."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    line = next((line for line in lines if line.split(":")[0].strip() in ("flags", "Features")), "")
    return set(line.partition(":")[2].split())
