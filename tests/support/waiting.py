"""Waiting for what another thread or process does. It is over as soon as that is done; how long it may take depends on
who has the cores, so patience is long, and ends only where a thing is broken. No test sleeps for another: a sleep
stands only where taking time is the work itself, and says so (`# work: …`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 120.0
"""For whatever takes moments on a machine at rest. A test may take 300 s (`timeout` in pyproject.toml)."""
LOOK_S = 0.001


def eventually(
    holds: Callable[[], Any],
    told: Callable[[], Any] = lambda: None,
    *,
    look_s: float = LOOK_S,
    within_s: float = PATIENCE_S,
) -> Any:
    """Return what `holds` returns once that is true. AssertionError, with what there is to tell, where it never is.

    >>> answers = iter([0, 0, 7])
    >>> eventually(lambda: next(answers))
    7
    """
    deadline = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < deadline, told()
        time.sleep(look_s)
    return value
