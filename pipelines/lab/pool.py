"""Process pool for jobs, spawned, each computing with one thread; a single process runs them itself.

Jobs report progress through a queue while they run. The processes ignore Ctrl-C from their first moment on: this
process handles it and ends them. When this process is killed, they end by themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

from exfm.errors import ModelError
from streaming.errors import StreamingError

AddDone = Callable[[int], None]
Work = Callable[[Any, AddDone], Any]

LOOK_EVERY_S = 0.2
"""How often progress is passed on."""
END_S = 5.0
"""A process that has not ended this long after it was terminated is killed."""


class Pool:
    """Processes that run jobs until `close`; started on demand."""

    def __init__(self, work: Work, processes: int) -> None:
        """`work(job, add_done)` is a function of a module."""
        self._work, self._processes = work, processes
        self._context = multiprocessing.get_context("spawn")
        self._executor: ProcessPoolExecutor | None = None
        self._children: list[BaseProcess] = []

    def run(self, jobs: Sequence[Any], add_done: AddDone) -> Iterator[Any]:
        """Run all jobs and yield their results as they finish; `add_done` gets increments of progress.

        Raises what a job raised, or StreamingError when a process dies. An unforeseen error becomes a StreamingError of
        its words; its traceback goes to stderr. Afterwards, or when not all results are taken, the pool is of no more
        use.
        """
        if self._processes <= 1:
            for job in jobs:
                yield self._work(job, add_done)
            return
        try:
            waiting = self._submitted(jobs)
            while waiting:
                done, waiting = wait(waiting, LOOK_EVERY_S, FIRST_COMPLETED)
                while not self._counts.empty():
                    add_done(self._counts.get())
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            raise self._died() from None

    def _submitted(self, jobs: Sequence[Any]) -> set[Future[Any]]:
        if self._executor is None:
            self._counts: SimpleQueue[int] = self._context.SimpleQueue()
            self._executor = ProcessPoolExecutor(self._processes, self._context, _begin, (self._counts,))
        there = multiprocessing.active_children()
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited by the processes that `submit` starts
        try:
            return {self._executor.submit(_work, self._work, job) for job in jobs}
        finally:
            signal.signal(signal.SIGINT, heard)
            self._children += [child for child in multiprocessing.active_children() if child not in there]

    def _died(self) -> StreamingError:
        """Process whose end broke the pool, which then terminates the others."""
        assert self._executor is not None
        self._executor.shutdown()
        ends = [child.exitcode for child in self._children if child.exitcode]
        code = next((end for end in ends if end != -signal.SIGTERM), -signal.SIGTERM)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        hint = "; out of memory? fewer --jobs need less" if code == -signal.SIGKILL else ""
        return StreamingError(f"a worker process {how}{hint}. Finished parts are kept; the same command resumes")

    def close(self) -> None:
        """Stop the processes, even in the middle of a job."""
        if self._executor is None:
            return
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.join(END_S)
            if child.is_alive():
                child.kill()
        self._executor.shutdown(cancel_futures=True)  # its thread reaps processes, too: after this it has ended
        self._executor = None


class _Counted:
    """Adds up counts and passes them on a few times a second."""

    def __init__(self, add_done: AddDone) -> None:
        self._tell, self._count, self._at = add_done, 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._at >= LOOK_EVERY_S:
            self.flush()

    def flush(self) -> None:
        if self._count:
            self._tell(self._count)
        self._count, self._at = 0, time.monotonic()


_counted = _Counted(lambda count: None)
"""What this process has done and not passed on yet, where it is one of a pool's."""


def _begin(counts: SimpleQueue[int]) -> None:
    """Set up a process of the pool."""
    global _counted
    _counted = _Counted(counts.put)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(work: Work, job: Any) -> Any:
    try:
        value = work(job, _counted)
    except (StreamingError, ModelError, OSError):
        raise
    except Exception as error:  # which may not survive the way to the other process
        traceback.print_exc()
        raise StreamingError(repr(error)) from None
    _counted.flush()
    return value
