"""The scope and the form of a check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipelines.data.findings import Finding, Severity


class Scope(NamedTuple):
    """The folder that runs will be written to; `deep` also starts a broker."""

    run_dir: Path
    deep: bool = False


Check = Callable[[Scope], Finding]


def works(name: str, seen: str) -> Finding:
    """A part that works.

    >>> works("clock", "files are stamped alike")[:3]
    ('doctor.clock', <Severity.OK: 'ok'>, 'clock')
    """
    return Finding(f"doctor.{name}", Severity.OK, name, seen)


def limited(have: float, stop_below: float, warn_below: float) -> Severity:
    """A quantity against its two limits.

    >>> str(limited(3, 2, 10))
    'warn'
    """
    return Severity.STOP if have < stop_below else Severity.WARN if have < warn_below else Severity.OK
