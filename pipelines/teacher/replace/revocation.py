"""Revocation: versions of a teacher whose logits nobody is to learn from any more.

It is a withdrawal of the lake (streaming/lake/withdrawn.py). A live run's writer records it, at the row that it writes
next; where nothing runs, it is recorded at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, StreamingError
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.identifiers import LAKE_SEQ
from streaming.lake.reader import LakeReader
from streaming.lake.withdrawn import ASKED, Withdrawal, ask, record_asked, record_of
from streaming.store.lock import file_lock

WAIT_S = 60.0
"""How long a live run may take to record it."""
LOOK_S = 0.1


class Revoked(NamedTuple):
    """A recorded revocation, and how many rows of the lake those versions had scored."""

    withdrawal: Withdrawal
    rows: int


def revoke(
    run_dir: RunDir,
    config: Config,
    versions: str,
    why: str,
    *,
    live: bool,
    wait: Callable[[float], None] = time.sleep,
) -> Revoked:
    """Revoke versions, such as `12`, `12:15` or `12:`. `live`: whether the run's writer is there to record it.

    Raises BadInput where that is no range, or no row of the lake was scored by one of them; StreamingError where a live
    run does not record it."""
    first, last = versions_of(versions)
    lake = LakeReader(run_dir.lake, config.rows)
    scored = lake.read(columns=["teacher_version"], filter=pc.is_valid(pc.field("teacher_version"))).table
    version = scored["teacher_version"].to_numpy()
    rows = int(((version >= first) & (last is None or version <= last)).sum())
    if not rows:
        has = f"versions {version.min():,} to {version.max():,} scored its rows" if len(version) else "none scored any"
        raise BadInput(f"no row of {lake.path} was scored by version {versions} of the teacher: {has}")
    withdrawal = Withdrawal(kind="logits", first=first, last=last, why=why)
    return Revoked(recorded(run_dir, [withdrawal], live=live, wait=wait)[0], rows)


def recorded(
    run_dir: RunDir,
    withdrawals: Sequence[Withdrawal],
    *,
    live: bool,
    end: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> list[Withdrawal]:
    """The withdrawals with their position, once they are on record; `end`: those of logits without an end get one.
    Raises StreamingError where a live run does not do it."""
    beside, asked_at = run_dir.side_tables, {each.asked_at for each in withdrawals}
    with ExitStack() as stack:
        if not live and stack.enter_context(file_lock(run_dir.lock)):  # no run can start meanwhile
            record_asked(beside, next_row(run_dir))  # what a killed command has left
            ask(beside, withdrawals, end=end)
            return record_asked(beside, next_row(run_dir))
    ask(beside, withdrawals, end=end)
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        found = [each for each in record_of(beside) if each.asked_at in asked_at]
        if len(found) == len(asked_at) and not (beside / ASKED).exists():
            return found
        wait(LOOK_S)
    raise StreamingError(
        f"the live run has not recorded it within {WAIT_S:g} s; it will once augmentation goes on, or at its next "
        f"start. To take it back before, delete {beside / ASKED}"
    )


def next_row(run_dir: RunDir) -> int:
    """The `lake_seq` of the row that the lake gets next."""
    last = TableFiles(run_dir.lake).identifier(LAKE_SEQ)
    assert last is not None  # versions were found in it
    return last + 1


def versions_of(given: str) -> tuple[int, int | None]:
    """The first and last version of a range; None: it has no end.

    >>> versions_of("12"), versions_of("12:15"), versions_of("12:")
    ((12, 12), (12, 15), (12, None))
    >>> versions_of("15:12")
    Traceback (most recent call last):
    ...
    streaming.errors.BadInput: versions 15:12: the last comes before the first; write the first one first
    """
    found = re.fullmatch(r"(\d+)(:(\d*))?", given.strip())
    if found is None:
        raise BadInput(f"versions {given!r} are no range; write one version (12), two (12:15) or an open range (12:)")
    first = int(found[1])
    last = first if found[2] is None else int(found[3]) if found[3] else None
    if last is not None and last < first:
        raise BadInput(f"versions {given}: the last comes before the first; write the first one first")
    return first, last
