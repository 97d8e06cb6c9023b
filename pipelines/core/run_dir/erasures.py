"""Erasures of persons from a run: those that are done, and one that was begun.

erasures.json    [{number, asked_at, done_at, rows, ranges, learned, forgotten, removed}, …]
erasing.json     {erasure, salt, mark, ids}: one that was decided; its command completes it

    rows       how many were erased, by place
    ranges     which, by `lake_seq`: what was learned of them can no longer be compared
    learned    the last row that each model had learned by then
    forgotten  numbers of the requests to forget ids that came with it (forgotten.json)
    removed    checkpoints, snapshots, versions and pins that went

The record does not say whose rows they were. `mark` is a hash of the condition, keyed by `salt`, by which the command
that completes an erasure is known as the one that began it, and `ids` are of the person's impressions; the file goes
when it is done.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, DataLost
from streaming.program import command
from streaming.store.files import read_json, remove_file, write_json


class Erasure(BaseModel):
    """One erasure. `done_at` is None while it is not complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1, description="of the run's erasures, in order")
    asked_at: str = Field(description="UTC, ISO 8601")
    done_at: str | None = None
    rows: dict[str, int] = Field(description="by place")
    ranges: tuple[tuple[int, int], ...] = Field(description="first and last lake_seq")
    learned: dict[str, int] = Field(description="by worker: the last row it had learned")
    forgotten: tuple[int, ...] = ()
    removed: tuple[str, ...] = Field(default=(), description="paths below the run directory")


class BegunErasure(BaseModel):
    """An erasure that was decided and is not complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    erasure: Erasure
    salt: str
    mark: str
    ids: tuple[int | str, ...] = ()
    """Of the person's impressions."""

    @classmethod
    def of(cls, erasure: Erasure, condition: str, ids: Sequence[int | str]) -> BegunErasure:
        salt = secrets.token_hex(16)
        return cls(erasure=erasure, salt=salt, mark=_mark(salt, condition), ids=tuple(ids))

    def is_of(self, condition: str) -> bool:
        """True if it was begun with this condition."""
        return hmac.compare_digest(self.mark, _mark(self.salt, condition))


def _mark(salt: str, condition: str) -> str:
    return hmac.new(salt.encode(), condition.encode(), hashlib.sha256).hexdigest()


def now() -> str:
    """The time, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def erasures(run_dir: RunDir) -> list[Erasure]:
    """Complete erasures, first to last. Raises DataLost where the record is damaged."""
    try:
        return [Erasure.model_validate(value) for value in read_json(run_dir.erasures) or []]
    except ValidationError as error:
        raise _damaged(run_dir.erasures, error) from None


def never_learned(run_dir: RunDir, worker: str) -> int:
    """Number of erased rows of the lake that a model had not learned when they went."""
    count = 0
    for each in erasures(run_dir):
        beyond = each.learned.get(worker, -1)
        count += sum(max(0, last - max(first - 1, beyond)) for first, last in each.ranges)
    return count


def begun_erasure(run_dir: RunDir) -> BegunErasure | None:
    """The erasure that was decided and is not complete. Raises DataLost where its record is damaged."""
    value = read_json(run_dir.erasing)
    try:
        return None if value is None else BegunErasure.model_validate(value)
    except ValidationError as error:
        raise _damaged(run_dir.erasing, error) from None


def begin_erasure(run_dir: RunDir, begun: BegunErasure) -> None:
    """Decide an erasure: from here on the run can only complete it. Raises DiskFull."""
    write_json(run_dir.erasing, begun.model_dump(mode="json"))


def end_erasure(run_dir: RunDir, erasure: Erasure) -> Erasure:
    """Record that an erasure is complete, and when."""
    done = erasure.model_copy(update={"done_at": now()})
    before = erasures(run_dir)
    if all(each.number != done.number for each in before):
        write_json(run_dir.erasures, [each.model_dump(mode="json") for each in (*before, done)])
    remove_file(run_dir.erasing)
    return next((each for each in before if each.number == done.number), done)


def require_erased(run_dir: RunDir) -> None:
    """Raise BadInput where an erasure was begun and is not complete."""
    if (begun := begun_erasure(run_dir)) is not None:
        again = command("exfm", "forget", run_dir.root, "--where", "…", "--everywhere", "--yes")
        raise BadInput(
            f"erasure {begun.erasure.number} of {run_dir.root} was begun at {begun.erasure.asked_at} and is not "
            f"complete; the same command completes it: `{again}`, with the condition that it was begun with"
        )


def _damaged(path: object, error: ValidationError) -> DataLost:
    what = error.errors(include_url=False)[0]["msg"]
    return DataLost(f"{path} is damaged ({what}); put it back from a copy of the run directory")
