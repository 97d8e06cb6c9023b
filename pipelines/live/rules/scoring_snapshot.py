"""Choice of the snapshot that scores a block: in lockstep one that has learned none of its labels, else the newest."""

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
    """Write null logits."""

    reason: str


def lockstep_version(block: int, lag: int, behind: int = 0) -> int:
    """The snapshot that scores block `block`. Version v has learned the blocks 0 … v-1; version 0 is the initial one.
    `behind`: in a what-if, a snapshot that is this many blocks older.

    >>> [lockstep_version(block, lag=2) for block in range(5)]
    [0, 0, 1, 2, 3]
    """
    return max(0, block - lag + 1 - behind)


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
    """Choose the snapshot for the next block in free pace.

    While catching up, rows wait for a snapshot that is not too many rows old, or history would be scored by the first
    one throughout. Live, nothing waits, nor for a teacher that has given up: it stops neither lake nor students.
    """
    catching_up = catching_up and not teacher_gone
    if newest is None:
        return Wait("the teacher has not published its first snapshot yet") if catching_up else WithoutTeacher("none")
    if catching_up and rows_since_newest > max_rows_ahead:
        return Wait(f"{rows_since_newest} rows past snapshot {newest}; {max_rows_ahead} are allowed while catching up")
    if max_age_s is not None and not catching_up and newest_age_s > max_age_s:
        return WithoutTeacher(f"snapshot {newest} is {newest_age_s:.0f} s old; {max_age_s:g} s are allowed")
    return Score(newest)
