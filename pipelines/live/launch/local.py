"""Workers in this process, stepped in turn."""

from __future__ import annotations

import logging
import time
import weakref
from pathlib import Path

from pipelines.live.launch.host import Build
from pipelines.live.launch.ranks import ADVANCE_S
from pipelines.live.rules.causes import Died
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import IDLE_S, Orders, Worker
from streaming.errors import BadInput


class LocalHandle:
    """A worker that is stepped when it is polled; `others` live in the same process."""

    def __init__(self, build: Build, others: weakref.WeakSet[Worker]) -> None:
        self.node: str | None = "local"
        self._build, self._others = build, others
        self._worker: Worker | None = None

    def poll(self, orders: Orders) -> Report | None:
        try:
            if self._worker is None:
                self._worker = self._build(Rendezvous())
                self._worker.join(tuple(self._others))
                self._others.add(self._worker)
                self._worker.open()
            return self._worker.advance(ADVANCE_S / 5, orders, patient=False)
        except Exception as error:
            logging.getLogger(__name__).exception("worker failed")
            self.kill()
            raise Died.of(error) from error

    def ask_to_close(self) -> None:
        pass

    def close(self, wait_s: float) -> Report | None:
        if self._worker is None:
            return None
        worker, self._worker = self._worker, None
        worker.close()
        return worker.report()

    def kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.abandon()
            except Exception:  # the cause of its death is reported, not this
                logging.getLogger(__name__).exception("abandoning a worker")


class LocalLauncher:
    def __init__(self) -> None:
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    def start(self, name: str, build: Build, log: Path, ranks: int = 1, host: str | None = None) -> LocalHandle:
        if ranks > 1:
            raise BadInput(f"{name} is to be {ranks} processes, and this launcher has one: leave --local out")
        return LocalHandle(build, self._workers)

    def lacks(self, more: int, *, of_one_model: bool = False) -> str | None:
        return "--local runs every worker in one process; start the run without it" if more > 0 else None

    def rest(self, interval_s: float) -> None:
        """Sleep, unless a worker has something to do."""
        if all(worker.idle or worker.done for worker in self._workers):
            time.sleep(min(interval_s, IDLE_S))

    @property
    def died(self) -> str | None:
        return None

    def shutdown(self) -> None:
        pass
