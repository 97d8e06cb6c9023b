"""Whether what a config wants compiled can be."""

from __future__ import annotations

from collections.abc import Iterator

from exfm.machine_code import has_compiler
from pipelines.core.config.settings import Config
from pipelines.data.profile.finding import Finding, stop


def judge_compiler(config: Config) -> Iterator[Finding]:
    """Of this machine; nothing is said of a cluster."""
    if config.teacher.model.compile and config.resources.address is None and not has_compiler():
        words = "it needs a C++ compiler, and there is none"
        yield stop("teacher.model.compile", words, "install g++, or leave it out")
