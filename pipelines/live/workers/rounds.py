"""Ranks that rank 0 leads by messages: they take part in a round for as long as it does, and commit nothing.

    rank 0                          the other ranks
    order   ─────message──────►     do as it says; they may answer, or meet rank 0 in a collective
    leave   at a round's end ──►    the round ends here too

Between two orders no rank waits in a collective: rank 0 may wait for Kafka, a disk or another model as long as it must,
and no time-out runs.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from exfm.machine import keep_memory, set_threads
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.lines import Lines
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders, Worker

LEAVE = "leave"


class Lead:
    """Rank 0's orders, JSON values with further parts, one after the other: all ranks have answered the last one, or
    met in a collective, before the next. Without lines nobody is led."""

    def __init__(self, lines: Lines | None) -> None:
        self._lines = lines

    def order(self, what: Any, *parts: bytes) -> None:
        """Send the next order to all ranks."""
        if self._lines is not None:
            message = json.dumps(what).encode()
            for rank in range(1, self._lines.ranks):
                self._lines.send(rank, message, *parts)

    def leave(self) -> None:
        """End the round, so that other ranks may report."""
        self.order(LEAVE)


class FurtherRank(Worker):
    """A rank beyond the first of the worker `of`: it does as rank 0 says, in rounds."""

    collectives = True

    def __init__(self, of: str, config: Config, run_dir: RunDir, at: Rendezvous) -> None:
        super().__init__(f"{of}-rank{at.rank}")
        self._config, self._run_dir, self._at = config, run_dir, at
        self._held = ExitStack()

    def open(self) -> None:
        set_threads(self._config.resources.threads)
        keep_memory()
        self._ranks = Ranks(self._at, collectives=self.collectives)
        self._held.callback(self._ranks.close)
        assert self._ranks.lines is not None
        self._lines = self._ranks.lines

    def advance(self, budget_s: float, orders: Orders, *, patient: bool = True) -> Report:
        """Take part in a round as long as rank 0's."""
        self.orders, computed = orders, time.process_time()
        self._follow_round()
        self._cpu_s += time.process_time() - computed
        return self.report()

    def _follow_round(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """Execute the next order; False if it ends the round."""
        with self.watch("wait for orders"):
            order, *parts = self._lines.receive(0)
        if (what := json.loads(bytes(order))) == LEAVE:
            return False
        self._obey(what, parts)
        return True

    @abstractmethod
    def _obey(self, order: Any, parts: Sequence[memoryview]) -> None:
        """Do what rank 0 says."""

    @property
    def done(self) -> bool:
        return False  # rank 0 says when

    def describe(self, report: Report) -> None:
        report.own_rows = self.rows

    def close(self) -> None:
        self._held.close()

    def abandon(self) -> None:
        self._held.close()
