"""The result of one check: a status, a sentence, and a remedy."""

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
    """What is to be checked: the folder that runs will be written to; `deep` also starts a broker."""

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
