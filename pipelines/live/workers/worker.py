"""The base of all workers: a plain class with `open / step / checkpoint / close`.

A worker knows neither Ray nor its coordinator. Its runner (an actor, a loop, a test) calls `advance`, which steps it
for a short while and returns its `Report`. A step is short, never blocks for long, and returns False when there was
nothing to do yet.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from pipelines.core.run_dir.logs import LogPosition
from pipelines.live.workers.report import Report
from pipelines.live.workers.stopwatch import Stopwatch


@dataclass(frozen=True)
class Orders:
    """Orders of the coordinator: the last row of the stream, once known; whether the teacher has given up, so that
    no more snapshots will come; and the verticals of students that joined."""

    end_seq: int | None = None
    teacher_gone: bool = False
    verticals: tuple[str, ...] = ()


IDLE_S = 0.02
OTHER_THREADS = "other threads"


class Worker(ABC):
    """Base of the workers. `rows` counts what this process did; committed counts live in checkpoints."""

    kind: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.watch = Stopwatch()
        self.rows = 0
        self._cpu_s = 0.0
        self.orders = Orders()
        self.log_position = LogPosition()
        self.idle = False
        """Whether its last turn ended for want of something to do."""
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self._process = psutil.Process()

    def join(self, others: Collection[Worker]) -> None:  # noqa: B027
        """Share resources with these workers of the same process; call before `open`."""

    @abstractmethod
    def open(self) -> None:
        """Resume from the last committed state."""

    @abstractmethod
    def step(self) -> bool:
        """Do a bounded piece of work; False if there was nothing to do."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """True once a bounded stream is finished and everything is committed."""

    def checkpoint(self) -> None:  # noqa: B027 (a worker whose every step commits has nothing to add)
        """Commit the work done so far."""

    def close(self) -> None:  # noqa: B027
        """Commit, and release everything held."""

    def abandon(self) -> None:  # noqa: B027
        """Release everything like a crash: nothing is committed, and no thread of this worker outlives the call."""

    def describe(self, report: Report) -> None:  # noqa: B027
        """Fill in the fields specific to this kind of worker."""

    def advance(self, budget_s: float, orders: Orders, *, patient: bool = True) -> Report:
        """Step for about `budget_s` seconds, then report. Sleeps briefly when idle, so that polling is never a busy
        loop; unless `patient`, its turn ends there: others of this process may have something to do, and they sleep
        together."""
        self.orders, self.idle = orders, False
        end, computed = time.monotonic() + budget_s, time.process_time()
        while self._go_on(not self.done and time.monotonic() < end):
            if not self.step():
                if not patient:
                    self.idle = True
                    break
                time.sleep(min(IDLE_S, budget_s))
        self._cpu_s += time.process_time() - computed
        return self.report()

    def _go_on(self, mine: bool) -> bool:
        """True if the worker steps again. The ranks of a worker leave a round together."""
        return mine

    def report(self) -> Report:
        report = Report(
            name=self.name,
            kind=self.kind,
            pid=os.getpid(),
            state="done" if self.done else "running",
            rows=self.rows,
            busy_s=self.watch.busy_s,
            cpu_s=self._cpu_by_phase(),
            phases_s=self.watch.phases_s,
            rss_bytes=self._process.memory_info().rss,
            peak_rss_bytes=_peak_rss_bytes(),
            done=self.done,
            metrics=self.metrics,
        )
        self.metrics = []
        self.describe(report)
        return report

    def _cpu_by_phase(self) -> dict[str, float]:
        """CPU seconds of its turns. What other threads of the process took is under OTHER_THREADS."""
        phases = self.watch.cpu_s
        return phases | {OTHER_THREADS: max(0.0, self._cpu_s - sum(phases.values()))}

    def log_metrics(self, step: int, values: dict[str, float | None]) -> None:
        """Queue metrics for tracking, without undefined ones."""
        self.metrics.append((step, {k: v for k, v in values.items() if v is not None}))


def seconds_since(event_time_ms: int | None) -> float | None:
    """Age of a live stream's row by the wall clock."""
    return None if event_time_ms is None else max(0.0, time.time() - event_time_ms / 1000)


def _peak_rss_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
