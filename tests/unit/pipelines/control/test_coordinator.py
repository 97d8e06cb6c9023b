"""The coordinator with workers that follow a script and a clock that is advanced by hand."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import time
from collections import namedtuple
from itertools import pairwise
from typing import Any

import pytest

from pipelines.config import Resources
from pipelines.control.coordinator import Coordinator
from pipelines.control.preflight import locked
from pipelines.control.wanted import Wanted
from pipelines.rules import Cause, Died, Kind, RunState
from pipelines.run_dir import RunDir
from pipelines.status import RunStatus
from pipelines.workers import Rendezvous, Report
from streaming.disk import read_json
from streaming.errors import BadInput
from tests.support.pipelines.clocks import Clock

Usage = namedtuple("Usage", "total used free")
KINDS = {
    "ingest": Kind.INGEST, "augmentation": Kind.AUGMENTATION, "teacher": Kind.TEACHER, "student-feed": Kind.STUDENT,
    "student-late": Kind.STUDENT,
}  # fmt: skip


class ScriptedHandle:
    """Answers polls with what its life says: a report, None, or a death; the last answer again and again."""

    def __init__(self, name, life, clock):
        self.node = "here"
        self.name, self.life, self._clock = name, list(life), clock
        self.orders = []
        self.ended = None
        self.asked = False

    def poll(self, orders):
        assert self.ended is None, f"{self.name} was polled after its end"
        self.orders.append(orders)
        answer = self.life.pop(0) if len(self.life) > 1 else self.life[0]
        if isinstance(answer, BaseException):
            self.ended = "died"
            raise answer
        return answer(orders) if callable(answer) else answer

    def ask_to_close(self):
        self.asked = True

    def close(self, wait_s):
        assert self.ended is None
        assert wait_s > 0
        self.ended = "closed"
        return Report(self.name, KINDS[self.name], metrics=[(99, {"closing": 1.0})])

    def kill(self):
        self.ended = "killed"


class ScriptedLauncher:
    def __init__(self, clock, lives):
        self._clock, self.lives = clock, {name: list(lives) for name, lives in lives.items()}
        self.handles: dict[str, list[ScriptedHandle]] = {name: [] for name in lives}
        self.started_at: dict[str, list[float]] = {name: [] for name in lives}

    def start(self, name, build, log, ranks=1, host=None):
        lives = self.lives[name]
        handle = ScriptedHandle(name, lives.pop(0) if len(lives) > 1 else lives[0], self._clock)
        self.handles[name].append(handle)
        self.started_at[name].append(self._clock())
        return handle

    def shutdown(self):
        pass


class Recorder:
    """A tracker that remembers."""

    def __init__(self):
        self.seen = []
        self.dropped, self.problem = 0, None

    def metrics(self, worker, step, values):
        self.seen.append((worker, step, values))


def report(name, rows=0, **fields):
    return Report(name, KINDS[name], pid=4242, rows=rows, rss_bytes=1 << 20, **fields)


def working(name):
    return report(name, rows=1)


def done(name, **fields):
    return report(name, rows=10, done=True, **fields)


def follows(name):
    """Done as soon as it is told where the stream ends."""
    return lambda orders: done(name) if orders.end_seq is not None else working(name)


ENDING = {
    "ingest": [[None, working("ingest"), done("ingest")]],
    "augmentation": [[report("augmentation", 1, lake_seq=50), done("augmentation", lake_seq=99)]],
    "teacher": [[follows("teacher")]],
    "student-feed": [[follows("student-feed")]],
}
ENDLESS = {name: [[working(name)]] for name in ENDING}


def never_built(rendezvous: Rendezvous) -> Any:
    raise AssertionError("a scripted launcher builds nothing")


class Run:
    """A coordinator over scripted lives, and everything it let be seen."""

    def __init__(
        self,
        root,
        lives,
        tracker=None,
        at_tell=None,
        pace="lockstep",
        finish=lambda: None,
        give_up_s=300.0,
        sleep=None,
        **resources,
    ):
        self.clock = Clock()
        pause = self.clock.sleep if sleep is None else lambda seconds: sleep(self.clock, seconds)
        self.launcher = ScriptedLauncher(self.clock, lives)
        self.run_dir = RunDir(root)
        self.told = []
        self._at_tell = at_tell or (lambda run: None)
        self.coordinator = Coordinator(
            self.run_dir,
            RunStatus("scripted"),
            [Wanted(name, KINDS[name], never_built) for name in lives if name != "student-late"],
            self.launcher,
            tracker,
            Resources(**({"min_free_disk_gb": 0} | resources)),
            pace=pace,
            finish=finish,
            watch=self._see,
            clock=self.clock,
            sleep=pause,
            give_up_s=give_up_s,
        )
        self.status = self.coordinator.status

    def _see(self, status):
        self.told.append((self.clock.now, read_json(self.run_dir.status)))
        assert len(self.told) < 1000, "it does not end"
        self._at_tell(self)

    def to_the_end(self):
        return self.coordinator.run()

    @property
    def written(self):
        return read_json(self.run_dir.status)

    def ends(self):
        return {name: [handle.ended for handle in handles] for name, handles in self.launcher.handles.items()}


def stop_after(seconds):
    def at_tell(run):
        if run.clock() >= 1000 + seconds:
            run.coordinator.stop("enough")

    return at_tell


def once(number):
    """A signal, unless stopping was asked for already."""

    def at_tell(run):
        if run.coordinator.stop_asked is None:
            signal.raise_signal(number)

    return at_tell


# --- a stream that ends ---------------------------------------------------------------------------------------------


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
    run.coordinator.declare(["feed", "travel"])
    run.coordinator.declare(["feed", "shop"])
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


def test_a_worker_that_is_done_is_left_alone_until_all_are_closed(tmp_path):
    run = Run(tmp_path, ENDING)
    run.to_the_end()
    polls_after_done = [h.orders for h in run.launcher.handles["augmentation"]]
    assert [len(orders) for orders in polls_after_done] == [2]
    assert run.ends() == {name: ["closed"] for name in ENDING}


def test_an_empty_stream_is_done_too(tmp_path):
    run = Run(tmp_path, ENDING | {"augmentation": [[done("augmentation", lake_seq=-1)]]})
    assert run.to_the_end() is RunState.DONE
    assert run.written["lake"] == {"rows": 0, "bytes": 0, "files": 0, "last_lake_seq": -1}


# --- deaths ---------------------------------------------------------------------------------------------------------


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


# --- what is nobody's fault: the broker, the disk -------------------------------------------------------------------


AWAY = Died("no Kafka broker answers at 127.0.0.1:9092", Cause.BROKER_AWAY)
FULL = Died("[Errno 28] No space left on device", Cause.DISK_FULL)


def reasons(run):
    return [value["reason"] for _, value in run.told if value["state"] not in ("done", "failed", "stopped")]


@pytest.mark.parametrize(("cause", "words"), [(AWAY, "broker away"), (FULL, "disk full")])
def test_a_broker_or_a_disk_is_waited_for_however_often_workers_die_of_it(tmp_path, cause, words):
    run = Run(tmp_path, ENDING | {"teacher": [[cause]] * 12 + [[follows("teacher")]]}, max_restarts=1)
    assert run.to_the_end() is RunState.DONE
    assert run.written["workers"]["teacher"]["restarts"] == 12
    pauses = [b - a for a, b in pairwise(run.launcher.started_at["teacher"])]
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8] + [15] * 7, abs=0.2)
    told = [reason for reason in reasons(run) if reason]
    assert all(reason.startswith(f"{words}: teacher waiting, nothing is lost ({cause})") for reason in told)
    assert len(told) > 50
    assert run.written["reason"] is None


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (AWAY, r"teacher: the broker has been away for 3\d\d s; 300 s are allowed \(kafka.give_up_s\).*127.0.0.1:9092"),
        (FULL, r"teacher: the disk has been full for 12\d s; 120 s are allowed \(resources.disk_give_up_s\).*Errno 28"),
    ],
)
def test_what_lasts_too_long_ends_the_run_with_both_times_and_what_to_do(tmp_path, cause, words):
    run = Run(tmp_path, ENDLESS | {"teacher": [[cause]]}, disk_give_up_s=120)
    assert run.to_the_end() is RunState.FAILED
    assert re.match(words, run.written["reason"])
    assert "resume" in run.written["reason"]


def test_an_outage_that_was_over_for_a_while_is_forgotten(tmp_path):
    life = [*[working("teacher")] * 700, AWAY]  # 35 s of good work
    lives = ENDLESS | {"teacher": [life] * 30 + [[working("teacher")]]}
    patience = {"max_restarts": 0, "restart_window_s": 60, "disk_give_up_s": 60}
    run = Run(tmp_path, lives, at_tell=stop_after(450), give_up_s=60, **patience)
    assert run.to_the_end() is RunState.STOPPED
    gaps = [b - a for a, b in pairwise(run.launcher.started_at["teacher"])]
    assert gaps == pytest.approx([35.5] * len(gaps), abs=0.3)
    assert len(gaps) > 10


def test_a_full_disk_is_not_over_because_nothing_was_written_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.control.coordinator.shutil.disk_usage", lambda _: Usage(0, 0, 1 << 20))
    life = [*[working("teacher")] * 700, FULL]
    run = Run(tmp_path, ENDLESS | {"teacher": [life]}, disk_give_up_s=100, min_free_disk_gb=1)
    assert run.to_the_end() is RunState.FAILED
    assert "the disk has been full for" in run.written["reason"]


def test_the_summary_waits_for_room_too(tmp_path):
    tries = iter([OSError(errno.ENOSPC, "No space left on device")] * 3 + [None])

    def finish():
        if (error := next(tries)) is not None:
            raise error

    run = Run(tmp_path, ENDING, finish=finish)
    assert run.to_the_end() is RunState.DONE
    assert any("the summary waits for room" in (reason or "") for reason in reasons(run))
    assert next(tries, "all used") == "all used"


# --- silence --------------------------------------------------------------------------------------------------------


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


# --- joining and leaving ---------------------------------------------------------------------------------------------


WRONG = Died("ModelError: 16 batches in a row were not finite", Cause.PERMANENT)
LATE = {"student-late": [[working("student-late")] * 30 + [follows("student-late")]]}


def joins(name, when):
    """`name` is added once `when(run)`."""

    def at_tell(run):
        if name not in run.coordinator.workers and when(run):
            run.coordinator.add(Wanted(name, Kind.STUDENT, never_built))

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
            run.coordinator.retire(name)

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
            run.coordinator.retire("student-feed")
            run.coordinator.add(Wanted("student-feed", Kind.STUDENT, never_built))

    run = Run(tmp_path, lives, at_tell=at_tell)
    assert run.to_the_end() is RunState.STOPPED
    assert run.ends()["student-feed"] == ["closed", "closed"]
    assert run.written["workers"]["student-feed"]["state"] == "running"


def test_what_cannot_join_or_leave_is_refused_in_words(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(1))
    with pytest.raises(BadInput, match="`student-feed` is a worker of this run already"):
        run.coordinator.add(Wanted("student-feed", Kind.STUDENT, never_built))
    with pytest.raises(BadInput, match="`teacher` cannot leave: the run needs it"):
        run.coordinator.retire("teacher")
    with pytest.raises(BadInput, match="no worker is named `student-shop`; those that may leave: student-feed"):
        run.coordinator.retire("student-shop")
    run.to_the_end()
    with pytest.raises(BadInput, match="the run is stopped; no worker can join it"):
        run.coordinator.add(Wanted("student-shop", Kind.STUDENT, never_built))


# --- who takes the run with it --------------------------------------------------------------------------------------


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


# --- being stopped --------------------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_closes_everyone_and_says_so(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(3))
    assert run.to_the_end() is RunState.STOPPED
    assert (run.written["state"], run.written["reason"]) == ("stopped", "enough")
    assert run.ends() == {name: ["closed"] for name in ENDING}
    assert run.clock.now < 1006


def test_everyone_is_asked_to_close_before_anyone_is_waited_for(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(1))
    asked_at_first_close = []

    def start(name, build, log, ranks, host, plain=run.launcher.start):
        handle = plain(name, build, log)
        if name == "ingest":
            handles = run.launcher.handles.values()
            handle.close = lambda wait_s: asked_at_first_close.extend(h.asked for [h] in handles)
        return handle

    run.launcher.start = start  # type: ignore[method-assign]
    run.to_the_end()
    assert asked_at_first_close == [True] * len(ENDING)


def test_a_worker_that_cannot_be_closed_keeps_no_other_from_closing(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(1))

    def start(name, build, log, ranks, host, plain=run.launcher.start):
        handle = plain(name, build, log)
        if name == "ingest":
            handle.close = lambda wait_s: (_ for _ in ()).throw(OSError("disk full"))
        return handle

    run.launcher.start = start  # type: ignore[method-assign]
    assert run.to_the_end() is RunState.STOPPED
    assert {ends[0] for name, ends in run.ends().items() if name != "ingest"} == {"closed"}


def test_a_fault_of_the_coordinator_itself_still_closes_everyone_and_is_told(tmp_path):
    def burst(run):
        if run.clock() > 1002 and not run.coordinator.over:
            raise ZeroDivisionError

    run = Run(tmp_path, ENDLESS, at_tell=burst)
    with pytest.raises(ZeroDivisionError):
        run.to_the_end()
    assert run.ends() == {name: ["closed"] for name in ENDING}
    assert run.written["state"] == "failed"
    assert "coordinator.log" in run.written["reason"]


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "asked to stop")])
def test_a_signal_ends_the_run_cleanly_and_old_handlers_come_back(tmp_path, number, reason):
    before = signal.getsignal(number)
    run = Run(tmp_path, ENDLESS, at_tell=once(number))
    assert run.to_the_end() is RunState.STOPPED
    assert run.written["reason"] == reason
    assert signal.getsignal(number) is before


def test_a_second_signal_while_workers_close_kills_them_at_once(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=once(signal.SIGINT))

    def start(name, build, log, ranks, host, plain=run.launcher.start):
        handle = plain(name, build, log)
        if name == "augmentation":
            handle.close = lambda wait_s: signal.raise_signal(signal.SIGINT)
        return handle

    run.launcher.start = start  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.to_the_end()
    assert run.ends() == {
        "ingest": ["closed"], "augmentation": ["killed"], "teacher": ["killed"], "student-feed": ["killed"]
    }  # fmt: skip
    assert run.written["state"] == "stopped"


def test_a_third_signal_does_not_break_off_the_ending_that_the_second_asked_for(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=once(signal.SIGINT))

    def start(name, build, log, ranks, host, plain=run.launcher.start):
        handle = plain(name, build, log)
        handle.close = lambda wait_s: signal.raise_signal(signal.SIGINT)
        kill = handle.kill
        handle.kill = lambda: (signal.raise_signal(signal.SIGINT), signal.raise_signal(signal.SIGTERM), kill())
        return handle

    run.launcher.start = start  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.to_the_end()
    assert run.ends() == {name: ["killed"] for name in ENDING}
    assert run.written["state"] == "stopped"


PROCESS = """
import sys
from pathlib import Path
from pipelines.launch.ray import LocalLauncher
from pipelines.config import Resources
from pipelines.control.coordinator import Coordinator
from pipelines.control.wanted import Wanted
from pipelines.rules import Kind
from pipelines.run_dir.paths import RunDir
from pipelines.control.preflight import locked
from pipelines.status import RunStatus
from pipelines.workers import Worker

