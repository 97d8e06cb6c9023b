"""Background writer: one thread per worker, in order, behind a bounded queue.

    step -> copy -> put ──► [ waiting, at most `bound` ] ──► the thread: write, sync, rename, prune, register

A step pays for the copy. It pays for the disk only where that is slower than the training between two checkpoints and
the queue is full: then `put` waits, so that memory never holds more than `bound` + 1 copies. Order is kept, so what is
on disk is always what a worker that stopped at some point would have left.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Watch = Callable[[str], AbstractContextManager[None]]


class Writer:
    """Runs queued writes one after the other in a thread of its own.

    What fails there is raised at the next `put`, `check`, `drain` or `close`, as it is, and nothing that waited behind
    it is written: a worker that continued then would save nothing more.

    >>> done = []
    >>> writer = Writer("example", bound=1)
    >>> for number in range(3):
    ...     writer.put(lambda number=number: done.append(number))
    >>> writer.close()
    >>> done
    [0, 1, 2]
    """

    def __init__(self, name: str, bound: int, watch: Watch = lambda phase: nullcontext()) -> None:
        self._bound = bound
        self._watch = watch
        self._waiting: deque[Callable[[], None]] = deque()
        self._writing = self._ending = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"{name}-writer", daemon=True)
        self._thread.start()

    def put(self, write: Callable[[], None]) -> None:
        """Queue a write after all earlier ones. Waits while the queue is full ("wait for disk")."""
        with self._changed:
            if self._error is None and len(self._waiting) >= self._bound:
                with self._watch("wait for disk"):
                    self._changed.wait_for(lambda: self._error or len(self._waiting) < self._bound)
            self._raise()
            self._waiting.append(write)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the thread's error, if any."""
        with self._changed:
            self._raise()

    @property
    def has_room(self) -> bool:
        """True if `put` would not block. Raises what the thread met."""
        with self._changed:
            self._raise()
            return len(self._waiting) < self._bound

    @property
    def idle(self) -> bool:
        """True if all writes are done. Raises what the thread met."""
        with self._changed:
            self._raise()
            return not self._waiting and not self._writing

    def drain(self) -> None:
        """Wait until all writes are done."""
        with self._changed, self._watch("wait for disk"):
            self._changed.wait_for(lambda: self._error or not (self._waiting or self._writing))
            self._raise()

    def close(self) -> None:
        """Finish all writes and stop the thread."""
        try:
            self.drain()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stop the thread like a crash, after its current write: queued writes are dropped."""
        with self._changed:
            self._waiting.clear()
            self._ending = True
            self._changed.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if self._ending:
                    return
                write, self._writing = self._waiting.popleft(), True
                self._changed.notify_all()
            try:
                write()
            except BaseException as error:
                with self._changed:
                    self._error, self._writing = error, False
                    self._waiting.clear()
                    self._changed.notify_all()
                return
            del write  # and with it the copy
            with self._changed:
                self._writing = False
                self._changed.notify_all()
