"""Ranks that rank 0 leads by notes: they take part in a round for as long as it does, and commit nothing.

    rank 0                          the other ranks
    order   ───────note───────►     do as it says; they may answer, or meet rank 0 in a collective
    leave   at a round's end ──►    the round ends here too

Between two orders no rank waits in a collective: rank 0 may wait for Kafka, a disk or another model as long as it must,
and no time-out runs.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from contextlib import ExitStack
from typing import Any

from exfm.machine import keep_memory, set_threads
from exfm.parallel.group import RankGroup
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders, Worker

LEAVE = "leave"


class Lead:
    """Rank 0's orders, JSON values, one after the other: all ranks have answered the last one, or met in a collective,
    before the next. Without a group nobody is led."""

    def __init__(self, group: RankGroup | None) -> None:
        self._group, self._orders = group, 0

    def order(self, what: Any) -> int:
        """Post the next order; returns its number."""
        if self._group is not None:
            if self._orders:
                self._group.forget(f"order/{self._orders}")
            self._orders += 1
            self._group.tell(f"order/{self._orders}", json.dumps(what))
        return self._orders

    def leave(self) -> None:
        """End the round, so that other ranks may report."""
        self.order(LEAVE)


class FurtherRank(Worker):
    """A rank beyond the first of the worker `of`: it does as rank 0 says, in rounds."""

    def __init__(self, of: str, config: Config, run_dir: RunDir, at: Rendezvous) -> None:
        super().__init__(f"{of}-rank{at.rank}")
        self._config, self._run_dir, self._at = config, run_dir, at
        self._held = ExitStack()
        self._heard = 0

    def open(self) -> None:
        set_threads(self._config.resources.threads)
        keep_memory()
        self._ranks = Ranks(self._at)
        self._held.callback(self._ranks.close)
        assert self._ranks.group is not None
        self._group = self._ranks.group

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
            self._heard += 1
            order = json.loads(self._group.hear(f"order/{self._heard}"))
        if order == LEAVE:
            return False
        self._obey(order)
        return True

    @abstractmethod
    def _obey(self, order: Any) -> None:
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
