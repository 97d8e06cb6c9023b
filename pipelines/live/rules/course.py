"""Course of a run: its next state, from its own state, those of its workers, and what was asked for or broke."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import AT_REST, RunState, WorkerState


class WorkerView(Protocol):
    """Fields of a worker on which the course of its run depends."""

    name: str
    kind: Kind
    state: WorkerState
    reason: str | None
    cause: Cause | None


@dataclass(frozen=True)
class Move:
    """The run takes this state. `mistaken`, `permanent`: as `RunStatus` has them."""

    state: RunState
    reason: str | None = None
    mistaken: bool = False
    permanent: bool = False


@dataclass(frozen=True)
class Conclude:
    """Every worker is at rest and none has failed: only the results are left to do."""


def next_move(
    run: RunState,
    workers: Collection[WorkerView],
    *,
    pace: str,
    stream_ended: bool,
    stop_asked: str | None = None,
    broken: str | None = None,
) -> Move | Conclude | None:
    """Decide what becomes of a run that is not over; None: it stays as it is.

    A worker that has given up ends the run at once if the others need it; else the run fails when they are done.
    `broken`: why the broker, or what starts the workers, is gone for good.

    >>> next_move(RunState.RUNNING, [], pace="free", stream_ended=True)
    Move(state=<RunState.DRAINING: 'draining'>, reason=None, mistaken=False, permanent=False)
    >>> next_move(RunState.DRAINING, [], pace="free", stream_ended=True)
    Conclude()
    """
    failed = [worker for worker in workers if worker.state is WorkerState.FAILED]
    if needed := [worker for worker in failed if worker.kind.ends_run(pace)]:
        return _failure(needed[:1])
    if stop_asked is not None:
        return Move(RunState.STOPPED, stop_asked)
    if broken is not None:
        return Move(RunState.FAILED, broken)
    states = {worker.state for worker in workers}
    if run is RunState.STARTING:
        return None if WorkerState.STARTING in states else Move(RunState.RUNNING)
    if run is RunState.RUNNING and stream_ended:
        return Move(RunState.DRAINING)
    if not states <= AT_REST:
        return None
    return _failure(failed) if failed else Conclude()


def _failure(workers: Collection[WorkerView]) -> Move:
    """Failure of the run with these workers."""
    return Move(
        RunState.FAILED,
        "; ".join(f"{worker.name}: {worker.reason}" for worker in workers),
        mistaken=all(worker.cause is Cause.MISTAKE for worker in workers),
        permanent=any(worker.cause is Cause.PERMANENT for worker in workers),
    )
