"""The legal ways between states, as tables; every other way is refused."""

from __future__ import annotations

import pytest

from pipelines.live.rules.states import RUN_TRANSITIONS, WORKER_TRANSITIONS, RunState, WorkerState, moved

RUN = """
starting -> running stopped failed
running  -> draining done stopped failed
draining -> done stopped failed
done     ->
failed   ->
stopped  ->
"""
WORKER = """
starting   -> running done restarting failed retired
running    -> done restarting failed retired
restarting -> starting failed retired
done       -> retired
failed     -> retired
retired    ->
"""


def ways(table, kind):
    for line in table.strip().splitlines():
        current, targets = line.split("->")
        for target in kind:
            allowed = str(target) in targets.split() or str(target) == current.strip()
            yield pytest.param(kind(current.strip()), target, allowed, id=f"{current.strip()}-{target}")


@pytest.mark.parametrize(("current", "target", "allowed"), ways(RUN, RunState))
def test_ways_of_a_run(current, target, allowed):
    check(current, target, allowed, RUN_TRANSITIONS)


@pytest.mark.parametrize(("current", "target", "allowed"), ways(WORKER, WorkerState))
def test_ways_of_a_worker(current, target, allowed):
    check(current, target, allowed, WORKER_TRANSITIONS)


def check(current, target, allowed, transitions):
    if allowed:
        assert moved(current, target, transitions) is target
    else:
        with pytest.raises(AssertionError, match=f"{current} may not become {target}"):
            moved(current, target, transitions)


def test_every_state_has_its_ways():
    assert set(RUN_TRANSITIONS) == set(RunState)
    assert set(WORKER_TRANSITIONS) == set(WorkerState)


def test_from_every_living_state_a_run_can_be_stopped_and_can_fail():
    for state in (RunState.STARTING, RunState.RUNNING, RunState.DRAINING):
        assert RUN_TRANSITIONS[state] >= {RunState.STOPPED, RunState.FAILED}
