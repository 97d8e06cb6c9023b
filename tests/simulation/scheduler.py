"""Who runs, and what befalls them: processes of the augmentation service, killed or stopped at a place of one's choice.

Every fake calls `point` wherever a real process could be killed, stopped or find the disk full: before a file is
flushed, moved or deleted, around a commit, at a fetch, when messages are sent. Points are counted, so that a fault
`after` n of them strikes at the same place in every replay.

Only one process runs at a time. One that may be stopped runs in a thread of its own, which waits at the point where it
was stopped, as a process does under SIGSTOP.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from random import Random
from typing import Any

LATER = 1 << 60
COMMIT = "commit"
"""How the name of a point begins at which rows are committed."""


class Killed(BaseException):
    """The process is gone. No handler of the product may outlive it: every later point raises it again."""

    def __init__(self, power: bool = False) -> None:
        super().__init__("power cut" if power else "killed")
        self.power = power


class Process:
    """One start of the service."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive = True
        self.strand: Strand | None = None
        self.worker: Any = None
        self.further_ranks: Callable[[], list[Any]] = list
        """Makes those of a partitioned stream beyond the first."""


class Strand:
    """Runs a function in a thread that can stand still in the middle of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._run, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self.finished = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread.start()

    def _main(self) -> None:
        self._run.acquire()
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        self.finished = True
        self._back.release()

    def go_on(self) -> None:
        """Let it run until it has finished or stands still."""
        self._run.release()
        self._back.acquire()
        if self.finished:
            self._thread.join()

    def stand_still(self) -> None:
        """Called by its own thread."""
        self._back.release()
        self._run.acquire()


class Clock:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return round(self.now_s * 1000)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Scheduler:
    """Counts points and lets faults strike."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        self.process: Process | None = None
        self.points = 0
        self._kill_at: tuple[int, bool] | None = None
        self._stop_at: int | None = None
        self._full_at: int | None = None
        self._full_for = 0
        self._unsure = False
        self._at_commit: Callable[[], None] | None = None
        self._at_point: tuple[int, Callable[[], None]] | None = None
        self._started = 0
        self.trace: list[str] | None = None

    def new_process(self) -> Process:
        self._started += 1
        return Process(self._started)

    def kill(self, after: int, *, power: bool, commit: bool = False) -> None:
        """`commit`: after so many points from the next commit on."""
        self._at_commit = (lambda: self.kill(after, power=power)) if commit else None
        self._kill_at = None if commit else (self.points + after, power)

    def stop(self, after: int, *, commit: bool = False) -> None:
        self._at_commit = (lambda: self.stop(after)) if commit else None
        self._stop_at = LATER if commit else self.points + after

    def befall(self, after: int, what: Callable[[], None]) -> None:
        """Call `what` after so many points."""
        self._at_point = (self.points + after, what)

    def fill_disk(self, after: int, times: int) -> None:
        self._full_at, self._full_for = self.points + after, times

    def unsure_commit(self) -> None:
        """The next commit is stored and reported as failed."""
        self._unsure = True

    def take_unsure(self) -> bool:
        unsure, self._unsure = self._unsure, False
        return unsure

    def calm(self) -> None:
        """No fault strikes any more."""
        self._kill_at = self._stop_at = self._full_at = None
        self._full_for, self._unsure, self._at_commit, self._at_point = 0, False, None, None

    @property
    def stop_is_near(self) -> bool:
        return self._stop_at is not None

    def point(self, what: str, *, writes: bool = False) -> None:
        """A place where the process may be interrupted; `writes`: it needs room on the disk."""
        process = self.process
        if process is None:
            return
        if not process.alive:
            raise Killed
        self.points += 1
        if self.trace is not None:
            self.trace.append(f"{self.points} process {process.number}: {what}")
        if self._at_commit is not None and what.startswith(COMMIT):
            self._at_commit()
        if self._at_point is not None and self.points >= self._at_point[0]:
            what_befalls, self._at_point = self._at_point[1], None
            what_befalls()
        if self._kill_at is not None and self.points >= self._kill_at[0]:
            power, self._kill_at = self._kill_at[1], None
            process.alive = False
            raise Killed(power)
        if self._stop_at is not None and self.points >= self._stop_at and process.strand is not None:
            self._stop_at = None
            process.strand.stand_still()
            if not process.alive:
                raise Killed
        if writes and self._full_at is not None and self.points >= self._full_at:
            self._full_for -= 1
            if self._full_for <= 0:
                self._full_at = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
