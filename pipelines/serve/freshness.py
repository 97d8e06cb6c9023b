"""Freshness: the delay from a student's optimizer step to the first answer that uses it.

    step ── the next increment ── file ── seen ── taken up ──► served ── the next request ──► answered

An increment has many steps; it is as late as its first, which waited longest. Times are by the clocks of the student's
and the server's machines: of two machines they are as right as these agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import Any

import numpy as np

from exfm.snapshots.increments.follower import ServedState

BUCKETS_S = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0)
KEPT = 1000
"""So many of the newest increments have the quantiles that people are shown, and wait for an answer."""


class Ages:
    """Delays in seconds, as a histogram and the latest one."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=KEPT)
        self._buckets, self._sum = [0] * (len(BUCKETS_S) + 1), 0.0

    def add(self, seconds: float) -> None:
        self._newest.append(seconds)
        self._buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def as_json(self) -> dict[str, Any]:
        newest = list(self._newest)
        if not newest:
            return {"count": 0}
        p50, p95 = np.quantile(newest, (0.5, 0.95)).round(3).tolist()
        return {"count": sum(self._buckets), "last_s": round(newest[-1], 3), "p50_s": p50, "p95_s": p95}

    def histogram(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative histogram of the seconds, as Prometheus counts them; and their sum."""
        return list(zip([*map(str, BUCKETS_S), "+Inf"], accumulate(self._buckets), strict=True)), self._sum


class Freshness:
    """Freshness of one model. One thread takes increments up, another answers.

    >>> freshness = Freshness()
    >>> value = ServedState(None, 7, "", "v00000640+7", {}, ({"stepped_s": [10.0, 10.9]},))
    >>> freshness.taken_up(value, 11.2)
    >>> freshness.answered(value, 11.5)
    >>> freshness.as_json()["answered"]["last_s"]
    1.5
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, float]] = deque(maxlen=KEPT)  # by number, when the first step was
        self.served, self.answers = Ages(), Ages()

    def taken_up(self, value: ServedState, now_s: float, *, first: bool = False) -> None:
        """Record a new value before it answers. A full version counts as its increments would, but for the `first`
        of a server."""
        whole = () if first or "stepped_s" not in value.about else (value.about,)
        for about in value.passed or whole:
            stepped = about["stepped_s"][0]
            self.served.add(max(0.0, now_s - stepped))
            self._waiting.append((value.number, stepped))

    def answered(self, value: ServedState, now_s: float) -> None:
        while self._waiting and self._waiting[0][0] <= value.number:
            self.answers.add(max(0.0, now_s - self._waiting.popleft()[1]))

    def as_json(self) -> dict[str, Any]:
        return {"served": self.served.as_json(), "answered": self.answers.as_json()}
