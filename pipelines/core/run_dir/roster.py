"""Roster of a run: a desired state for each student beyond the config, and its outcome.

    <run>/students/NAME/wish.json       what is to be: written by whoever asks, whether or not the run lives
    <run>/students/NAME/outcome.json    what came of it: written by the run alone, as granted.json, the last one granted

A wish says how things are to be, not what to do. It may be asked twice, read again after a crash of either side, and
answered again: the same comes of it. Both files are moved into place whole. One process at a time asks: what it looked
at before holds until it has asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streaming.errors import BadInput, StreamingError
from streaming.store.files import make_folder, read_json, write_json
from streaming.store.lock import file_lock

LOCK_WAIT_S = 60.0
"""A spawn copies the checkpoint that it starts from while it holds the lock."""


class Presence(StrEnum):
    """Desired presence of a student."""

    RUNNING = "running"
    PAUSED = "paused"  # it learns nothing; the lake keeps its rows, as long as a silent reader's are kept
    RETIRED = "retired"  # it has left the run; its checkpoints and exports stay


class DesiredState(BaseModel):
    """Desired state of one student, and its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    number: int = Field(ge=1, description="of this student's wishes, in order")
    wanted: Presence
    section: dict[str, Any] | None = Field(description="the student's section of the config; null: the config has it")
    asked_at: str = Field(description="UTC, ISO 8601")


class RequestOutcome(BaseModel):
    """Outcome of a request for a desired state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1, description="of the wish")
    asked_at: str | None = Field(default=None, description="of the wish: two machines may have given one number")
    refused: bool
    words: str
    at: str = Field(description="UTC, ISO 8601")

    def answers(self, desired: DesiredState) -> bool:
        return self.number == desired.number and self.asked_at in (None, desired.asked_at)


class Roster:
    """The desired states of the run in `root`.

    >>> import tempfile
    >>> roster = Roster(Path(tempfile.mkdtemp()))
    >>> desired = roster.ask("late", Presence.RUNNING, {"name": "late"})
    >>> roster.ask("late", Presence.RUNNING, {"name": "late"}) == desired  # asked twice
    True
    >>> roster.answer(desired, "it joined")
    >>> [(w.name, w.number) for w in roster.open], roster.outcome("late").words
    ([], 'it joined')
    >>> roster.ask("late", Presence.PAUSED).section
    {'name': 'late'}
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "students"

    @contextmanager
    def writing(self) -> Iterator[RosterWriter]:
        """Lock the roster for reading and requesting. Raises StreamingError where somebody else writes for longer
        than `LOCK_WAIT_S`."""
        make_folder(self.folder)
        with file_lock(self.folder / ".lock", wait_s=LOCK_WAIT_S) as held:
            if not held:
                raise StreamingError(f"another process has held {self.folder}/.lock for {LOCK_WAIT_S:g} s; try again")
            yield RosterWriter(self)

    def ask(
        self, name: str, wanted: Presence, section: dict[str, Any] | None = None, *, again: bool = False
    ) -> DesiredState:
        """Request a desired state, like `RosterWriter.ask`, without reading first. Raises as `writing` does."""
        with self.writing() as writing:
            return writing.ask(name, wanted, section, again=again)

    def answer(self, desired: DesiredState, words: str, *, refused: bool = False) -> None:
        """Record the outcome of a request. Only the run does."""
        if not refused:
            write_json(self.place(desired.name) / "granted.json", desired.model_dump(mode="json"))
        outcome = RequestOutcome(
            number=desired.number, asked_at=desired.asked_at, refused=refused, words=words, at=_now()
        )
        write_json(self.place(desired.name) / "outcome.json", outcome.model_dump(mode="json"))

    def desired(self, name: str) -> DesiredState | None:
        return self._read(self.place(name) / "wish.json", DesiredState)

    def outcome(self, name: str) -> RequestOutcome | None:
        """Outcome of this student's last answered request."""
        return self._read(self.place(name) / "outcome.json", RequestOutcome)

    @property
    def names(self) -> list[str]:
        """Students with a desired state."""
        return sorted(path.name for path in self.folder.glob("*/")) if self.folder.exists() else []

    @property
    def desired_states(self) -> list[DesiredState]:
        """The last request for every student, by name."""
        return [desired for desired in map(self.desired, self.names) if desired is not None]

    @property
    def open(self) -> list[DesiredState]:
        """Requests without an outcome."""
        return [desired for desired in self.desired_states if not self.answered(desired)]

    def stands(self, name: str) -> DesiredState | None:
        """The valid desired state of this student: its last request, or if that was refused the one accepted before."""
        desired, outcome = self.desired(name), self.outcome(name)
        if desired is not None and outcome is not None and outcome.answers(desired) and outcome.refused:
            accepted: DesiredState | None = self._read(self.place(name) / "granted.json", DesiredState)
            return accepted
        return desired

    @property
    def standing(self) -> list[DesiredState]:
        """The valid desired state of every student."""
        return [desired for desired in map(self.stands, self.names) if desired is not None]

    @property
    def paused(self) -> set[str]:
        return {desired.name for desired in self.standing if desired.wanted is Presence.PAUSED}

    def forget(self, name: str) -> None:
        """Delete all requests for this student."""
        shutil.rmtree(self.place(name), ignore_errors=True)

    def start(self, name: str) -> Path:
        """Link to the checkpoint that this student starts from, if it starts from another student's."""
        return self.place(name) / "start"

    def place(self, name: str) -> Path:
        """Folder of this student's requests."""
        return self.folder / name

    def answered(self, desired: DesiredState) -> bool:
        outcome = self.outcome(desired.name)
        return outcome is not None and outcome.answers(desired)

    def _read(self, path: Path, kind: type[Any]) -> Any:
        value = read_json(path)
        if value is None:
            return None
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise BadInput(f"{path} is damaged ({where}: {first['msg']}); delete it, and ask again") from None


class RosterWriter:
    """Records requests while the roster's lock is held."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def ask(
        self, name: str, wanted: Presence, section: dict[str, Any] | None = None, *, again: bool = False
    ) -> DesiredState:
        """Request a desired state, durable on return; without a `section` the student keeps its earlier one, if any.
        What is wished already, and was not refused, is not wished again, but for `again`.
        """
        roster, before = self._roster, self._roster.desired(name)
        if section is None:
            stands = roster.stands(name) or before
            section = None if stands is None else stands.section
        if before is not None and not again and (before.wanted, before.section) == (wanted, section):
            outcome = roster.outcome(name)
            if outcome is None or not outcome.answers(before) or not outcome.refused:
                return before
        number = 1 if before is None else before.number + 1
        desired = DesiredState(name=name, number=number, wanted=wanted, section=section, asked_at=_now())
        make_folder(roster.place(name))
        write_json(roster.place(name) / "wish.json", desired.model_dump(mode="json"))
        return desired


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
