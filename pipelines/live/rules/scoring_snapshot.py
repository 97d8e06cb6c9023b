"""Choice of the snapshot that scores a block: in lockstep one that has learned none of its labels, else the newest.

Nothing scores the blocks before the first snapshot: a teacher that has learned nothing has nothing to say of a row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Score the block with this snapshot version."""

    version: int


@dataclass(frozen=True)
class Wait:
    reason: str


@dataclass(frozen=True)
class WithoutTeacher:
    """Write null logits. `stale`: since the teacher is too far behind, and not since it has only just begun."""

    reason: str
    stale: bool = True


NOTHING_LEARNED = WithoutTeacher("the teacher has learned nothing yet", stale=False)


def lockstep_version(block: int, lag: int, behind: int = 0, first: int = 1) -> int | None:
    """The snapshot that scores block `block`; None before the first. Version v has learned the blocks 0 … v-1.
    `behind`: in a what-if, a snapshot that is this many blocks older. `first`: the first version that is trained; 0 of
    a teacher that begins trained.

    >>> [lockstep_version(block, lag=2) for block in range(5)]
    [None, None, 1, 2, 3]
    >>> [lockstep_version(block, lag=2, first=0) for block in range(5)]
    [0, 0, 1, 2, 3]
    """
    version = block - lag + 1 - behind
    if first == 0:
        version = max(version, 0)
    return version if version >= first else None


def snapshot_for(
    *,
    newest: int | None,
    newest_age_s: float,
    rows_since_newest: int,
    catching_up: bool,
    max_rows_ahead: int,
    max_age_s: float | None,
    teacher_gone: bool = False,
) -> Score | Wait | WithoutTeacher:
    """Choose the snapshot for the next block in free pace; `newest`: None before the first.

    While catching up, rows wait for a snapshot that is not too many rows old, or history would be scored by the first
    one throughout. The teacher makes the first one of rows that nothing has scored, so as many may come before it.
    Live, nothing waits, nor for a teacher that has given up: it stops neither lake nor students.
    """
    catching_up = catching_up and not teacher_gone
    if catching_up and rows_since_newest > max_rows_ahead:
        past = "without a first snapshot" if newest is None else f"past snapshot {newest}"
        return Wait(f"{rows_since_newest} rows {past}; {max_rows_ahead} are allowed while catching up")
    if newest is None:
        return NOTHING_LEARNED
    if max_age_s is not None and not catching_up and newest_age_s > max_age_s:
        return WithoutTeacher(f"snapshot {newest} is {newest_age_s:.0f} s old; {max_age_s:g} s are allowed")
    return Score(newest)
