"""What a student's gain over its twin amounts to: gained, lost, or not to be told."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """The verdict on one student and task. The first two say that its difference from the twin is more than noise."""

    GAINED = "gained"
    LOST = "lost"
    UNDECIDED = "undecided"
    TOO_FEW = "too few"
    NO_TWIN = "no twin"


def outcome_of(gain: Mapping[str, Any] | None) -> Outcome:
    """The outcome that a `gain` of summary.json stands for: {low, high, …} in % of the twin's NE, above 0 is good.

    `low` is None where there is too little to tell; the gain itself is None where there is no twin.

    >>> [str(outcome_of({"low": low, "high": high})) for low, high in ((0.2, 1.4), (-2.0, -0.1), (-1.0, 1.0))]
    ['gained', 'lost', 'undecided']
    >>> str(outcome_of({"low": None, "high": None})), str(outcome_of(None))
    ('too few', 'no twin')
    """
    if gain is None:
        return Outcome.NO_TWIN
    if gain["low"] is None:
        return Outcome.TOO_FEW
    if gain["low"] > 0:
        return Outcome.GAINED
    return Outcome.LOST if gain["high"] < 0 else Outcome.UNDECIDED
