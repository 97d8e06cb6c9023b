"""Which snapshot scores, case by case and over all cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.live.rules.scoring_snapshot import (
    Score,
    Wait,
    WithoutTeacher,
    lockstep_version,
    snapshot_for,
)


@pytest.mark.parametrize(
    ("lag", "versions"),
    [(1, [None, 1, 2, 3, 4]), (2, [None, None, 1, 2, 3]), (3, [None, None, None, 1, 2])],
)
def test_in_lockstep_block_k_is_scored_by_what_learned_the_blocks_up_to_k_minus_lag(lag, versions):
    assert [lockstep_version(block, lag) for block in range(5)] == versions


@given(st.integers(0, 10**9), st.integers(1, 100))
@settings(deadline=None)
def test_in_lockstep_no_block_is_scored_by_a_teacher_that_learned_it(block, lag):
    version = lockstep_version(block, lag)
    if block < lag:
        assert version is None
    else:
        assert version - 1 == block - lag  # version v has learned the blocks 0 … v-1


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(0, 100))
@settings(deadline=None)
def test_an_older_snapshot_scores_as_one_of_a_longer_lag_and_none_has_learned_nothing(block, lag, behind):
    version = lockstep_version(block, lag, behind)
    assert version == lockstep_version(block, lag + behind)
    assert version is None or version > 0


def free(**changes):
    usual = {
        "newest": 7,
        "newest_age_s": 10.0,
        "rows_since_newest": 1000,
        "catching_up": False,
        "max_rows_ahead": 5000,
        "max_age_s": None,
    }
    return snapshot_for(**(usual | changes))


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, Score(7)),
        ({"catching_up": True}, Score(7)),
        ({"catching_up": True, "rows_since_newest": 5000}, Score(7)),
        ({"rows_since_newest": 10**9}, Score(7)),  # live never waits
        ({"newest_age_s": 1e9}, Score(7)),  # no age is too old unless a bound was set
        ({"max_age_s": 10.0}, Score(7)),
        ({"max_age_s": 5.0, "catching_up": True}, Score(7)),  # age is nothing while time runs faster than it did
    ],
)
def test_the_newest_snapshot_scores(changes, decision):
    assert free(**changes) == decision


def test_while_catching_up_rows_wait_for_a_snapshot_not_too_many_rows_old():
    decision = free(catching_up=True, rows_since_newest=5001)
    assert decision == Wait("5001 rows past snapshot 7; 5000 are allowed while catching up")


@pytest.mark.parametrize("catching_up", [False, True])
def test_rows_before_the_first_snapshot_have_no_logit_and_the_teacher_is_not_called_stale(catching_up):
    decision = free(newest=None, catching_up=catching_up)
    assert decision == WithoutTeacher("the teacher has learned nothing yet", stale=False)


def test_history_waits_for_the_first_snapshot_once_the_teacher_has_enough_rows_for_it_and_life_does_not():
    behind = {"newest": None, "rows_since_newest": 5001}
    reason = "5001 rows without a first snapshot; 5000 are allowed while catching up"
    assert free(catching_up=True, **behind) == Wait(reason)
    assert isinstance(free(**behind), WithoutTeacher)


def test_nobody_waits_for_a_teacher_that_has_given_up():
    behind = {"catching_up": True, "teacher_gone": True}
    assert free(rows_since_newest=10**9, **behind) == Score(7)
    assert isinstance(free(newest=None, rows_since_newest=10**9, **behind), WithoutTeacher)
    assert isinstance(free(newest_age_s=61.2, max_age_s=60, **behind), WithoutTeacher)


def test_live_a_snapshot_past_its_age_gives_null_logits_and_says_both_ages():
    assert free(newest_age_s=61.2, max_age_s=60) == WithoutTeacher("snapshot 7 is 61 s old; 60 s are allowed")


@given(
    newest=st.none() | st.integers(1, 100),
    newest_age_s=st.floats(0, 1e6),
    rows_since_newest=st.integers(0, 10**7),
    max_rows_ahead=st.integers(1, 10**7),
    max_age_s=st.none() | st.floats(0.1, 1e6),
)
@settings(deadline=None)
def test_live_nothing_ever_waits_and_no_version_but_the_newest_is_taken(newest, **state):
    live = snapshot_for(newest=newest, catching_up=False, **state)
    assert not isinstance(live, Wait)
    behind = snapshot_for(newest=newest, catching_up=True, **state)
    if newest is not None:  # history is scored, whatever it takes
        assert not isinstance(behind, WithoutTeacher)
    assert all(decision.version == newest for decision in (live, behind) if isinstance(decision, Score))
