"""The coordinator with workers that follow a script and a clock that is advanced by hand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import pytest

from pipelines.actors import Died
from pipelines.config import Resources
from pipelines.coordinator import Coordinator
from pipelines.layout import RunDir, read_json
from pipelines.preflight import locked
from pipelines.states import RunState
from pipelines.status import RunStatus
from pipelines.workers.base import Report
from streaming.errors import BadInput

KINDS = {"ingest": "ingest", "augmentation": "augmentation", "teacher": "teacher", "student-feed": "student"}


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


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
        self._clock, self._lives = clock, {name: list(lives) for name, lives in lives.items()}
        self.handles: dict[str, list[ScriptedHandle]] = {name: [] for name in lives}
        self.started_at: dict[str, list[float]] = {name: [] for name in lives}

    def start(self, name, build, log):
        lives = self._lives[name]
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
ENDLESS = {name: [[working(name)]] for name in KINDS}


def never_built() -> Any:
    raise AssertionError("a scripted launcher builds nothing")


class Run:
    """A coordinator over scripted lives, and everything it let be seen."""

    def __init__(self, root, lives, tracker=None, at_tell=None, **resources):
        self.clock = Clock()
        self.launcher = ScriptedLauncher(self.clock, lives)
        self.run_dir = RunDir(root)
        self.told = []
        self._at_tell = at_tell or (lambda coordinator: None)
        self.coordinator = Coordinator(
            self.run_dir,
            RunStatus("scripted"),
            [(name, KINDS[name], never_built) for name in lives],
            self.launcher,
            tracker,
            Resources(**resources),
            watch=self._see,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.status = self.coordinator.status

    def _see(self, status):
        self.told.append((self.clock.now, read_json(self.run_dir.status)))
        assert len(self.told) < 500, "it does not end"
        self._at_tell(self.coordinator)

    def to_the_end(self):
        return self.coordinator.run()

    @property
    def written(self):
        return read_json(self.run_dir.status)

    def ends(self):
        return {name: [handle.ended for handle in handles] for name, handles in self.launcher.handles.items()}


def stop_after(seconds):
    def at_tell(coordinator):
        if coordinator._clock() >= 1000 + seconds:
            coordinator.stop("enough")

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
    assert run.ends() == {name: ["closed"] for name in KINDS}


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
        name: ["closed"] for name in KINDS if name != "teacher"
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
    run = Run(tmp_path, ENDLESS | {"augmentation": [[Died(words, permanent=True)]]})
    assert run.to_the_end() is RunState.FAILED
    assert len(run.launcher.handles["augmentation"]) == 1
    assert run.written["reason"] == f"augmentation: {words}"


def test_of_two_fatal_deaths_the_first_is_the_reason(tmp_path):
    run = Run(
        tmp_path,
        ENDLESS | {"augmentation": [[Died("first", permanent=True)]], "teacher": [[Died("second", permanent=True)]]},
    )
    run.to_the_end()
    assert run.written["reason"] == "augmentation: first"
    assert run.written["workers"]["teacher"]["reason"] == "second"


# --- being stopped --------------------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_closes_everyone_and_says_so(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(3))
    assert run.to_the_end() is RunState.STOPPED
    assert (run.written["state"], run.written["reason"]) == ("stopped", "enough")
    assert run.ends() == {name: ["closed"] for name in KINDS}
    assert run.clock.now < 1006


def test_everyone_is_asked_to_close_before_anyone_is_waited_for(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(1))
    asked_at_first_close = []

    def start(name, build, log, plain=run.launcher.start):
        handle = plain(name, build, log)
        if name == "ingest":
            handles = run.launcher.handles.values()
            handle.close = lambda wait_s: asked_at_first_close.extend(h.asked for [h] in handles)
        return handle

    run.launcher.start = start  # type: ignore[method-assign]
    run.to_the_end()
    assert asked_at_first_close == [True] * len(KINDS)


def test_a_worker_that_cannot_be_closed_keeps_no_other_from_closing(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=stop_after(1))

    def start(name, build, log, plain=run.launcher.start):
        handle = plain(name, build, log)
        if name == "ingest":
            handle.close = lambda wait_s: (_ for _ in ()).throw(OSError("disk full"))
        return handle

    run.launcher.start = start  # type: ignore[method-assign]
    assert run.to_the_end() is RunState.STOPPED
    assert {ends[0] for name, ends in run.ends().items() if name != "ingest"} == {"closed"}


def test_a_fault_of_the_coordinator_itself_still_closes_everyone_and_is_told(tmp_path):
    def burst(coordinator):
        if coordinator._clock() > 1002 and not coordinator._over():
            raise ZeroDivisionError

    run = Run(tmp_path, ENDLESS, at_tell=burst)
    with pytest.raises(ZeroDivisionError):
        run.to_the_end()
    assert run.ends() == {name: ["closed"] for name in KINDS}
    assert run.written["state"] == "failed"
    assert "coordinator.log" in run.written["reason"]


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "asked to stop")])
def test_a_signal_ends_the_run_cleanly_and_old_handlers_come_back(tmp_path, number, reason):
    before = signal.getsignal(number)
    run = Run(tmp_path, ENDLESS, at_tell=lambda c: signal.raise_signal(number) if not c._stop_asked else None)
    assert run.to_the_end() is RunState.STOPPED
    assert run.written["reason"] == reason
    assert signal.getsignal(number) is before


def test_a_second_signal_while_workers_close_kills_them_at_once(tmp_path):
    run = Run(tmp_path, ENDLESS, at_tell=lambda c: signal.raise_signal(signal.SIGINT) if not c._stop_asked else None)

    def start(name, build, log, plain=run.launcher.start):
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


PROCESS = """
import sys
from pathlib import Path
from pipelines.actors import LocalLauncher
from pipelines.config import Resources
from pipelines.coordinator import Coordinator
from pipelines.layout import RunDir
from pipelines.preflight import locked
from pipelines.status import RunStatus
from pipelines.workers.base import Worker

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
    jobs = [("teacher", "teacher", lambda: Busy("teacher"))]
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
