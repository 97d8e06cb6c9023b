"""Where a worker's time goes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Where a worker's time goes, by phase. Nested phases count once, in the innermost.

    >>> ticks = iter(range(10))
    >>> watch = Stopwatch(lambda: next(ticks))
    >>> with watch("read"):
    ...     with watch("decode"):
    ...         pass
    >>> watch.phases_s
    {'decode': 1.0, 'read': 2.0}

    For one thread. Another that works at the same time, for the same worker, has a watch of its own (`beside`): its
    phases are shown with these, and the worker was busy for as long as the busier of the two.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []
        self._beside: list[Stopwatch] = []

    def beside(self) -> Stopwatch:
        """The watch of a thread that works beside this one."""
        self._beside.append(Stopwatch(self._clock))
        return self._beside[-1]

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = self._clock()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = self._clock() - start
            self._seconds[phase] += elapsed - self._inner.pop()
            if self._inner:
                self._inner[-1] += elapsed

    @property
    def phases_s(self) -> dict[str, float]:
        phases = Counter(dict(self._seconds))  # a copy first: its thread goes on adding to it
        for other in self._beside:
            phases.update(other.phases_s)
        return dict(phases)

    @property
    def busy_s(self) -> float:
        """All phases but those of waiting, whose names begin with `wait`; of several threads, the busiest one's."""
        own = sum(seconds for phase, seconds in dict(self._seconds).items() if not phase.startswith("wait"))
        return max([own, *(other.busy_s for other in self._beside)])
