"""Time accounting of a worker, by phase."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Measures a worker's time by phase. Nested phases count once, in the innermost.

    >>> ticks = iter(range(10))
    >>> watch = Stopwatch(lambda: next(ticks))
    >>> with watch("read"):
    ...     with watch("decode"):
    ...         pass
    >>> watch.phases_s
    {'decode': 1.0, 'read': 2.0}

    Waiting phases have names that begin with `wait`. One inside another phase counts what its thread does not compute:
    a client that waits for messages also unpacks them, which is work of the phase around it.

    A stopwatch serves one thread. A second thread of the same worker gets its own from `parallel`: its phases are shown
    with these, and the worker counts as busy for as long as the busier of the two.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, computed: Callable[[], float] = time.thread_time
    ) -> None:
        """`computed`: the seconds that the thread had of a core."""
        self._clock, self._computed = clock, computed
        self._seconds: dict[str, float] = defaultdict(float)
        self._cpu_seconds: dict[str, float] = defaultdict(float)
        self._inner: list[tuple[float, float]] = []
        """Of each phase that is on: how long phases inside it took, and what was computed in them."""
        self._parallel: list[Stopwatch] = []
        self._marks: dict[str, tuple[float, float, float]] | None = None

    def mark(self) -> dict[str, tuple[float, float, float]]:
        """Return, for each phase of this thread since the last call, when it first started and last ended, by the
        clock, and its seconds in between. The first call begins to keep this."""
        marks, self._marks = self._marks, {}
        return marks or {}

    def parallel(self) -> Stopwatch:
        """A stopwatch for a thread that works at the same time."""
        self._parallel.append(Stopwatch(self._clock, self._computed))
        return self._parallel[-1]

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start, computed_before = self._clock(), self._computed()
        self._inner.append((0.0, 0.0))
        try:
            yield
        finally:
            elapsed, computed = self._clock() - start, self._computed() - computed_before
            inner_s, inner_computed = self._inner.pop()
            self._cpu_seconds[phase] += computed - inner_computed
            if self._inner and is_waiting(phase):
                elapsed = max(inner_s, elapsed - (computed - inner_computed))
            self._seconds[phase] += elapsed - inner_s
            if self._marks is not None:
                first, _, before = self._marks.get(phase, (start, 0.0, 0.0))
                self._marks[phase] = first, self._clock(), before + elapsed - inner_s
            if self._inner:
                before_s, before = self._inner.pop()
                self._inner.append((before_s + elapsed, before + computed))

    @property
    def phases_s(self) -> dict[str, float]:
        phases = Counter(dict(self._seconds))  # copied first: its thread keeps adding to it
        for other in self._parallel:
            phases.update(other.phases_s)
        return dict(phases)

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by phase, of the threads that have a stopwatch; waiting phases have those of a client's work."""
        phases = Counter(dict(self._cpu_seconds))
        for other in self._parallel:
            phases.update(other.cpu_s)
        return dict(phases)

    @property
    def busy_s(self) -> float:
        """Time in all phases except waiting ones; with several threads, the busiest's."""
        own = sum(seconds for phase, seconds in dict(self._seconds).items() if not is_waiting(phase))
        return max([own, *(other.busy_s for other in self._parallel)])


def is_waiting(phase: str) -> bool:
    return phase.startswith("wait")
