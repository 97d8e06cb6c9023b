"""Provenance of a student's bits beyond rows and settings: the software that learned each range of rows, and where
its tables grew. Kept in its checkpoints, so that a replay which verifies a student grows it at the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.live.training.machine import software

NAME = "past"


class Provenance:
    """`learned_by`: versions and machine, each from behind a `lake_seq` on. `grown`: behind which `lake_seq` the
    tables grew, and what they were made with before.

    >>> past = Provenance(None, position=-1)
    >>> past.grow(41, {"seed": 1})
    >>> past.meta()["past"]["grown"]
    [{'after': 41, 'was': {'seed': 1}}]
    >>> len(Provenance(past.meta(), position=99).learned_by)  # the same software goes on
    1
    """

    def __init__(self, meta: Mapping[str, Any] | None, position: int) -> None:
        """`meta`: of the checkpoint at `position`; None: the student begins there."""
        stored: Mapping[str, Any] = {"learned_by": [], "grown": []} if not meta else meta[NAME]
        self.learned_by: list[dict[str, Any]] = list(stored["learned_by"])
        self.grown: list[dict[str, Any]] = list(stored["grown"])
        entry = software()
        if not self.learned_by or {k: v for k, v in self.learned_by[-1].items() if k != "after"} != entry:
            self.learned_by.append({"after": position, **entry})

    def grow(self, position: int, was: Mapping[str, Any]) -> None:
        """Record that the tables grew at `position`; `was`: their earlier `made_with`."""
        self.grown.append({"after": position, "was": dict(was)})

    def meta(self) -> dict[str, Any]:
        return {NAME: {"learned_by": self.learned_by, "grown": self.grown}}
