"""Grants the wishes of a run's roster: while the run lives, and when it starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from exfm.errors import ModelError
from pipelines.config import Config
from pipelines.run_dir import Presence, Roster, Wish
from streaming.errors import BadInput, StreamingError

KEEP_EVERY_S = 10.0
"""How often the lake is asked to keep rows for students that have not begun."""

log = logging.getLogger(__name__)


class Run(Protocol):
    """What is asked of a run that lives; `LiveRun` has it."""

    config: Config

    @property
    def lake_rows(self) -> int: ...
    @property
    def draining(self) -> bool: ...
    def works(self, name: str) -> bool: ...
    def failed(self, name: str) -> bool: ...
    def keep_rows_for(self, name: str) -> None: ...
    def join(self, student: dict[str, Any]) -> None: ...
    def pause(self, name: str) -> None: ...
    def go_on(self, name: str) -> None: ...
    def leave(self, name: str) -> None: ...


class Attendance:
    """Makes a live run as its roster says, and answers every wish."""

    def __init__(self, roster: Roster, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roster = roster
        self._came: set[str] = set()
        self._said: dict[str, str] = {}
        self._kept_at: float | None = None

    def __call__(self, run: Run) -> None:
        """Grant what is open, and let in who is to join by now. A wish that the run cannot grant is refused, with why;
        nothing has changed then."""
        with self._whatever_happens("letting students in"):
            self._let_in(run)
        for name in self._roster.names:
            with self._whatever_happens(name):  # a damaged file keeps no other student from its answer
                if (wish := self._roster.wish(name)) is not None and not self._roster.answered(wish):
                    self._answer(run, wish)

    def _answer(self, run: Run, wish: Wish) -> None:
        try:
            words = _grant(run, wish)
        except (StreamingError, ModelError, OSError) as error:
            log.warning("%s is refused: %s", wish.name, error)
            self._roster.answer(wish, str(error), refused=True)
        else:
            self._roster.answer(wish, words)
            log.info("%s: %s", wish.name, words)

    def _let_in(self, run: Run) -> None:
        """Students of the config that join later than the run begins; until then the lake keeps their rows."""
        late = [s for s in run.config.students if s.joins_at_rows and s.name not in self._came]
        now = self._clock()
        keep = self._kept_at is None or now - self._kept_at >= KEEP_EVERY_S
        for student in late:
            if run.lake_rows < student.joins_at_rows and not run.draining:
                if keep:
                    run.keep_rows_for(student.name)
                    self._kept_at = now
                continue
            self._came.add(student.name)
            stands = self._roster.stands(student.name)
            paused = stands is not None and stands.wanted is Presence.PAUSED
            if not run.works(student.name) and not paused:
                run.go_on(student.name)
                log.info("%s joins", student.name)

    @contextmanager
    def _whatever_happens(self, doing: str) -> Iterator[None]:
        """What goes wrong with a request ends no run: it is logged once, and tried again at the next look."""
        try:
            yield
        except (StreamingError, OSError) as error:
            if self._said.get(doing) != str(error):
                self._said[doing] = str(error)
                log.error("%s: %s", doing, error)


def _grant(run: Run, wish: Wish) -> str:
    name = wish.name
    known = name in {student.name for student in run.config.students}
    if wish.wanted is Presence.RUNNING:
        if run.works(name) and not run.failed(name):
            return f"`{name}` is in the run"
        if known:
            run.go_on(name)
            return f"`{name}` goes on from its checkpoint"
        if wish.section is None:
            raise BadInput(f"no student of the run is named `{name}`; spawn it first")
        run.join(wish.section)
        return f"`{name}` joined"
    if wish.wanted is Presence.PAUSED:
        if run.works(name):
            run.pause(name)
        elif not known:
            raise BadInput(f"no student of the run is named `{name}`")
        return f"`{name}` is paused; the lake keeps its rows for `lake.reader_expiry_s`"
    if known:
        run.leave(name)
    return f"`{name}` has left; its checkpoints and exports stay"


def with_roster(config: Config, roster: Roster) -> Config:
    """The config that a run has with the students that were spawned, and without those that were retired.

    Raises BadInput where a section no longer fits.
    """
    students = {student.name: student.model_dump(mode="json") for student in config.students}
    had = dict(students)
    for wish in roster.standing:
        if wish.wanted is Presence.RETIRED:
            students.pop(wish.name, None)
        elif wish.section is not None:
            students.setdefault(wish.name, wish.section)
    if students == had:
        return config
    return config.having(list(students.values()))
