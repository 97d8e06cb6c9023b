"""What every worker is: a plain class with `open / step / checkpoint / close`, and what it says of itself.

A worker knows neither Ray nor its coordinator. Whoever runs it (an actor, a loop, a test) calls `advance`, which steps
it for a short while and returns its `Report`. A step is short, never blocks for long, and returns False when there was
nothing to do yet.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Orders:
    """What the coordinator knows and a worker cannot: where the stream ends, once that is known, and whether there will
    be no more snapshots, because the teacher has given up."""

    end_seq: int | None = None
    teacher_gone: bool = False


@dataclass(frozen=True)
class Rendezvous:
    """Which rank of its worker a process is, and where the ranks meet: rank 0 listens there."""

    rank: int = 0
    ranks: int = 1
    address: str = LOOPBACK
    port: int | None = None


@dataclass(frozen=True)
class RankReport:
    """One process of a worker that is held by several. `rows`: those that it read itself."""

    rank: int
    pid: int
    node: str
    rows: int
    rss_bytes: int
    peak_rss_bytes: int


@dataclass
class Report:
    """One worker's state of affairs, as it goes into status.json and to MLflow. None where it does not apply."""

    name: str
    kind: str
    pid: int = 0
    state: str = "running"
    rows: int = 0
    busy_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    done: bool = False
    lake_seq: int | None = None
    lag_rows: int | None = None
    lag_event_time_s: float | None = None
    ne: dict[str, float | None] | None = None
    teacher_version: int | None = None
    teacher_lag_rows: int | None = None
    logit_age_s: float | None = None
    note: str | None = None
    counts: dict[str, Any] | None = None
    progress: tuple[int, int] | None = None
    own_rows: int = 0
    """Of `rows`, those that this process read itself, where a worker is several."""
    ranks: list[RankReport] = field(default_factory=list)
    """Filled in by who holds them, where a worker is several; the bytes above are then sums."""
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.busy_s if self.busy_s else 0.0


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


class Worker(ABC):
    """Base of the workers. `rows` counts what this process did; committed counts live in checkpoints."""

    kind: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.watch = Stopwatch()
        self.rows = 0
        self.orders = Orders()
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self._process = psutil.Process()

    @abstractmethod
    def open(self) -> None:
        """Take up work where the last committed state left it."""

    @abstractmethod
    def step(self) -> bool:
        """Do a bounded piece of work; False when there was none to do."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """True once a bounded stream is worked off to its end and everything is committed."""

    def checkpoint(self) -> None:  # noqa: B027 (a worker whose every step commits has nothing to add)
        """Commit what is done so far."""

    def close(self) -> None:  # noqa: B027
        """Commit and let go of everything held."""

    def abandon(self) -> None:  # noqa: B027
        """Let go as a crash would: nothing is committed, and nothing of this worker runs on beside its successor."""

    def describe(self, report: Report) -> None:  # noqa: B027
        """Fill in what only this kind of worker knows."""

    def advance(self, budget_s: float, orders: Orders) -> Report:
        """Step for about `budget_s`, then report. Sleeps a little when idle, so that a poll is never a busy loop."""
        self.orders = orders
        end = time.monotonic() + budget_s
        while self._go_on(not self.done and time.monotonic() < end):
            if not self.step():
                time.sleep(min(0.02, budget_s))
        return self.report()

    def _go_on(self, mine: bool) -> bool:
        """Whether to step again. Where a worker is several processes, they leave a round together."""
        return mine

    def report(self) -> Report:
        report = Report(
            name=self.name,
            kind=self.kind,
            pid=os.getpid(),
            state="done" if self.done else "running",
            rows=self.rows,
            busy_s=self.watch.busy_s,
            phases_s=self.watch.phases_s,
            rss_bytes=self._process.memory_info().rss,
            peak_rss_bytes=_peak_rss_bytes(),
            done=self.done,
            metrics=self.metrics,
        )
        self.metrics = []
        self.describe(report)
        return report

    def log_metrics(self, step: int, values: dict[str, float | None]) -> None:
        """Queue metrics for tracking; undefined ones are left out."""
        self.metrics.append((step, {k: v for k, v in values.items() if v is not None}))


def seconds_since(event_time_ms: int | None) -> float | None:
    """How far a live stream's row lies behind the clock on the wall."""
    return None if event_time_ms is None else max(0.0, time.time() - event_time_ms / 1000)


def _peak_rss_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
