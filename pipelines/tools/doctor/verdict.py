"""What one check says: a status, a sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]


class Verdict(NamedTuple):
    status: Status
    message: str
    remedy: str = ""


class Scope(NamedTuple):
    """What the caller wants examined: where runs are to be written, and whether to start a broker."""

    run_dir: Path
    deep: bool = False


Check = Callable[[Scope], Verdict]


def at_least(have: float, fail_below: float, warn_below: float, message: str, remedy: str) -> Verdict:
    """A quantity against its two limits.

    >>> at_least(3, 2, 10, "3 GB free", "free some").status
    'warn'
    """
    status: Status = "fail" if have < fail_below else "warn" if have < warn_below else "ok"
    return Verdict(status, message, "" if status == "ok" else remedy)
