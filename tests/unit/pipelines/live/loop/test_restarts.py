"""A worker that dies or falls silent is started again, within bounds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pipelines.live.rules.causes import Died
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import RunState
from tests.support.pipelines.scripted_run import ENDING, ENDLESS, Run, done, follows, reasons, stop_after, working


def test_a_worker_that_dies_is_started_again_after_a_pause_and_goes_on(tmp_path):
    lives = [[working("teacher"), Died("killed by signal 9")], [None, follows("teacher")]]
    run = Run(tmp_path, ENDING | {"teacher": lives})
    assert run.to_the_end() is RunState.DONE
    first, second = run.launcher.started_at["teacher"]
    assert second - first == pytest.approx(0.5, abs=0.2)
    assert run.ends()["teacher"] == ["died", "closed"]
    assert run.written["workers"]["teacher"]["restarts"] == 1
    assert run.written["workers"]["teacher"]["reason"] is None  # it is well again
    assert len(run.launcher.handles["student-feed"]) == 1  # nobody else noticed


def test_the_pauses_between_restarts_grow(tmp_path):
    lives = [[Died("again")]] * 4 + [[follows("teacher")]]
    run = Run(tmp_path, ENDING | {"teacher": lives})
    assert run.to_the_end() is RunState.DONE
    times = run.launcher.started_at["teacher"]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([0.5, 1, 2, 4], abs=0.15)


def test_while_it_waits_for_its_restart_the_status_says_so_and_names_no_process(tmp_path):
    lives = [[working("teacher"), Died("killed by signal 9")], [follows("teacher")]]
    slow = ENDING | {"teacher": [lives[0], *[[Died("again")]] * 3, lives[1]]}
    run = Run(tmp_path, slow)
    run.to_the_end()
    resting = [v["workers"]["teacher"] for _, v in run.told if v["workers"]["teacher"]["state"] == "restarting"]
    assert resting
    assert all(worker["pid"] is None and worker["rss_bytes"] is None for worker in resting)
    assert {worker["reason"] for worker in resting} <= {"killed by signal 9", "again"}
    assert {worker["rows"] for worker in resting} == {1}  # what it did stays known


def test_a_worker_that_dies_too_often_ends_the_run_with_both_numbers_and_its_last_words(tmp_path):
    run = Run(tmp_path, ENDLESS | {"teacher": [[Died("ModelError: loss is nan")]]}, max_restarts=2, restart_window_s=60)
    assert run.to_the_end() is RunState.FAILED
    assert len(run.launcher.handles["teacher"]) == 3
    assert run.written["state"] == "failed"
    assert run.written["reason"] == (
        "teacher: it died 3 times within 60 s; 2 restarts are allowed (resources.max_restarts): ModelError: loss is nan"
    )
    assert run.written["workers"]["teacher"]["state"] == "failed"
    assert {name: ends for name, ends in run.ends().items() if name != "teacher"} == {
        name: ["closed"] for name in ENDING if name != "teacher"
    }


def test_deaths_far_apart_are_survived_for_ever(tmp_path):
    life = [*[working("teacher")] * 100, Died("now and then")]  # about 5 s each
    lives = [life] * 8 + [[follows("teacher")]]
    long = [*[working("augmentation")] * 1000, done("augmentation", lake_seq=99)]
    late = ENDING | {"teacher": lives, "augmentation": [long]}
    run = Run(tmp_path, late, max_restarts=1, restart_window_s=5)
    assert run.to_the_end() is RunState.DONE
    assert run.written["workers"]["teacher"]["restarts"] == 8


def test_what_no_restart_can_mend_ends_the_run_at_once(tmp_path):
    words = "BadInput: topic `impressions` is absent"
    run = Run(tmp_path, ENDLESS | {"augmentation": [[Died(words, Cause.PERMANENT)]]})
    assert run.to_the_end() is RunState.FAILED
    assert len(run.launcher.handles["augmentation"]) == 1
    assert run.written["reason"] == f"augmentation: {words}"


@pytest.mark.parametrize(("cause", "mistaken"), [(Cause.MISTAKE, True), (Cause.PERMANENT, False)])
def test_a_mistake_of_the_caller_is_told_from_data_that_are_lost(tmp_path, cause, mistaken):
    run = Run(tmp_path, ENDLESS | {"ingest": [[Died("BadInput: clicks.parquet is not in order", cause)]]})
    assert run.to_the_end() is RunState.FAILED
    assert len(run.launcher.handles["ingest"]) == 1
    assert run.written["workers"]["ingest"]["restarts"] == 0
    assert run.written["mistaken"] is mistaken


def test_of_two_fatal_deaths_the_first_is_the_reason(tmp_path):
    run = Run(
        tmp_path,
        ENDLESS | {"augmentation": [[Died("first", Cause.PERMANENT)]], "teacher": [[Died("second", Cause.PERMANENT)]]},
    )
    run.to_the_end()
    assert run.written["reason"] == "augmentation: first"
    assert run.written["workers"]["teacher"]["reason"] == "second"


def test_a_worker_that_does_not_report_is_killed_and_started_again(tmp_path):
    lives = [[working("teacher"), None], [follows("teacher")]]
    run = Run(tmp_path, ENDING | {"teacher": lives}, hang_s=60)
    assert run.to_the_end() is RunState.DONE
    first, second = run.launcher.started_at["teacher"]
    assert second - first == pytest.approx(60.5, abs=1)
    assert run.ends()["teacher"] == ["killed", "closed"]
    silent = [value["workers"]["teacher"]["silent_s"] for _, value in run.told]
    assert max(silent) == pytest.approx(60, abs=2)
    assert any("teacher has not reported for 4" in (reason or "") for reason in reasons(run))
    assert run.written["workers"]["teacher"]["silent_s"] == 0


def test_a_pause_of_the_coordinator_itself_is_nobodys_silence(tmp_path):
    def suspended_once(clock, seconds):
        clock.sleep(3600 if 1003 < clock.now < 1004 else seconds)

    run = Run(tmp_path, ENDLESS, at_tell=stop_after(3640), hang_s=60, sleep=suspended_once)
    silent = lambda orders: None if 1002 < run.clock.now < 4620 else working("teacher")  # noqa: E731
    run.launcher.lives["teacher"] = [[silent]]
    run.to_the_end()
    assert run.clock.now > 4630
    assert len(run.launcher.handles["teacher"]) == 1


def test_a_worker_that_has_no_place_yet_is_not_silent(tmp_path):
    run = Run(tmp_path, ENDLESS | {"teacher": [[None]]}, at_tell=stop_after(100), hang_s=20)
    plain = run.launcher.start

    def unplaced(name, build, log, ranks, host):
        handle = plain(name, build, log)
        handle.node = None if name == "teacher" else "here"
        return handle

    run.launcher.start = unplaced  # type: ignore[method-assign]
    assert run.to_the_end() is RunState.STOPPED
    assert run.ends()["teacher"] == ["closed"]
