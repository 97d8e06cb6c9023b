"""The states a run and a worker can be in, and the legal ways between them.

run:     starting -> running -> draining -> done
             |          |          |
             +----------+----------+--> stopped   (asked to; resumable)
             +----------+----------+--> failed    (with a reason; resumable once it is mended)

worker:  starting -> running -> done
             ^          |
             +- restarting <- (died)          failed, when policy gives up on it; it may be the run's end (kinds.py)

         whichever state it is in, a worker that may leave the run can be retired
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)


class RunState(StrEnum):
    STARTING = "starting"  # broker, topics and workers are being started
    RUNNING = "running"  # rows flow
    DRAINING = "draining"  # the source has ended; what is on the way is worked off
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class WorkerState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    DONE = "done"
    FAILED = "failed"
    RETIRED = "retired"  # has left the run


ENDED = (RunState.DONE, RunState.FAILED, RunState.STOPPED)
AT_REST = {WorkerState.DONE, WorkerState.FAILED, WorkerState.RETIRED}


_ENDS = {RunState.STOPPED, RunState.FAILED}
RUN_TRANSITIONS: dict[RunState, set[RunState]] = {
    RunState.STARTING: {RunState.RUNNING} | _ENDS,
    RunState.RUNNING: {RunState.DRAINING, RunState.DONE} | _ENDS,
    RunState.DRAINING: {RunState.DONE} | _ENDS,
    RunState.DONE: set(),
    RunState.FAILED: set(),
    RunState.STOPPED: set(),
}
_LEAVES = {WorkerState.RETIRED}
_DIES = {WorkerState.RESTARTING, WorkerState.FAILED}
WORKER_TRANSITIONS: dict[WorkerState, set[WorkerState]] = {
    WorkerState.STARTING: {WorkerState.RUNNING, WorkerState.DONE} | _DIES | _LEAVES,
    WorkerState.RUNNING: {WorkerState.DONE} | _DIES | _LEAVES,
    WorkerState.RESTARTING: {WorkerState.STARTING, WorkerState.FAILED} | _LEAVES,
    WorkerState.DONE: _LEAVES,
    WorkerState.FAILED: _LEAVES,
    WorkerState.RETIRED: set(),
}


def moved(current: S, target: S, transitions: dict[S, set[S]]) -> S:
    """`target`, if it may follow `current`; staying is always allowed.

    >>> moved(RunState.RUNNING, RunState.DRAINING, RUN_TRANSITIONS)
    <RunState.DRAINING: 'draining'>
    """
    if target is not current and target not in transitions[current]:
        raise AssertionError(f"{current} may not become {target}, only {sorted(transitions[current])}")
    return target
