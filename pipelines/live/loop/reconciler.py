"""Reconciliation of a run with its roster, the desired state of each student (running, paused, gone): while the run
lives, and when it starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from exfm.errors import ModelError
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.roster import DesiredState, Presence, Roster
from streaming.errors import BadInput, StreamingError

KEEP_EVERY_S = 10.0
"""How often the lake is asked to keep rows for students that have not begun."""

log = logging.getLogger(__name__)


class Run(Protocol):
    """Interface of a live run for a reconciler, implemented by `LiveRun`."""

    config: Config

    @property
    def lake_rows(self) -> int: ...
    @property
    def draining(self) -> bool: ...
    def has_worker(self, name: str) -> bool: ...
    def has_failed(self, name: str) -> bool: ...
    def keep_rows_for(self, name: str) -> None: ...
    def spawn(self, student: dict[str, Any]) -> None: ...
    def pause(self, name: str) -> None: ...
    def resume(self, name: str) -> None: ...
    def retire(self, name: str) -> None: ...


class RosterReconciler:
    """Brings a live run in line with its roster, and answers every desired state."""

    def __init__(self, roster: Roster, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roster = roster
        self._started: set[str] = set()  # students with `joins_at_rows`
        self._logged: dict[str, str] = {}
        self._kept_at: float | None = None

    def reconcile(self, run: Run) -> None:
        """Start students that are due, and fulfil open requests. A wish that the run cannot grant is refused with
        the reason, and nothing has changed."""
        self._start_due(run)
        for name in self._roster.names:
            with self._logging_errors(name):  # a damaged file of one student does not hold up the others
                if (desired := self._roster.desired(name)) is not None and not self._roster.answered(desired):
                    self._answer(run, desired)

    def _answer(self, run: Run, desired: DesiredState) -> None:
        try:
            words = _grant(run, desired)
        except (StreamingError, ModelError, OSError) as error:
            log.warning("%s is refused: %s", desired.name, error)
            self._roster.answer(desired, str(error), refused=True)
        else:
            self._roster.answer(desired, words)
            log.info("%s: %s", desired.name, words)

    def _start_due(self, run: Run) -> None:
        """Start the students of the config whose `joins_at_rows` the lake has reached; keep rows for the others."""
        late = [s for s in run.config.students if s.joins_at_rows and s.name not in self._started]
        now = self._clock()
        keep = self._kept_at is None or now - self._kept_at >= KEEP_EVERY_S
        for student in late:
            with self._logging_errors(f"starting {student.name}"):
                if run.lake_rows < student.joins_at_rows and not run.draining:
                    if keep:
                        run.keep_rows_for(student.name)
                        self._kept_at = now
                    continue
                stands = self._roster.stands(student.name)
                paused = stands is not None and stands.wanted is Presence.PAUSED
                if not run.has_worker(student.name) and not paused:
                    run.resume(student.name)
                    log.info("%s joins", student.name)
                self._started.add(student.name)

    @contextmanager
    def _logging_errors(self, doing: str) -> Iterator[None]:
        """A request that fails does not end the run: its error is logged once, and it is tried again next time."""
        try:
            yield
        except (StreamingError, OSError) as error:
            if self._logged.get(doing) != str(error):
                self._logged[doing] = str(error)
                log.error("%s: %s", doing, error)


def _grant(run: Run, desired: DesiredState) -> str:
    name = desired.name
    known = name in {student.name for student in run.config.students}
    if desired.wanted is Presence.RUNNING:
        if run.has_worker(name) and not run.has_failed(name):
            return f"`{name}` is in the run"
        if known:
            run.resume(name)
            return f"`{name}` goes on from its checkpoint"
        if desired.section is None:
            raise BadInput(f"no student of the run is named `{name}`; spawn it first")
        run.spawn(desired.section)
        return f"`{name}` joined"
    if desired.wanted is Presence.PAUSED:
        if run.has_worker(name):
            run.pause(name)
        elif not known:
            raise BadInput(f"no student of the run is named `{name}`")
        return f"`{name}` is paused; the lake keeps its rows for `lake.reader_expiry_s`"
    if known:
        run.retire(name)
    return f"`{name}` has left; its checkpoints and exports stay"


def with_roster(config: Config, roster: Roster) -> Config:
    """The run's config with students that were spawned, and without those retired.

    Raises BadInput where a section no longer fits.
    """
    students = {student.name: student.model_dump(mode="json") for student in config.students}
    had = dict(students)
    for desired in roster.standing:
        if desired.wanted is Presence.RETIRED:
            students.pop(desired.name, None)
        elif desired.section is not None:
            students.setdefault(desired.name, desired.section)
    if students == had:
        return config
    return config.having(list(students.values()))
