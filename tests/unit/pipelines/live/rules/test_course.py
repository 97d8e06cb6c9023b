"""The next state of a run, from its workers' and what was asked for or broke."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pipelines.live.rules.course import Conclude, Move, next_move
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import RunState, WorkerState


@dataclass
class View:
    name: str
    kind: Kind
    state: WorkerState = WorkerState.RUNNING
    reason: str | None = None
    cause: Cause | None = None


def workers(**states: WorkerState) -> list[View]:
    """One of each kind, running, but for `states`."""
    return [View(kind, Kind(kind), states.get(kind, WorkerState.RUNNING), f"{kind} broke") for kind in Kind]


DONE, FAILED = WorkerState.DONE, WorkerState.FAILED


@pytest.mark.parametrize("pace", ["free", "lockstep"])
def test_a_run_goes_on_as_it_is_while_its_workers_do(pace):
    assert next_move(RunState.RUNNING, workers(), pace=pace, stream_ended=False) is None
    assert next_move(RunState.DRAINING, workers(student=FAILED), pace=pace, stream_ended=True) is None


def test_a_run_that_starts_waits_for_everyone():
    some = workers(student=WorkerState.STARTING)
    assert next_move(RunState.STARTING, some, pace="free", stream_ended=True) is None
    assert next_move(RunState.STARTING, workers(), pace="free", stream_ended=True) == Move(RunState.RUNNING)


def test_a_failure_that_ends_the_run_goes_before_a_stop_and_a_stop_before_what_broke():
    def decided(*, stop_asked: str | None = None, **states: WorkerState) -> object:
        return next_move(
            RunState.RUNNING, workers(**states), pace="lockstep", stream_ended=False, stop_asked=stop_asked,
            broken="Ray has died",
        )  # fmt: skip

    assert decided(stop_asked="enough", teacher=FAILED) == Move(RunState.FAILED, "teacher: teacher broke")
    assert decided(stop_asked="enough") == Move(RunState.STOPPED, "enough")
    assert decided() == Move(RunState.FAILED, "Ray has died")


def test_at_rest_a_run_concludes_unless_a_worker_has_failed():
    rest = dict.fromkeys(map(str, Kind), DONE)
    assert next_move(RunState.DRAINING, workers(**rest), pace="free", stream_ended=True) == Conclude()
    failed = workers(**rest | {"student": FAILED, "teacher": FAILED})
    failed[-1].cause = Cause.PERMANENT
    assert next_move(RunState.DRAINING, failed, pace="free", stream_ended=True) == Move(
        RunState.FAILED, "teacher: teacher broke; student: student broke", permanent=True
    )
    for worker in failed:
        worker.cause = Cause.MISTAKE
    move = next_move(RunState.DRAINING, failed, pace="free", stream_ended=True)
    assert isinstance(move, Move)
    assert move.mistaken
