"""Restarts of workers and brokers that died: whether, and when.

>>> after_death([0.0], now=1.0, max_restarts=2, window_s=60.0)
Restart(delay_s=0.5)
>>> after_death([0.0, 1.0, 2.0], now=2.0, max_restarts=2, window_s=60.0).reason
'it died 3 times within 60 s; 2 restarts are allowed (resources.max_restarts)'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipelines.core.config.sections import Resources

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LONGEST_WAIT_S = 15.0
"""The longest pause between two tries while a broker is away, a disk is full or a lock is held."""
STARTS_S = 60.0
"""The longest start after which a worker finds that the same is still so."""
WELL_S = 30.0


class Cause(StrEnum):
    """Cause of death of a worker or the broker, as far as it decides the reaction."""

    CRASH = "crash"
    BROKER_AWAY = "broker away"
    DISK_FULL = "disk full"
    STILL_HELD = "still held"
    """By the one that it replaces, whose machine is out of reach, or which has not ended yet."""
    MISTAKE = "mistake"
    """The caller's, in the config or in what it names: trying again changes nothing before it is mended."""
    PERMANENT = "permanent"
    """Trying again changes nothing: data that are gone for good, a model that diverged."""


@dataclass(frozen=True)
class Death:
    at_s: float
    cause: Cause
    words: str


@dataclass(frozen=True)
class Patience:
    """Tolerance for each cause; field names are those of the config."""

    max_restarts: int
    restart_window_s: float
    give_up_s: float
    disk_give_up_s: float

    @staticmethod
    def of(resources: Resources, give_up_s: float) -> Patience:
        """`give_up_s` is Kafka's."""
        return Patience(resources.max_restarts, resources.restart_window_s, give_up_s, resources.disk_give_up_s)


@dataclass(frozen=True)
class Restart:
    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    reason: str


def verdict(deaths: Sequence[Death], now: float, patience: Patience) -> Restart | GiveUp:
    """Decide on the reaction to a death, given all relevant deaths (this one included, last).

    Crashes are counted within a window. A broker that is away, a full disk or a predecessor that still holds its lock
    is not the worker's fault: however often the worker dies of it, it is restarted until the cause has lasted too long.
    """
    last = deaths[-1]
    if last.cause in (Cause.MISTAKE, Cause.PERMANENT):
        return GiveUp(last.words)
    if last.cause is Cause.CRASH:
        crashes = [death.at_s for death in deaths if death.cause is Cause.CRASH]
        decision = after_death(crashes, now, patience.max_restarts, patience.restart_window_s)
    elif last.cause is Cause.BROKER_AWAY:
        words = "the broker has been away for {:.0f} s; {:g} s are allowed (kafka.give_up_s): bring it back, and resume"
        decision = while_it_lasts(series(deaths, patience.give_up_s), now, patience.give_up_s, words)
    elif last.cause is Cause.STILL_HELD:
        words = "it was held for {:.0f} s; {:g} s are allowed (resources.restart_window_s)"
        decision = while_it_lasts(series(deaths, patience.restart_window_s), now, patience.restart_window_s, words)
    else:
        words = (
            "the disk has been full for {:.0f} s; {:g} s are allowed (resources.disk_give_up_s): free some, and resume"
        )
        decision = while_it_lasts(series(deaths, patience.disk_give_up_s), now, patience.disk_give_up_s, words)
    return GiveUp(f"{decision.reason}: {last.words}") if isinstance(decision, GiveUp) else decision


def series(deaths: Sequence[Death], gap_s: float) -> list[float]:
    """Times of consecutive deaths from the last cause, without gaps longer than `gap_s`, or a wait
    and a start.

    >>> away = [Death(t, Cause.BROKER_AWAY, "") for t in (0.0, 400.0, 410.0)]
    >>> series(away, gap_s=300.0)
    [400.0, 410.0]
    """
    gap_s = max(gap_s, LONGEST_WAIT_S + STARTS_S)
    times = [deaths[-1].at_s]
    for death in reversed(deaths[:-1]):
        if death.cause is not deaths[-1].cause or times[0] - death.at_s > gap_s:
            break
        times.insert(0, death.at_s)
    return times


def still_counting(deaths: Sequence[Death], well_s: float, disk_has_room: bool) -> list[Death]:
    """Deaths that still count after `well_s` of healthy work. Crashes count as long as their window says; a disk
    must have room too, since a worker may go for long without writing anything."""
    if well_s < WELL_S:
        return list(deaths)
    over = {Cause.BROKER_AWAY, Cause.STILL_HELD} | ({Cause.DISK_FULL} if disk_has_room else set())
    return [death for death in deaths if death.cause not in over]


def while_it_lasts(tries: Sequence[float], now: float, patience_s: float, words: str) -> Restart | GiveUp:
    """Retry at growing intervals, until `patience_s` have passed since the first time."""
    if now - tries[0] > patience_s:
        return GiveUp(words.format(now - tries[0], patience_s))
    return Restart(min(LONGEST_WAIT_S, FIRST_DELAY_S * 2 ** min(len(tries) - 1, 10)))


def after_death(deaths: list[float], now: float, max_restarts: int, window_s: float) -> Restart | GiveUp:
    """Decide on the reaction to a crash, given the times of all crashes (this one included)."""
    recent = [t for t in deaths if now - t <= window_s]
    if len(recent) > max_restarts:
        return GiveUp(
            f"it died {len(recent)} times within {window_s:g} s; {max_restarts} restarts are allowed "
            "(resources.max_restarts)"
        )
    return Restart(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (len(recent) - 1)))
