"""Detects that nothing arrived for N seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class Idleness:
    """A run is idle when its progress has stayed as it was for `after_s` seconds.

    >>> now = [0.0]
    >>> idle = Idleness(60, clock=lambda: now[0])
    >>> idle.seen(progress=100, sure=True)
    False
    >>> now[0] = 60.0
    >>> idle.seen(progress=100, sure=True), idle.seen(progress=101, sure=True)
    (True, False)
    """

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s, self._clock = after_s, clock
        self._progress: Hashable = None
        self._since_s = clock()

    def seen(self, progress: Hashable, *, sure: bool) -> bool:
        """Update with the current progress; returns True if the run is idle. `progress` changes with every row that
        comes, is committed or is learned; it is `sure` while every worker is at work and the broker answers."""
        now_s = self._clock()
        if progress != self._progress or not sure:
            self._progress, self._since_s = progress, now_s
        return now_s - self._since_s >= self._after_s
