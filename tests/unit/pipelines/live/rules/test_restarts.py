"""Pure decisions, case by case and over all cases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    Cause,
    Death,
    GiveUp,
    Patience,
    Restart,
    after_death,
    still_counting,
    verdict,
)

# --- deaths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deaths", "delay_s"),
    [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (6, 16.0), (7, 30.0), (20, 30.0)],
)
def test_each_death_in_a_row_doubles_the_wait_up_to_half_a_minute(deaths, delay_s):
    assert after_death([100.0] * deaths, now=100.0, max_restarts=50, window_s=600) == Restart(delay_s)


def test_deaths_long_ago_are_forgotten():
    long_ago = [0.0, 1.0, 2.0, 3.0]
    assert after_death([*long_ago, 1000.0], now=1000.0, max_restarts=2, window_s=600) == Restart(0.5)
    assert after_death([400.0, 1000.0], now=1000.0, max_restarts=2, window_s=600) == Restart(1.0)  # just inside


def test_giving_up_names_how_often_it_died_and_how_often_it_may():
    verdict = after_death([1.0, 2.0, 3.0, 4.0], now=4.0, max_restarts=3, window_s=60)
    assert isinstance(verdict, GiveUp)
    assert verdict.reason == "it died 4 times within 60 s; 3 restarts are allowed (resources.max_restarts)"


def test_without_restarts_the_first_death_is_the_last():
    assert isinstance(after_death([1.0], now=1.0, max_restarts=0, window_s=60), GiveUp)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30).map(sorted),
    st.integers(0, 20),
    st.floats(0.1, 1e6),
)
@settings(deadline=None)
def test_it_gives_up_exactly_when_more_deaths_are_recent_than_restarts_are_allowed(deaths, allowed, window_s):
    now = deaths[-1]
    recent = sum(now - death <= window_s for death in deaths)
    verdict = after_death(deaths, now, allowed, window_s)
    assert isinstance(verdict, GiveUp) == (recent > allowed)
    if isinstance(verdict, Restart):
        assert FIRST_DELAY_S <= verdict.delay_s <= LONGEST_DELAY_S


# --- deaths by cause ------------------------------------------------------------------------------------------------


PATIENCE = Patience(max_restarts=2, restart_window_s=60, give_up_s=300, disk_give_up_s=600)
C, B, D, P, H = Cause.CRASH, Cause.BROKER_AWAY, Cause.DISK_FULL, Cause.PERMANENT, Cause.STILL_HELD


def deaths(*what):
    return [Death(at, cause, f"words of {at:g}") for at, cause in what]


@pytest.mark.parametrize(
    ("died", "decision"),
    [
        ([(0, C)], Restart(0.5)),
        ([(0, C), (1, C)], Restart(1.0)),
        ([(0, C), (1, C), (2, C)], "it died 3 times within 60 s; 2 restarts"),
        ([(0, C), (1, B), (2, C), (3, D), (100, C)], Restart(0.5)),  # the first two are past the window
        ([(0, B), (1, B), (2, B), (3, C)], Restart(0.5)),  # a broker that was away is no crash
        ([(0, B)], Restart(0.5)),
        ([(t, B) for t in range(6)], Restart(15)),
        ([(t, B) for t in range(0, 300, 15)], Restart(15)),
        (
            [(t, B) for t in range(0, 330, 15)],
            "the broker has been away for 315 s; 300 s are allowed (kafka.give_up_s)",
        ),
        ([(0, B), (250, B), (600, B)], Restart(0.5)),  # a gap longer than the patience: another outage
        ([(0, B), (200, C), (400, B)], Restart(0.5)),  # a crash between them: another one too
        ([(t, D) for t in range(0, 330, 15)], Restart(15)),
        ([(t, D) for t in range(0, 630, 15)], "the disk has been full for 615 s; 600 s are allowed (resources.disk_"),
        ([(t, H) for t in range(0, 60, 5)], Restart(15)),
        ([(t, H) for t in range(0, 70, 5)], "it was held for 65 s; 60 s are allowed (resources.restart_window_s)"),
        ([(0, P)], "words of 0"),
        ([(0, B), (1, P)], "words of 1"),
    ],
)
def test_what_is_done_about_each_history_of_deaths(died, decision):
    found = verdict(deaths(*died), now=died[-1][0], patience=PATIENCE)
    if isinstance(decision, Restart):
        assert found == decision
    else:
        assert isinstance(found, GiveUp)
        assert found.reason.startswith(decision)
        assert found.reason.endswith(f"words of {died[-1][0]:g}")


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.sampled_from([C, B, D, H])), min_size=1, max_size=40).map(sorted),
)
@settings(deadline=None)
def test_waiting_never_counts_as_crashing_and_no_pause_is_longer_than_the_longest(died):
    history = deaths(*died)
    found = verdict(history, died[-1][0], PATIENCE)
    crashes = [death for death in history if death.cause is C]
    if history[-1].cause is C:
        assert found == verdict(crashes, died[-1][0], PATIENCE)
    if isinstance(found, Restart):
        assert FIRST_DELAY_S <= found.delay_s <= LONGEST_DELAY_S


@pytest.mark.parametrize(
    ("well_s", "room", "left"),
    [(29, True, [C, B, D, H]), (30, True, [C]), (30, False, [C, D]), (1e6, False, [C, D])],
)
def test_an_outage_is_over_once_work_goes_well_and_a_full_disk_when_it_has_room_too(well_s, room, left):
    history = deaths((0, C), (1, B), (2, D), (3, H))
    assert [death.cause for death in still_counting(history, well_s, room)] == left


@pytest.mark.parametrize(
    ("kind", "lockstep", "free"),
    [("ingest", True, True), ("augmentation", True, True), ("teacher", True, False), ("student", False, False)],
)
def test_whose_end_is_the_end_of_the_run(kind, lockstep, free):
    assert (Kind(kind).ends_run("lockstep"), Kind(kind).ends_run("free")) == (lockstep, free)
