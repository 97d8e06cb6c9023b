"""Aliases of a student's versions (champion, candidate, previous), and how a decision changes them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


def twin_version(version: str) -> str:
    """Name of the twin's version of the same moment.

    >>> twin_version("v00000640")
    'v00000640-twin'
    """
    return f"{version}-twin"


class Action(StrEnum):
    """Kind of a ledger entry."""

    PUBLISHED = "published"
    """A version is in the registry."""
    TRIAL = "trial"
    """A version is candidate: it is compared with the champion from here on."""
    REFUSED = "refused"
    """A version was not published: its export is not the model it was made of."""
    PROMOTED = "promoted"
    ENDED = "ended"
    """A comparison is over, and the champion stays."""
    ROLLED_BACK = "rolled back"
    WITHDRAWN = "withdrawn"
    """Nothing of this run is to be served."""


class Aliases(NamedTuple):
    """Versions by alias; None if unassigned."""

    candidate: str | None = None
    champion: str | None = None
    previous: str | None = None

    def after(self, action: Action, version: str | None = None) -> Aliases:
        """Apply an action to `version`.

        >>> Aliases(candidate="v2", champion="v1").after(Action.PROMOTED, "v2")
        Aliases(candidate=None, champion='v2', previous='v1')
        >>> Aliases(champion="v2", previous="v1").after(Action.ROLLED_BACK, "v1")
        Aliases(candidate=None, champion='v1', previous=None)
        """
        if action is Action.TRIAL:
            return self._replace(candidate=version)
        if action is Action.PROMOTED:
            return Aliases(None, version, self.champion if self.champion != version else self.previous)
        if action is Action.ROLLED_BACK:
            return Aliases(None, version, None)
        if action is Action.ENDED:
            return self._replace(candidate=None)
        if action is Action.WITHDRAWN:
            return Aliases()
        return self

    def as_json(self) -> dict[str, str | None]:
        return self._asdict()
