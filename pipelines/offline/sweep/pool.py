"""Jobs in several processes, spawned, each computing with one thread; with one process, in this one.

A worker answers each job with what it returned, and tells in between how far it is. It ignores Ctrl-C from its first
moment on, which this process hears and ends it for; when this process is gone, a worker's next word finds nobody, and
it ends.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from exfm.errors import ModelError
from streaming.errors import StreamingError

Tell = Callable[[int], None]
Work = Callable[[Any, Tell], Any]

TELL_EVERY_S = 0.2


class Pool:
    """Processes that do jobs, until `close`; they are started when there is something to do for them."""

    def __init__(self, work: Work, processes: int) -> None:
        """`work(job, tell)` is a function of a module."""
        self._work, self._processes = work, processes
        self._workers: list[_Worker] = []

    def run(self, jobs: Sequence[Any], tell: Tell) -> Iterator[Any]:
        """What `work` returns for every job, as they end; `tell` hears counts of things done, which add up.

        Raises StreamingError when a process dies, or what a job raised: of a fault of ours the words, its traceback on
        stderr. After that, and where the rest is not asked for, the pool is of no more use.
        """
        if self._processes <= 1:
            for job in jobs:
                yield self._work(job, tell)
            return
        waiting = deque(jobs)
        while len(self._workers) < min(self._processes, len(jobs)):
            self._workers.append(_Worker(self._work))
        busy = {worker.give(waiting.popleft()): worker for worker in self._workers[: len(jobs)]}
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker = busy[connection]
                kind, value = worker.hear()
                if kind == "told":
                    tell(value)
                    continue
                if kind == "raised":
                    error, trace = value
                    if trace is not None:
                        sys.stderr.write(trace)
                    raise error
                yield value
                if waiting:
                    worker.give(waiting.popleft())
                else:
                    del busy[connection]

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


class _Worker:
    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, work), daemon=True)
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a process keeps that is started now
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, heard)
        there.close()

    def give(self, job: Any) -> Connection:
        try:
            self._here.send(job)
        except OSError:
            raise self._died() from None
        return self._here

    def hear(self) -> tuple[str, Any]:
        try:
            answer: tuple[str, Any] = self._here.recv()
            return answer
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> StreamingError:
        self._process.join(5)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = "; out of memory? fewer --jobs need less" if code == -signal.SIGKILL else ""
        return StreamingError(
            f"a worker process {how}{hint}. What is done is kept: the same command goes on from there"
        )

    def end(self) -> None:
        self._process.terminate()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
        self._here.close()


def _serve(connection: Connection, work: Work) -> None:
    try:
        while True:
            job = connection.recv()
            told = _Told(connection)
            try:
                value = work(job, told)
            except Exception as error:
                connection.send(("raised", _raised(error)))
            else:
                told.flush()
                connection.send(("done", value))
    except (EOFError, OSError):
        return  # nobody is there any more


def _raised(error: Exception) -> tuple[Exception, str | None]:
    """An error that is told in words as it is; of any other what it says, and its traceback."""
    if isinstance(error, StreamingError | ModelError | OSError):
        return error, None
    return StreamingError(repr(error)), traceback.format_exc()


class _Told:
    """Counts on their way, a few times a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._count, self._at = connection, 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._at >= TELL_EVERY_S:
            self.flush()

    def flush(self) -> None:
        if self._count:
            self._connection.send(("told", self._count))
        self._count, self._at = 0, time.monotonic()
