"""Finding: the teacher computes in a precision that this machine's processor has no instructions for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exfm.processor import CPUINFO, multiplies_bf16
from pipelines.core.config.settings import Config
from pipelines.data.profile.finding import Finding, warn


def judge_precision(config: Config, cpuinfo: Path = CPUINFO) -> Iterator[Finding]:
    """Of this machine; nothing is said of a cluster, nor of a processor whose flags are not known."""
    if config.teacher.model.precision != "bf16" or config.resources.address is not None:
        return
    if not multiplies_bf16(cpuinfo):
        seen = (
            "bf16 is asked for, and this processor has no instructions for it (avx512_bf16 or amx_bf16): it is "
            "emulated, and a teacher's step was 18 × slower so than in fp32"
        )
        yield warn("teacher.model.precision", seen, "leave it out (fp32), unless the teacher will run elsewhere")
