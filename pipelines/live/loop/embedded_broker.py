"""The embedded broker of a run: started with it, watched, restarted when it dies, stopped with it.

A thread watches it, because the coordinator of a `--local` run is inside a worker's step for as long as that step waits
for the broker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from pipelines.live.rules.restarts import Cause, Death, GiveUp, Patience, verdict
from streaming.broker.broker import RunningBroker
from streaming.errors import BadInput, DiskFull, StreamingError

POLL_S = 0.2
START_WAIT_S = 60.0

log = logging.getLogger(__name__)


class Startable(Protocol):
    """Interface of a broker for its supervisor, implemented by `streaming.broker.Broker`."""

    def start(self, wait_s: float = ...) -> RunningBroker: ...
    def status(self) -> RunningBroker | None: ...
    def stop(self, wait_s: float = ...) -> bool: ...
    def log_tail(self, lines: int = ...) -> str: ...


class EmbeddedBroker:
    """Context in which the broker runs. Its state is written into `status`, a dictionary that others read:
    `bootstrap_servers, pid, restarts, reason`; pid is None and `reason` says why while there is no process.

    make: the broker, at a port (None: the configured one, or any). Once started it keeps its port, which all workers
    know. `given_up` says why, once it is not started again.
    """

    def __init__(
        self,
        make: Callable[[int | None], Startable],
        status: dict[str, Any],
        patience: Patience,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.given_up: str | None = None
        self._make, self._broker = make, make(None)
        self._status, self._patience, self._clock = status, patience, clock
        self._deaths: list[Death] = []
        self._start_at: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="broker", daemon=True)

    def __enter__(self) -> str:
        """Returns the bootstrap servers. Raises as `Broker.start` does when it cannot be started at first."""
        running = self._broker.start()
        self._broker = self._make(running.port)
        self._status |= {**_address(running), "restarts": 0, "reason": None}
        self._thread.start()
        return running.bootstrap_servers

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()  # a start that is under way would leave a broker behind
        self._broker.stop()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                self.attend()
            except Exception:
                log.exception("watching the broker")

    def attend(self) -> None:
        """Check that the broker runs; restart it when due."""
        if self.given_up is not None:
            return
        if self._start_at is None:
            if self._broker.status() is None:
                self._bury(Cause.CRASH, f"its process is gone\nlast lines of its log:\n{self._broker.log_tail(5)}")
        elif self._clock() >= self._start_at:
            self._start_again()

    def _start_again(self) -> None:
        try:
            running = self._broker.start(START_WAIT_S)
        except StreamingError as error:
            self._bury(_cause(error), str(error))
            return
        self._start_at = None
        self._status |= _address(running) | {"restarts": self._status["restarts"] + 1, "reason": None}
        log.warning("the broker runs again, pid %d", running.pid)

    def _bury(self, cause: Cause, words: str) -> None:
        now = self._clock()
        self._deaths.append(Death(now, cause, words))
        decision = verdict(self._deaths, now, self._patience)
        if isinstance(decision, GiveUp):
            self.given_up = f"the embedded broker is not started again: {decision.reason}"
            self._status |= {"pid": None, "reason": self.given_up}
            log.error("%s", self.given_up)
            return
        self._start_at = now + decision.delay_s
        self._status |= {"pid": None, "reason": words.partition("\n")[0]}
        log.warning("the broker is gone (%s); starting it in %.1f s", words, decision.delay_s)


def _cause(error: StreamingError) -> Cause:
    """The cause of a start that failed. A port that another process has taken is not a crash of the broker."""
    if isinstance(error, DiskFull):
        return Cause.DISK_FULL
    return Cause.BROKER_AWAY if isinstance(error, BadInput) else Cause.CRASH


def _address(running: RunningBroker) -> dict[str, Any]:
    return {"bootstrap_servers": running.bootstrap_servers, "pid": running.pid}
