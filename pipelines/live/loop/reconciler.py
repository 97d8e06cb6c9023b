"""Reconciliation of a live run with its roster: the changes that bring every student to its desired state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.roster import DesiredState, Presence, Roster
from pipelines.live.rules.states import WorkerState
from streaming.errors import StreamingError

KEEP_EVERY_S = 10.0
"""How often the lake is asked to keep rows for students that have not begun."""

log = logging.getLogger(__name__)


class ChangeKind(StrEnum):
    """Change of a student in a run."""

    NONE = "none"
    REFUSE = "refuse"
    SPAWN = "spawn"  # it joins with its section of the config
    RESUME = "resume"  # a student of the config is started
    PAUSE = "pause"
    RETIRE = "retire"
    KEEP_ROWS = "keep rows"  # it joins later


@dataclass(frozen=True)
class Change:
    """One change. `desired`: the request that it answers, with `words`; None if the config asks for it."""

    name: str
    kind: ChangeKind
    words: str
    desired: DesiredState | None = None


def change_for(desired: DesiredState, *, in_config: bool, worker: WorkerState | None) -> Change:
    """Choose the change that leads to a desired state. `worker`: the state of its worker in the run, if it has one.

    >>> late = DesiredState(name="late", number=1, wanted="running", section={"name": "late"}, asked_at="")
    >>> change_for(late, in_config=False, worker=None).kind
    <ChangeKind.SPAWN: 'spawn'>
    >>> change_for(late, in_config=True, worker=WorkerState.RUNNING).words
    '`late` is in the run'
    """
    name, present = desired.name, worker not in (None, WorkerState.RETIRED)

    def change(kind: ChangeKind, words: str) -> Change:
        return Change(name, kind, words, desired)

    if desired.wanted is Presence.RUNNING:
        if present and worker is not WorkerState.FAILED:
            return change(ChangeKind.NONE, f"`{name}` is in the run")
        if in_config:
            return change(ChangeKind.RESUME, f"`{name}` goes on from its checkpoint")
        if desired.section is None:
            return change(ChangeKind.REFUSE, f"no student of the run is named `{name}`; spawn it first")
        return change(ChangeKind.SPAWN, f"`{name}` joined")
    if desired.wanted is Presence.PAUSED:
        if not present and not in_config:
            return change(ChangeKind.REFUSE, f"no student of the run is named `{name}`")
        words = f"`{name}` is paused; the lake keeps its rows for `lake.reader_expiry_s`"
        return change(ChangeKind.PAUSE if present else ChangeKind.NONE, words)
    words = f"`{name}` has left; its checkpoints and exports stay"
    return change(ChangeKind.RETIRE if in_config else ChangeKind.NONE, words)


class RosterReconciler:
    """Compares a live run with its roster, and answers every request once its change was made, or refused."""

    def __init__(self, roster: Roster, clock: Callable[[], float] = time.monotonic) -> None:
        self._roster, self._clock = roster, clock
        self._started: set[str] = set()  # students with `joins_at_rows`
        self._logged: dict[str, str] = {}
        self._rows_kept_at = float("-inf")

    def changes(
        self, config: Config, workers: Mapping[str, WorkerState], lake_rows: int, *, stream_ended: bool
    ) -> list[Change]:
        """All open changes: students of the config that are due, then requests. `workers`: by student, the state of
        its worker."""
        due = list(self._due(config, workers, lake_rows, stream_ended))
        started = {change.name: WorkerState.STARTING for change in due if change.kind is ChangeKind.RESUME}
        return [*due, *self._requested(config, {**workers, **started})]

    def answer(self, change: Change, error: Exception | None = None) -> None:
        """Record that a change was made; with `error`, that it was not, which does not end the run."""
        with self._logging_errors(change.name):
            if change.desired is None:
                self._record_start(change, error)
            elif error is not None or change.kind is ChangeKind.REFUSE:
                reason = change.words if error is None else str(error)
                log.warning("%s is refused: %s", change.name, reason)
                self._roster.answer(change.desired, reason, refused=True)
            else:
                self._roster.answer(change.desired, change.words)
                log.info("%s: %s", change.name, change.words)

    def _record_start(self, change: Change, error: Exception | None) -> None:
        """A student of the config was started; where it could not be, it is due again at the next look."""
        if error is not None:
            raise error
        if change.kind is ChangeKind.RESUME:
            self._started.add(change.name)
            log.info("%s", change.words)

    def _requested(self, config: Config, workers: Mapping[str, WorkerState]) -> Iterator[Change]:
        of_config = {student.name for student in config.students}
        for name in self._roster.names:
            with self._logging_errors(name):  # a damaged file of one student does not hold up the others
                if (desired := self._roster.desired(name)) is not None and not self._roster.answered(desired):
                    yield change_for(desired, in_config=name in of_config, worker=workers.get(name))

    def _due(
        self, config: Config, workers: Mapping[str, WorkerState], lake_rows: int, stream_ended: bool
    ) -> Iterator[Change]:
        """Starts of students whose `joins_at_rows` the lake has reached; rows are kept for the others."""
        late = [s for s in config.students if s.joins_at_rows and s.name not in self._started]
        keep = self._clock() - self._rows_kept_at >= KEEP_EVERY_S
        for student in late:
            name = student.name
            if lake_rows < student.joins_at_rows and not stream_ended:
                if keep:
                    self._rows_kept_at = self._clock()
                    yield Change(name, ChangeKind.KEEP_ROWS, f"{name} joins at row {student.joins_at_rows:,}")
                continue
            with self._logging_errors(f"starting {name}"):
                stands = self._roster.stands(name)
                paused = stands is not None and stands.wanted is Presence.PAUSED
                if paused or workers.get(name, WorkerState.RETIRED) is not WorkerState.RETIRED:
                    self._started.add(name)
                else:
                    yield Change(name, ChangeKind.RESUME, f"{name} joins")

    @contextmanager
    def _logging_errors(self, doing: str) -> Iterator[None]:
        """A request that fails does not end the run: its error is logged once, and it is tried again next time."""
        try:
            yield
        except (StreamingError, OSError) as error:
            if self._logged.get(doing) != str(error):
                self._logged[doing] = str(error)
                log.error("%s: %s", doing, error)
