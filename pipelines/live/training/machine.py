"""Software and hardware that a model's bits depend on."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

import exfm

WORDS = {
    "exfm": "the version of ExFM",
    "code": "the model code",
    "torch": "the version of torch",
    "cpu": "the CPU",
    "vectors": "the CPU's vector instructions",
    "threads": "the number of threads",
}
"""What each entry of `software` is, for people."""


def software() -> dict[str, str]:
    """The versions and the machine of this process. Where all are equal, the same rows give the same bits.

    >>> sorted(software()) == sorted(WORDS)
    True
    """
    return _lasting() | {"threads": str(torch.get_num_threads())}


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """List differences, in words.

    >>> differing({"torch": "2.12", "code": "a"}, {"torch": "2.13", "code": "a"})
    ['the version of torch (2.12 then, 2.13 now)']
    """
    return [
        f"{words} ({then[name]} then, {now[name]} now)"
        for name, words in WORDS.items()
        if name in then and name in now and then[name] != now[name]
    ]


@cache
def code() -> str:
    """A digest of the model code."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(exfm.__path__[0]).rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _lasting() -> dict[str, str]:
    return {
        "exfm": exfm.__version__,
        "code": code(),
        "torch": torch.__version__,
        "cpu": _cpu(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
