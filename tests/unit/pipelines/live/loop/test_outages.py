"""A broker that is away and a disk that is full are waited for, but not for ever."""

from __future__ import annotations

import errno
import re
from collections import namedtuple
from itertools import pairwise

import pytest

from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.causes import Died
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import RunState
from tests.support.pipelines.scripted_run import (
    ENDING,
    ENDLESS,
    Run,
    follows,
    never_built,
    reasons,
    stop_after,
    working,
)

Usage = namedtuple("Usage", "total used free")
AWAY = Died("no Kafka broker answers at 127.0.0.1:9092", Cause.BROKER_AWAY)
FULL = Died("[Errno 28] No space left on device", Cause.DISK_FULL)


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
    monkeypatch.setattr("pipelines.live.loop.supervised.shutil.disk_usage", lambda _: Usage(0, 0, 1 << 20))
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


def test_a_summary_that_waits_for_a_student_waits_for_no_room_any_more(tmp_path):
    def finish():
        if "student-late" not in run.live.workers:
            raise OSError(errno.ENOSPC, "No space left on device")

    def at_tell(run):
        if run.status.waiting is not None and "student-late" not in run.live.workers:
            run.live.join(WorkerSpec("student-late", Kind.STUDENT, never_built))

    late = [*[working("student-late")] * 60, follows("student-late")]
    run = Run(tmp_path, ENDING | {"student-late": [late]}, at_tell=at_tell, finish=finish)
    assert run.to_the_end() is RunState.DONE
    meanwhile = [value for _, value in run.told if value["workers"].get("student-late", {}).get("state") == "running"]
    assert {value["reason"] for value in meanwhile} == {None}
