"""Read-ahead: prepares the next items in a background thread, a bounded number ahead.

    the thread: read, decode, cut, build ──► [ ready, at most `bound` ] ──► take ──► train

A worker's position is what it has trained. Items that lie ready are not part of it: a close or a crash drops them, and
they are read again from the position. So reading ahead changes when a row is read, never what is computed from it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

IDLE_S = 0.01
"""How long to wait before asking a source again that had nothing."""


class Ahead(Generic[Item]):
    """Items of `read`, in order, each once; at most `bound` of them are prepared ahead. With `bound` 0 there is no
    thread, and `take` reads.

    `read` gives the next item, or None when there is none yet. What it raises is raised where the item would have been
    taken, after everything read before it, and again ever after: nothing is read behind an error.

    >>> ahead = Ahead("example", iter(range(3)).__next__, bound=2)
    >>> [ahead.take(10.0) for _ in range(3)]
    [0, 1, 2]
    >>> ahead.close()
    """

    def __init__(self, name: str, read: Callable[[], Item | None], bound: int) -> None:
        self._read = read
        self._bound = bound
        self._ready: deque[Item] = deque()
        self._error: BaseException | None = None
        self._ending = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        if bound:
            self._thread = threading.Thread(target=self._run, name=f"{name}-ahead", daemon=True)
            self._thread.start()

    @property
    def threaded(self) -> bool:
        return self._thread is not None

    @property
    def ready(self) -> int:
        """Number of prepared items."""
        return len(self._ready)

    def take(self, wait_s: float = 0.0) -> Item | None:
        """The next item; None if none is ready within `wait_s`."""
        item = self.peek(wait_s)
        if item is not None:
            with self._changed:
                self._ready.popleft()
                self._changed.notify_all()
        return item

    def peek(self, wait_s: float = 0.0) -> Item | None:
        """The item that `take` returns next, without removing it; None if none is ready within `wait_s`."""
        with self._changed:
            if self._thread is None:
                if not self._ready and (item := self._read()) is not None:
                    self._ready.append(item)
            elif not self._ready:
                self._changed.wait_for(lambda: self._ready or self._error or self._ending, wait_s)
            if self._ready:
                return self._ready[0]
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """Stop the thread after its current read, and drop prepared items. A second call does nothing."""
        with self._changed:
            self._ending = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending or len(self._ready) < self._bound)
                if self._ending:
                    return
            try:
                item = self._read()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                if self._ending:
                    return
                if item is not None:
                    self._ready.append(item)
                    self._changed.notify_all()
                else:
                    self._changed.wait_for(lambda: self._ending, IDLE_S)
            del item  # what is taken is the taker's alone
