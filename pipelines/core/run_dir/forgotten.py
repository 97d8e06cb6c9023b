"""Ids that a run was asked to forget (`exfm forget`).

    forgotten.json    {requests: [{number, table, id, rows, columns, asked_at}], at: {worker: {number: position}},
                       removed: {number: [keys, entries]}}

A worker writes down at which position it forgets before it does: one that starts again from an earlier checkpoint
forgets at the same position, so it learns what it would have learned. A position is a worker's own: the first
`lake_seq` of what a student learns next, the number of a teacher's next block; of the augmentation worker, whose as-of
features forget, an event time (ms): rows shown from then on know nothing of the id. The file is read when it changes.

One that learns the run's rows beside its worker (a further teacher, a candidate, a retraining) forgets at the position
of that worker, or at its next one where it is past it; it records that in a file in its own folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.core.run_dir.paths import RunDir
from streaming.asof.forgotten import RemovedCounts
from streaming.errors import DataLost, StreamingError
from streaming.store.files import make_folder, read_json, write_json
from streaming.store.lock import file_lock

LOCK_WAIT_S = 10.0


class ForgetRequest(BaseModel):
    """A request to forget one id of a table, in every model that has the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1, description="of the run's requests, in order")
    table: str = Field(description="an embedding table: the name of its feature")
    id: str | None = Field(description="the raw id, as text; null: it is a person's, who is erased")
    rows: dict[str, list[int]] = Field(
        default_factory=dict, description="in place of an id, by worker: ids of its table"
    )
    columns: tuple[str, ...] = Field(
        default=(), description="of rows, which the table's ids come from: as-of features forget what they know of it"
    )
    asked_at: str = Field(description="UTC, ISO 8601")


class Forgotten(BaseModel):
    """The record. `at`: by worker, the positions at which requests were done, by their number; `removed`: by number,
    what as-of features lost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: tuple[ForgetRequest, ...] = ()
    at: dict[str, dict[int, int]] = Field(default_factory=dict)
    removed: dict[int, RemovedCounts] = Field(default_factory=dict)


def forgotten(run_dir: RunDir) -> Forgotten:
    """The record. Raises DataLost where it is damaged: what it asks may not be passed over."""
    value: Any = read_json(run_dir.forgotten)
    try:
        return Forgotten() if value is None else Forgotten.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise DataLost(
            f"{run_dir.forgotten} is damaged ({first['msg']}); put it back from a copy of the run directory, or delete "
            "it and ask for every id again"
        ) from None


def ask_to_forget(
    run_dir: RunDir,
    table: str,
    id: str | None,
    rows: Mapping[str, list[int]] | None = None,
    columns: Sequence[str] = (),
) -> ForgetRequest:
    """Request that the run forgets an id, or `rows` of the table by worker, durable on return. `columns`: those that
    as-of features forget the id of."""
    with _alone(run_dir):
        record = forgotten(run_dir)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        number = len(record.requests) + 1
        request = ForgetRequest(
            number=number, table=table, id=id, rows=dict(rows or {}), columns=tuple(columns), asked_at=at
        )
        _write(run_dir, record.model_copy(update={"requests": (*record.requests, request)}))
    return request


def note_forgotten(run_dir: RunDir, worker: str, numbers: Sequence[int], position: int) -> None:
    """Record, durably, that a worker forgets at this position. What it recorded before stands."""
    with _alone(run_dir):
        record = forgotten(run_dir)
        own = dict.fromkeys(numbers, position) | record.at.get(worker, {})
        _write(run_dir, record.model_copy(update={"at": record.at | {worker: own}}))


def note_removed(run_dir: RunDir, removed: Mapping[int, RemovedCounts]) -> None:
    """Record, durably, what as-of features lost by requests of these numbers. What was recorded before stands."""
    with _alone(run_dir):
        record = forgotten(run_dir)
        _write(run_dir, record.model_copy(update={"removed": dict(removed) | record.removed}))


def forget_anew(run_dir: RunDir, worker: str, after: int) -> None:
    """Let a worker whose positions are set back to `after` come again to the requests that it was to do behind it."""
    with _alone(run_dir):
        record = forgotten(run_dir)
        if worker in record.at:
            own = {number: position for number, position in record.at[worker].items() if position <= after}
            again = record.at[worker].keys() - own.keys()
            removed = {number: counts for number, counts in record.removed.items() if number not in again}
            _write(run_dir, record.model_copy(update={"at": record.at | {worker: own}, "removed": removed}))


def take_places(run_dir: RunDir, beside: RunDir, begin: Mapping[str, int]) -> None:
    """Record where workers have forgotten that take the place of a run's, and from where on they learn, `begin`: there
    they forget what they have not come to."""
    with _alone(run_dir):
        record, theirs = forgotten(run_dir), forgotten(beside).at
        at = {
            worker: {number: theirs.get(worker, {}).get(number, max(was, first)) for number, was in own.items()}
            for worker, first in begin.items()
            if (own := record.at.get(worker))
        }
        _write(run_dir, record.model_copy(update={"at": record.at | at}))


def _write(run_dir: RunDir, record: Forgotten) -> None:
    write_json(run_dir.forgotten, record.model_dump(mode="json"))


@contextmanager
def _alone(run_dir: RunDir) -> Iterator[None]:
    """Hold the lock of requests. Raises StreamingError where others held it for too long."""
    make_folder(run_dir.root)
    with file_lock(run_dir.forgotten.with_suffix(".lock"), wait_s=LOCK_WAIT_S) as held:
        if not held:
            raise StreamingError(f"another process has held {run_dir.forgotten.name}'s lock for {LOCK_WAIT_S:g} s")
        yield
