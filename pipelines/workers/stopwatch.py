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

    A stopwatch serves one thread. A second thread of the same worker gets its own from `parallel`: its phases are shown
    with these, and the worker counts as busy for as long as the busier of the two.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []
        self._parallel: list[Stopwatch] = []

    def parallel(self) -> Stopwatch:
        """The stopwatch of a thread that works at the same time."""
        self._parallel.append(Stopwatch(self._clock))
        return self._parallel[-1]

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
        phases = Counter(dict(self._seconds))  # copied first: its thread keeps adding to it
        for other in self._parallel:
            phases.update(other.phases_s)
        return dict(phases)

    @property
    def busy_s(self) -> float:
        """The time in all phases except waiting ones, whose names begin with `wait`; with several threads, the
        busiest's."""
        own = sum(seconds for phase, seconds in dict(self._seconds).items() if not phase.startswith("wait"))
        return max([own, *(other.busy_s for other in self._parallel)])
