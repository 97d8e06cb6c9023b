"""Pure decisions. Nothing here acts, waits or looks anything up: the coordinator and the workers do that.

>>> after_death([0.0], now=1.0, max_restarts=2, window_s=60.0)
Restart(delay_s=0.5)
>>> after_death([0.0, 1.0, 2.0], now=2.0, max_restarts=2, window_s=60.0).reason
'it died 3 times within 60 s; 2 restarts are allowed (resources.max_restarts)'
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


@dataclass(frozen=True)
class Restart:
    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    reason: str


def after_death(deaths: list[float], now: float, max_restarts: int, window_s: float) -> Restart | GiveUp:
    """What to do about a worker that died, given when it died before (this time included)."""
    recent = [t for t in deaths if now - t <= window_s]
    if len(recent) > max_restarts:
        return GiveUp(
            f"it died {len(recent)} times within {window_s:g} s; {max_restarts} restarts are allowed "
            "(resources.max_restarts)"
        )
    return Restart(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (len(recent) - 1)))


@dataclass(frozen=True)
class Score:
    """Score the block with this snapshot version."""

    version: int


@dataclass(frozen=True)
class Wait:
    reason: str


@dataclass(frozen=True)
class WithoutTeacher:
    """Write null logits."""

    reason: str


def lockstep_version(block: int, lag: int) -> int:
    """The snapshot that scores block `block`. Version v has learned the blocks 0 … v-1; version 0 is the initial one.

    >>> [lockstep_version(block, lag=2) for block in range(5)]
    [0, 0, 1, 2, 3]
    """
    return max(0, block - lag + 1)


def snapshot_for(
    *,
    newest: int | None,
    newest_age_s: float,
    rows_since_newest: int,
    catching_up: bool,
    max_rows_ahead: int,
    max_age_s: float | None,
) -> Score | Wait | WithoutTeacher:
    """Free pace: which snapshot scores the next block.

    While catching up, rows wait for a snapshot that is not too many rows old, or history would be scored by the first
    one throughout. Live, nothing waits: a dead teacher stops neither the lake nor the students.
    """
    if newest is None:
        return Wait("the teacher has not published its first snapshot yet") if catching_up else WithoutTeacher("none")
    if catching_up and rows_since_newest > max_rows_ahead:
        return Wait(f"{rows_since_newest} rows past snapshot {newest}; {max_rows_ahead} are allowed while catching up")
    if max_age_s is not None and not catching_up and newest_age_s > max_age_s:
        return WithoutTeacher(f"snapshot {newest} is {newest_age_s:.0f} s old; {max_age_s:g} s are allowed")
    return Score(newest)