class Busy(Worker):
    kind, done = "teacher", False
    open = lambda self: None
    def step(self):
        self.rows += 1
        return False
    def close(self):
        (run_dir.root / "closed").write_text(str(self.rows))

run_dir = RunDir(Path(sys.argv[1]))
with locked(run_dir):
    jobs = [Wanted("teacher", Kind.TEACHER, lambda rendezvous: Busy("teacher"))]
    print(Coordinator(run_dir, RunStatus("busy"), jobs, LocalLauncher(), None, Resources()).run())
"""


def test_sigterm_stops_a_real_process_which_until_then_holds_its_run_directory(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        run_dir, deadline = RunDir(tmp_path), time.monotonic() + 100
        while (read_json(run_dir.status) or {}).get("state") != "running":
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        words = f"is being run by another process .*{process.pid}.*exfm stop"
        with pytest.raises(BadInput, match=words), locked(run_dir):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[0].strip() == "stopped"
    finally:
        process.kill()
    assert process.returncode == 0
    value = json.loads(run_dir.status.read_text())
    assert (value["state"], value["reason"], value["pid"]) == ("stopped", "asked to stop", process.pid)
    assert int((tmp_path / "closed").read_text()) > 0
    with locked(run_dir):  # free again
        pass


# --- what is told ---------------------------------------------------------------------------------------------------


def test_status_json_is_rewritten_at_least_every_two_seconds(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(60))
    run.to_the_end()
    times = [at for at, _ in run.told]
    assert max(b - a for a, b in pairwise(times)) <= 2
    stamps = [value["updated_at"] for _, value in run.told]
    assert stamps == sorted(stamps)


def test_status_json_has_every_field_that_others_rely_on(tmp_path):
    said = report(
        "student-feed", 7, lake_seq=5, lag_rows=3, lag_event_time_s=2.5, ne={"ctr": 0.9, "cvr": None},
        teacher_version=4, teacher_lag_rows=11,
    )  # fmt: skip
    (tmp_path / "lake/augmented_examples/vertical=feed/event_date=2024-01-01").mkdir(parents=True)
    (tmp_path / "lake/augmented_examples/vertical=feed/event_date=2024-01-01/part-0.parquet").write_bytes(b"12345")
    lives = ENDLESS | {"student-feed": [[said]], "augmentation": [[report("augmentation", lake_seq=41)]]}
    run = Run(tmp_path, lives, at_tell=stop_after(5))
    run.to_the_end()
    value = json.loads(run.run_dir.status.read_text())
    assert value.keys() >= {"state", "reason", "pid", "updated_at", "workers", "broker", "lake"}
    assert value["broker"].keys() == {"bootstrap_servers", "pid"}
    assert value["lake"] == {"rows": 42, "bytes": 5, "files": 1, "last_lake_seq": 41}
    worker = value["workers"]["student-feed"]
    expected = {
        "pid": 4242, "node": "here", "state": "running", "restarts": 0, "rows": 7, "rows_per_s": 0.0, "lake_seq": 5,
        "lag_rows": 3, "lag_event_time_s": 2.5, "rss_bytes": 1 << 20, "ne": {"ctr": 0.9, "cvr": None},
        "teacher_version": 4, "teacher_lag_rows": 11,
    }  # fmt: skip
    assert {key: worker[key] for key in expected} == expected
    assert value["workers"]["ingest"]["ne"] is None  # does not apply


def test_the_rate_is_that_of_the_last_seconds_not_of_the_whole_life(tmp_path):
    rows = [*range(0, 4000, 100), *[4000] * 200]  # 2,000 rows/s for two seconds, then nothing
    run = Run(tmp_path, ENDLESS | {"teacher": [[report("teacher", n) for n in rows]]}, at_tell=stop_after(8))
    run.to_the_end()
    rates = [value["workers"]["teacher"]["rows_per_s"] for _, value in run.told]
    assert rates[0] is None
    assert max(rate for rate in rates if rate is not None) == pytest.approx(2000, rel=0.05)
    assert rates[-1] == 0


def test_what_tracking_drops_stands_in_the_status_and_stops_nothing(tmp_path):
    tracker = Recorder()
    tracker.dropped, tracker.problem = 1234, "MLflow at http://gone: ConnectionError"
    run = Run(tmp_path, ENDLESS, tracker=tracker, at_tell=stop_after(3))
    assert run.to_the_end() is RunState.STOPPED
    assert run.written["tracking"] == {"dropped": 1234, "problem": "MLflow at http://gone: ConnectionError"}
    assert "1,234 entries of tracking were dropped, training goes on (MLflow at http://gone" in str(reasons(run)[-1])


def test_metrics_of_every_report_and_of_the_closing_one_reach_the_tracker(tmp_path):
    first = report("teacher", metrics=[(1, {"ne_ctr": 0.9}), (2, {"ne_ctr": 0.8})])
    tracker = Recorder()
    run = Run(tmp_path, ENDLESS | {"teacher": [[first, working("teacher")]]}, tracker=tracker, at_tell=stop_after(2))
    run.to_the_end()
    assert [seen for seen in tracker.seen if seen[0] == "teacher"] == [
        ("teacher", 1, {"ne_ctr": 0.9}),
        ("teacher", 2, {"ne_ctr": 0.8}),
        ("teacher", 99, {"closing": 1.0}),
    ]
