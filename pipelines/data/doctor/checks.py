"""All checks of `exfm doctor`: every part that a run depends on, each with a finding.

A check is a function from `Scope` to a `Finding`, in `software.py`, `machine.py` or `broker.py`. One that raises is a
finding of its own, so that a broken part cannot hide the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipelines.data.doctor import broker, machine, software
from pipelines.data.doctor.scope import Check, Scope
from pipelines.data.findings import Finding, Rules

RULES = Rules("""
stop  doctor.raised  {name}
    the check raised {kind}: {error}
    -> make clean setup, then again
""")

CHECKS: Mapping[str, Check] = {**software.CHECKS, **machine.CHECKS, **broker.CHECKS}


def examine(
    run_dir: Path, deep: bool = False, checks: Mapping[str, Check] | None = None
) -> Iterator[tuple[Finding, float]]:
    """Findings in order, each as soon as it is known, with the seconds that it took.

    >>> [finding.id for finding, _ in examine(Path("."), checks={"broken": lambda scope: 1 / 0})]
    ['doctor.raised']
    """
    scope = Scope(run_dir, deep)
    for name, check in (CHECKS if checks is None else checks).items():
        started = time.perf_counter()
        try:
            finding = check(scope)
        except Exception as error:  # a part so broken that its check fails is a finding, too
            finding = RULES("doctor.raised", name=name, kind=type(error).__name__, error=error)
        yield finding, round(time.perf_counter() - started, 3)
