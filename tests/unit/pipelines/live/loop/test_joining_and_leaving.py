"""Students join a run and leave it while it goes on."""

from __future__ import annotations

import pytest

from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.causes import Died
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState
from streaming.errors import BadInput
from tests.support.pipelines.scripted_run import (
    ENDING,
    ENDLESS,
    WRONG,
    Recorder,
    Run,
    done,
    follows,
    never_built,
    report,
    stop_after,
    working,
)

LATE = {"student-late": [[working("student-late")] * 30 + [follows("student-late")]]}


def joins(name, when):
    """`name` is added once `when(run)`."""

    def at_tell(run):
        if name not in run.live.workers and when(run):
            run.live.join(WorkerSpec(name, Kind.STUDENT, never_built))

    return at_tell


def test_a_student_that_joins_is_shown_given_the_same_orders_and_waited_for(tmp_path):
    slow = ENDING | {"augmentation": [[*[working("augmentation")] * 100, done("augmentation", lake_seq=99)]]} | LATE
    run = Run(tmp_path, slow, at_tell=joins("student-late", lambda run: run.clock() > 1002))
    assert run.to_the_end() is RunState.DONE
    assert run.launcher.started_at["student-late"][0] > 1002
    assert run.written["workers"]["student-late"]["kind"] == "student"
    assert run.written["workers"]["student-late"]["state"] == "done"
    assert run.launcher.handles["student-late"][0].orders[-1].end_seq == 99
    assert run.ends() == {name: ["closed"] for name in slow}  # no one was restarted because of it


def test_a_student_that_joins_after_the_streams_end_keeps_the_run_up_until_it_is_done(tmp_path):
    lives = ENDING | {"student-feed": [[*[working("student-feed")] * 60, done("student-feed")]]} | LATE
    run = Run(tmp_path, lives, at_tell=joins("student-late", lambda run: run.status.state is RunState.DRAINING))
    assert run.to_the_end() is RunState.DONE
    assert run.written["workers"]["student-late"]["state"] == "done"
    assert {orders.end_seq for orders in run.launcher.handles["student-late"][0].orders} == {99}


def retires(name, when=lambda run: run.clock() > 1002):
    def at_tell(run):
        if run.status.workers[name].state != "retired" and when(run):
            run.live.leave(name)

    return at_tell


def test_a_student_that_is_retired_commits_leaves_and_is_not_waited_for(tmp_path):
    lives = ENDING | {"student-feed": [[working("student-feed")]]}  # which alone would keep the run up for ever
    tracker = Recorder()
    run = Run(tmp_path, lives, tracker=tracker, at_tell=retires("student-feed"))
    assert run.to_the_end() is RunState.DONE
    assert run.ends()["student-feed"] == ["closed"]
    worker = run.written["workers"]["student-feed"]
    assert (worker["state"], worker["pid"], worker["rss_bytes"], worker["reason"]) == ("retired", None, None, None)
    assert ("student-feed", 99, {"closing": 1.0}) in tracker.seen


def test_a_student_that_gave_up_may_come_back_and_the_run_ends_well(tmp_path):
    lives = ENDING | {"student-feed": [[WRONG], [follows("student-feed")]]}
    slow = lives | {"augmentation": [[*[working("augmentation")] * 100, done("augmentation", lake_seq=99)]]}

    def at_tell(run):
        if run.status.workers["student-feed"].state == "failed":
            run.live.join(WorkerSpec("student-feed", Kind.STUDENT, never_built))

    run = Run(tmp_path, slow, at_tell=at_tell)
    assert run.to_the_end() is RunState.DONE
    assert run.written["workers"]["student-feed"]["state"] == "done"


def test_a_student_that_gave_up_and_is_retired_does_not_fail_the_run(tmp_path):
    lives = ENDING | {"teacher": [[*[working("teacher")] * 200, follows("teacher")]], "student-feed": [[WRONG]]}
    run = Run(tmp_path, lives, at_tell=retires("student-feed"))
    assert run.to_the_end() is RunState.DONE


