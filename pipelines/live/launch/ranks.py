"""Ranks of a worker: one process or several, polled by the coordinator as one.

    place ──► meet (rank 0 names a free port) ──► open ──► advance ──► advance ──► … ──► close
            all ranks are asked together, and one is asked for the next thing when all have answered

The ranks are one unit of failure: what one dies of ends them all. Every round ends in all of them at once
(pipelines/live/workers/ranks.py): between two rounds, however long the coordinator sleeps there, no rank waits for
another.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pipelines.live.rules.causes import Died, Gone, Orphaned
from pipelines.live.rules.restarts import Cause
from pipelines.live.workers.ranks import LOOPBACK, Rendezvous
from pipelines.live.workers.report import RankReport, Report
from pipelines.live.workers.worker import Orders

ADVANCE_S = 0.5  # how long a worker steps before it reports
GRACE_S = 1.0
"""Grace period to hear the rank that failed first: where one rank fails, the others fail because of it."""

log = logging.getLogger(__name__)


class PendingAnswer(Protocol):
    """A process's answer, possibly still outstanding."""

    def here(self) -> bool: ...
    def get(self, wait_s: float | None = None) -> Any:
        """Wait for the answer; raises Died (Gone if the process has ended), TimeoutError after `wait_s`."""


class Process(Protocol):
    """The process of one rank."""

    def ask(self, what: str, *values: Any) -> PendingAnswer: ...
    def let_go(self) -> None:
        """End the process; if others share it, end only its part, once it has answered."""

    def kill(self) -> None:
        """Kill the process at once."""


class RankHandle:
    """The ranks of one worker.

    unplaced(waited_s): why no place will be found, or None while one may be.
    give_back(): releases what was reserved for them.
    ended(): why processes end, where something else than what they say is known of it.
    """

    def __init__(
        self,
        name: str,
        processes: Sequence[Process],
        *,
        unplaced: Callable[[float], str | None],
        give_back: Callable[[], None] = lambda: None,
        ended: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node: str | None = None  # of rank 0
        self._name, self._processes = name, list(processes)
        self._unplaced, self._give_back, self._ended = unplaced, give_back, ended
        self._clock = clock
        self._created = clock()
        self._failed_at: float | None = None
        self._nodes: list[str] = []
        self._opened = False
        self._closing: list[PendingAnswer] = []
        self._asked: list[PendingAnswer] = []
        self._answers: dict[int, Any] = {}
        self._ask("place")

    def poll(self, orders: Orders) -> Report | None:
        if not self._asked:  # it is done and was polled once more
            self._ask("advance", ADVANCE_S, orders)
        while (answers := self._gathered()) is not None:
            what, self._asked = self._what, []
            if what == "advance":
                report = self._merged(answers)
                if not report.done:
                    self._ask("advance", ADVANCE_S, orders)
                return report
            self._next(what, answers, orders)
        return None

    def _next(self, what: str, answers: list[Any], orders: Orders) -> None:
        if what == "place":
            self._nodes, self.node = answers, answers[0]
            if len(self._processes) > 1:
                self._ask("port", of=self._processes[:1])
            else:
                self._ask("open", Rendezvous())
        elif what == "port":
            # One machine's ranks meet on its loopback: there the host's name need not resolve.
            address = LOOPBACK if len(set(self._nodes)) == 1 else self._nodes[0]
            self._begin("open")
            ranks, word = len(self._processes), secrets.token_hex(16)
            self._asked = [
                process.ask("open", Rendezvous(rank, ranks, address, answers[0], word))
                for rank, process in enumerate(self._processes)
            ]
        else:
            self._opened = True
            self._ask("advance", ADVANCE_S, orders)

    def _begin(self, what: str) -> None:
        self._what, self._answers, self._failed_at = what, {}, None

    def _ask(self, what: str, *values: Any, of: Sequence[Process] | None = None) -> None:
        self._begin(what)
        self._asked = [process.ask(what, *values) for process in (of or self._processes)]

    def _gathered(self) -> list[Any] | None:
        """All answers, in order of rank; None while some are outstanding. Raises Died when one has failed."""
        for rank, asked in enumerate(self._asked):
            if rank not in self._answers and asked.here():
                try:
                    self._answers[rank] = asked.get()
                except Died as died:
                    self._answers[rank] = died
        failed = {rank: answer for rank, answer in self._answers.items() if isinstance(answer, Died)}
        missing = [rank for rank in range(len(self._asked)) if rank not in self._answers]
        if failed:
            self._failed_at = self._clock() if self._failed_at is None else self._failed_at
            if missing and self._clock() - self._failed_at < GRACE_S:
                return None
            self.kill()
            raise self._first_death(failed, missing)
        if missing:
            if self._what == "place" and (words := self._unplaced(self._clock() - self._created)):
                self.kill()
                raise Died(words, Cause.PERMANENT)
            return None
        return [self._answers[rank] for rank in range(len(self._asked))]

    def _first_death(self, failed: dict[int, Died], missing: list[int]) -> Died:
        """The death that the others followed from: one with a specific cause, or a process that is gone; never one that
        says that another rank is lost, where there is another."""

        def order(rank: int) -> tuple[bool, bool, bool, int]:
            died = failed[rank]
            return isinstance(died, Orphaned), died.cause is Cause.CRASH, not isinstance(died, Gone), rank

        rank = min(failed, key=order)
        died, ranks = failed[rank], len(self._processes)
        if isinstance(died, Gone) and (words := self._ended()) is not None:
            died = Gone(f"{died} {words}", died.cause)
        if ranks == 1:
            return Died(str(died), died.cause)
        silent = f"; rank {', '.join(map(str, missing))} did not answer" if missing else ""
        return Died(f"rank {rank} of {ranks}: {died}{silent}", died.cause)

    def _merged(self, reports: list[Report]) -> Report:
        """Rank 0's report, with the processes of all ranks."""
        if len(reports) == 1:
            return reports[0]
        each = [
            RankReport(rank, r.pid, self._nodes[rank], r.own_rows, r.rss_bytes, r.peak_rss_bytes, r.cpu_s)
            for rank, r in enumerate(reports)
        ]
        return replace(
            reports[0],
            cpu_s=dict(sum((Counter(report.cpu_s) for report in reports), Counter())),
            rss_bytes=sum(rank.rss_bytes for rank in each),
            peak_rss_bytes=sum(rank.peak_rss_bytes for rank in each),
            ranks=each,
        )

    def ask_to_close(self) -> None:
        """Ask all ranks to close, since they close some things together."""
        if self._opened and not self._closing:
            self._closing = [process.ask("close") for process in self._processes]

    def close(self, wait_s: float) -> Report | None:
        """Close the worker; one that is not open yet has nothing to commit and is killed at once."""
        self.ask_to_close()
        report: Report | None = None
        if self._closing:
            end = self._clock() + wait_s
            try:
                report = self._merged([asked.get(max(0.1, end - self._clock())) for asked in self._closing])
            except (Died, TimeoutError) as error:
                log.warning("%s did not close: %s", self._name, error)
        for process in self._processes:
            process.let_go()
        self._give_back()
        return report

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        self._give_back()
