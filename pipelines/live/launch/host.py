"""Workers that share a process: each built, stepped and closed by name, one call at a time.

Nearly all of a student's process is libraries, so many small students fit where one would. They step in turn, for a
share of the time each, and share what they read. One that fails is dropped alone, and can be opened again; what ends
the process ends them all, and a file says whose turn it was.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipelines.core.run_dir.logs import LogForm, LogPosition
from pipelines.live.rules.causes import Died
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import IDLE_S, Orders, Worker
from streaming.ports import free_port

Build = Callable[[Rendezvous], Worker]

LEAST_S = 0.05
"""A worker's turn, however many share the process."""


class Host:
    """The workers of this process. `own_log`: what threads of theirs say goes there, as everything does where it hosts
    one worker alone; `turn`: a file that has the name of the worker at work, None where there is one alone."""

    def __init__(self, own_log: str, logs: LogForm, turn: str | None = None) -> None:
        self._workers: dict[str, Worker] = {}
        self._idle: set[str] = set()  # of those who had a turn since the last sleep
        self._logs = _Logs(Path(own_log), logs, self._position)
        self._turn = None if turn is None else Path(turn).open("w")  # noqa: SIM115 (open for as long as the process)
        logging.basicConfig(handlers=[self._logs], level=logging.INFO, force=True)
        logging.getLogger("torchrec").setLevel(logging.WARNING)
        logging.raiseExceptions = False  # a full disk takes no log; the worker's death reports it

    def port(self, name: str) -> int:
        """A free port of this node for the ranks of a worker."""
        return free_port()

    def open(self, name: str, build: Build, log: str, rendezvous: Rendezvous) -> None:
        self.drop(name)
        self._logs.add(name, Path(log))
        with self._turn_of(name, "open failed"):
            worker = build(rendezvous)
            worker.join(tuple(self._workers.values()))
            self._workers[name] = worker
            worker.open()

    def _position(self, name: str) -> LogPosition:
        return self._workers[name].log_position if name in self._workers else LogPosition()

    def advance(self, name: str, budget_s: float, orders: Orders) -> Report:
        sharing = len(self._workers)
        with self._turn_of(name, "step failed"):
            if sharing == 1:
                return self._workers[name].advance(budget_s, orders)
            report = self._workers[name].advance(max(LEAST_S, budget_s / sharing), orders, patient=False)
        self._rest(name)
        return report

    def _rest(self, name: str) -> None:
        """Sleep briefly once all had a turn and none had anything to do."""
        if not self._workers[name].idle and not self._workers[name].done:
            self._idle.clear()
            return
        self._idle.add(name)
        if all(worker.done or other in self._idle for other, worker in self._workers.items()):
            time.sleep(IDLE_S)
            self._idle.clear()

    def close(self, name: str) -> Report:
        with self._turn_of(name, "close failed"):
            self._workers[name].close()
            return self._workers.pop(name).report()

    def drop(self, name: str) -> None:
        """Drop a worker like a crash; others continue."""
        if (worker := self._workers.pop(name, None)) is not None:
            with self._logs.of(name):
                try:
                    worker.abandon()
                except Exception:  # what it failed of was reported
                    logging.exception("abandoning")

    @contextmanager
    def _turn_of(self, name: str, failing: str) -> Iterator[None]:
        with self._logs.of(name):
            self._note_turn(name)
            try:
                yield
            except Exception as error:
                logging.exception(failing)
                self.drop(name)
                raise Died.of(error) from None  # the chain of causes does not leave this process
            finally:
                self._note_turn("")

    def _note_turn(self, name: str) -> None:
        if self._turn is not None:
            os.pwrite(self._turn.fileno(), name.encode().ljust(256), 0)


def last_turn(path: Path) -> str | None:
    """The worker whose turn it was when a process ended; None between turns, or without a file."""
    try:
        return path.read_bytes().decode(errors="replace").strip() or None
    except FileNotFoundError:
        return None


class _Logs(logging.Handler):
    """Writes to the log of the worker whose turn it is; what its threads say between turns, to the process's own."""

    def __init__(self, own: Path, logs: LogForm, position: Callable[[str], LogPosition]) -> None:
        super().__init__()
        self._logs, self._position = logs, position
        self._own = logs.handler(own, partial(position, own.stem))
        self._files: dict[str, logging.Handler] = {}
        self._paths = {own: self._own}
        self._now: logging.Handler | None = None

    def add(self, name: str, path: Path) -> None:
        if path not in self._paths:
            self._paths[path] = self._logs.handler(path, partial(self._position, name))
        self._files[name] = self._paths[path]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        before, self._now = self._now, self._files.get(name)
        try:
            yield
        finally:
            self._now = before

    def emit(self, record: logging.LogRecord) -> None:
        (self._now or self._own).handle(record)