def test_a_student_that_waits_for_its_restart_is_not_started_again_once_it_is_retired(tmp_path):
    lives = ENDLESS | {"student-feed": [[Died("again")]]}
    died = retires("student-feed", lambda run: run.status.workers["student-feed"].state == "restarting")
    run = Run(tmp_path, lives, at_tell=lambda run: (died(run), stop_after(60)(run)), max_restarts=1000)
    assert run.to_the_end() is RunState.STOPPED
    assert run.written["workers"]["student-feed"]["state"] == "retired"
    assert run.launcher.started_at["student-feed"][-1] < 1010


def test_a_name_is_free_again_once_it_is_retired(tmp_path):
    again = joins("student-feed", lambda run: False)
    lives = ENDLESS | {"student-feed": [[working("student-feed")], [working("student-feed")]]}

    def at_tell(run):
        again(run)
        stop_after(20)(run)
        if len(run.launcher.handles["student-feed"]) == 1 and run.clock() > 1005:
            run.live.leave("student-feed")
            run.live.join(WorkerSpec("student-feed", Kind.STUDENT, never_built))

    run = Run(tmp_path, lives, at_tell=at_tell)
    assert run.to_the_end() is RunState.STOPPED
    assert run.ends()["student-feed"] == ["closed", "closed"]
    assert run.written["workers"]["student-feed"]["state"] == "running"


def test_a_student_that_comes_back_keeps_what_it_did_before_it_left(tmp_path):
    first = report("student-feed", 1, total_rows=1000, busy_s=20.0, phases_s={"train": 20.0}, peak_rss_bytes=9 << 20)
    second = report("student-feed", 1, total_rows=1500, busy_s=10.0, phases_s={"train": 10.0}, peak_rss_bytes=4 << 20)
    lives = ENDLESS | {"student-feed": [[first, Died("once")], [working("student-feed")], [second]]}

    def at_tell(run):
        stop_after(20)(run)
        if len(run.launcher.handles["student-feed"]) == 2 and run.clock() > 1005:
            run.live.leave("student-feed")
            run.live.join(WorkerSpec("student-feed", Kind.STUDENT, never_built))

    run = Run(tmp_path, lives, at_tell=at_tell)
    run.to_the_end()
    worker = run.written["workers"]["student-feed"]
    figures = ("rows", "restarts", "busy_s", "phases_s", "peak_rss_bytes")
    assert [worker[figure] for figure in figures] == [1500, 1, 30.0, {"train": 30.0}, 9 << 20]


def test_what_cannot_join_or_leave_is_refused_in_words(tmp_path):
    refused = []

    def at_tell(run):
        if not refused:
            with pytest.raises(BadInput, match="`student-feed` is a worker of this run already"):
                run.live.join(WorkerSpec("student-feed", Kind.STUDENT, never_built))
            with pytest.raises(BadInput, match="`teacher` cannot leave: the run needs it"):
                run.live.leave("teacher")
            with pytest.raises(BadInput, match="no worker is named `student-shop`; those that may leave: student-feed"):
                run.live.leave("student-shop")
            refused.append(True)
        stop_after(1)(run)

    run = Run(tmp_path, ENDLESS, at_tell=at_tell)
    run.to_the_end()
    assert refused
    with pytest.raises(BadInput, match="the run is stopped; no worker can join it"):
        run.live.join(WorkerSpec("student-shop", Kind.STUDENT, never_built))


def test_a_student_whose_ranks_find_no_place_is_refused_and_nothing_has_changed(tmp_path):
    def at_tell(run):
        run.launcher.room = 0
        if not refused and run.clock() > 1002:
            with pytest.raises(BadInput, match="ranks: 2 of `late` do not start: 1 more processes find no place"):
                run.live.spawn({"name": "late", "ranks": 2})
            refused.append(True)

    refused = []
    run = Run(tmp_path, ENDING | {"ingest": [[*[working("ingest")] * 60, done("ingest")]]}, at_tell=at_tell)
    assert run.to_the_end() is RunState.DONE  # it ends, as it would without
    assert refused
    assert "student-late" not in run.live.workers
