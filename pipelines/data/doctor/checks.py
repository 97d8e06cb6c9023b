"""All checks of `exfm doctor`: every part that a run depends on, each with a verdict, a sentence and a remedy.

A check is a function from `Scope` to a `Verdict`, in `software.py`, `machine.py` or `broker.py`. One that raises is a
failed finding of its own, so that a broken part cannot hide the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipelines.data.doctor import broker, machine, software
from pipelines.data.doctor.verdict import Check, Scope, Status, Verdict

__all__ = ["CHECKS", "Finding", "Scope", "Verdict", "examine"]

CHECKS: Mapping[str, Check] = {**software.CHECKS, **machine.CHECKS, **broker.CHECKS}


class Finding(BaseModel):
    """One line of the report, as `--json` prints it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    status: Status
    message: str
    remedy: str
    seconds: float


def examine(run_dir: Path, deep: bool = False, checks: Mapping[str, Check] | None = None) -> Iterator[Finding]:
    """Findings in order, each as soon as it is known.

    >>> [finding.status for finding in examine(Path("."), checks={"broken": lambda scope: 1 / 0})]
    ['fail']
    """
    scope = Scope(run_dir, deep)
    for name, check in (CHECKS if checks is None else checks).items():
        started = time.perf_counter()
        try:
            verdict = check(scope)
        except Exception as error:  # a part so broken that its check fails is a finding, too
            verdict = Verdict(
                "fail", f"the check raised {type(error).__name__}: {error}", "make clean setup, then again"
            )
        yield Finding(name=name, seconds=round(time.perf_counter() - started, 3), **verdict._asdict())
