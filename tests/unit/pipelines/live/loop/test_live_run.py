"""The loop takes a run from start to end, also where a worker gives up."""

from __future__ import annotations

import json
from contextlib import suppress

from pipelines.live.rules.states import RunState
from streaming.errors import StreamingError
from streaming.store.working_copy import open_copy
from tests.support.pipelines.scripted_run import ENDING, ENDLESS, WRONG, Run, done, follows, stop_after, working


def test_a_bounded_run_goes_from_starting_over_draining_to_done(tmp_path):
    augmentation, student = working("augmentation"), working("student-feed")
    slow = ENDING | {
        "augmentation": [[*[augmentation] * 40, done("augmentation", lake_seq=99)]],
        "student-feed": [[*[student] * 80, done("student-feed")]],
    }
    run = Run(tmp_path, slow)
    assert run.to_the_end() is RunState.DONE
    states = [value["state"] for _, value in run.told]
    assert list(dict.fromkeys(states)) == ["starting", "running", "draining", "done"]
    assert run.written["state"] == "done"
    assert run.written["reason"] is None


def test_the_end_of_the_stream_is_passed_on_to_everyone_and_not_before_it_is_known(tmp_path):
    run = Run(tmp_path, ENDING)
    run.to_the_end()
    for name in ("teacher", "student-feed"):
        ends = [orders.end_seq for orders in run.launcher.handles[name][0].orders]
        assert ends == sorted(ends, key=lambda end: end is not None)
        assert set(ends) == {None, 99}


def test_verticals_that_a_joining_student_names_are_passed_on_each_once(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(5))
    run.live.declare(["feed", "travel"])
    run.live.declare(["feed", "shop"])
    run.to_the_end()
    assert {orders.verticals for orders in run.launcher.handles["augmentation"][0].orders} == {
        ("feed", "travel", "shop")
    }


def test_it_is_done_only_when_everyone_is(tmp_path):
    run = Run(tmp_path, ENDING | {"student-feed": [[working("student-feed")]]}, at_tell=stop_after(300))
    assert run.to_the_end() is RunState.STOPPED
    assert {value["state"] for at, value in run.told if 1002 < at < 1300} == {"draining"}
    assert {name: w["state"] for name, w in run.written["workers"].items()} == {
        "ingest": "done", "augmentation": "done", "teacher": "done", "student-feed": "running"
    }  # fmt: skip


def test_the_last_status_is_written_before_anyone_waits_for_those_who_are_told(tmp_path, monkeypatch):
    run, seen = Run(tmp_path, ENDING), []
    monkeypatch.setattr("pipelines.track.webhooks.Webhooks.close", lambda webhooks: seen.append(run.written["state"]))
    run.to_the_end()
    assert set(seen) == {"done"}


def test_a_worker_that_is_done_is_left_alone_until_all_are_closed(tmp_path):
    run = Run(tmp_path, ENDING)
    run.to_the_end()
    polls_after_done = [h.orders for h in run.launcher.handles["augmentation"]]
    assert [len(orders) for orders in polls_after_done] == [2]
    assert run.ends() == {name: ["closed"] for name in ENDING}


def test_a_run_that_another_coordinator_has_taken_over_ends_in_words(tmp_path):
    store = tmp_path / "store"
    here, there = (open_copy(tmp_path / name, store.as_uri()) for name in ("here", "there"))
    here.take_over()

    def taken(run):
        if run.clock() >= 1005 and there.epoch is None:
            (newest,) = (store / "coordinators").iterdir()
            newest.write_text(json.dumps(json.loads(newest.read_text()) | {"since": 0.0}))  # as if it had ended
            there.take_over()
            with suppress(StreamingError):
                here.check_fence()
        stop_after(20)(run)

    run = Run(here.root, ENDLESS, at_tell=taken)
    assert run.to_the_end() is RunState.FAILED
    assert "fenced: " in run.written["reason"]
    assert "was taken over by pid" in run.written["reason"]


def test_an_empty_stream_is_done_too(tmp_path):
    run = Run(tmp_path, ENDING | {"augmentation": [[done("augmentation", lake_seq=-1)]]})
    assert run.to_the_end() is RunState.DONE
    assert run.written["lake"] == {"rows": 0, "bytes": 0, "files": 0, "last_lake_seq": -1}


def test_a_student_that_gives_up_stops_nobody_and_the_run_fails_when_all_others_are_done(tmp_path):
    slow = ENDING | {"teacher": [[*[working("teacher")] * 200, follows("teacher")]], "student-feed": [[WRONG]]}
    finished = []
    run = Run(tmp_path, slow, finish=lambda: finished.append(True))
    assert run.to_the_end() is RunState.FAILED
    assert run.written["reason"] == f"student-feed: {WRONG}"
    assert {name: worker["state"] for name, worker in run.written["workers"].items()} == {
        "ingest": "done", "augmentation": "done", "teacher": "done", "student-feed": "failed"
    }  # fmt: skip
    going = [value for _, value in run.told if value["state"] in ("running", "draining")]
    assert len(going) > 5
    assert all("student-feed has given up, the others go on" in value["reason"] for value in going)
    assert finished == []  # no summary: there is something left to do


def test_in_free_pace_a_teacher_that_gives_up_stops_nobody_and_augmentation_is_told(tmp_path):
    student = [*[working("student-feed")] * 80, follows("student-feed")]
    lives = ENDING | {"teacher": [[working("teacher"), WRONG]], "student-feed": [student]}
    run = Run(tmp_path, lives, pace="free")
    assert run.to_the_end() is RunState.FAILED
    assert run.written["reason"] == f"teacher: {WRONG}"
    assert run.written["workers"]["student-feed"]["state"] == "done"
    orders = run.launcher.handles["student-feed"][0].orders
    assert (orders[-1].teacher_gone, orders[-1].end_seq) == (True, 99)
    assert any((value["reason"] or "").startswith("stale_teacher: teacher has given up") for _, value in run.told)


def test_in_lockstep_a_teacher_that_gives_up_ends_the_run_at_once(tmp_path):
    run = Run(tmp_path, ENDLESS | {"teacher": [[working("teacher"), WRONG]]}, pace="lockstep")
    assert run.to_the_end() is RunState.FAILED
    assert run.ends()["student-feed"] == ["closed"]


def test_a_run_without_end_goes_on_without_a_student_until_it_is_stopped(tmp_path):
    run = Run(tmp_path, ENDLESS | {"student-feed": [[WRONG]]}, at_tell=stop_after(100))
    assert run.to_the_end() is RunState.STOPPED
    assert run.written["workers"]["student-feed"]["reason"] == str(WRONG)
