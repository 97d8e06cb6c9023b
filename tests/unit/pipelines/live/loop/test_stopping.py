"""A run that is stopped, by a signal or by a fault of its own, closes every worker and says why."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import locked
from pipelines.live.rules.states import RunState
from streaming.errors import BadInput
from streaming.store.files import read_json
from tests.support.pipelines.scripted_run import ENDING, ENDLESS, Run, stop_after
from tests.support.waiting import PATIENCE_S, eventually


def once(number):
    """A signal, unless stopping was asked for already."""

    def at_tell(run):
        if run.live.stop_asked is None:
            signal.raise_signal(number)

    return at_tell


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
        if run.clock() > 1002 and not run.live.over:
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
from pipelines.live.launch.local import LocalLauncher
from pipelines.core.config.sections import Resources
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.kinds import Kind
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import locked
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.worker import Worker
from tests.support.pipelines.scripted_run import live_run

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
    jobs = [WorkerSpec("teacher", Kind.TEACHER, lambda rendezvous: Busy("teacher"))]
    print(live_run(LocalLauncher(), run_dir, RunStatus("busy"), jobs, Resources()).run())
"""


def test_sigterm_stops_a_real_process_which_until_then_holds_its_run_directory(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        run_dir = RunDir(tmp_path)
        eventually(lambda: process.poll() is not None or (read_json(run_dir.status) or {}).get("state") == "running")
        assert process.poll() is None
        words = f"is being run by another process .*{process.pid}.*exfm stop"
        with pytest.raises(BadInput, match=words), locked(run_dir):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE_S)[0].strip() == "stopped"
    finally:
        process.kill()
    assert process.returncode == 0
    value = json.loads(run_dir.status.read_text())
    assert (value["state"], value["reason"], value["pid"]) == ("stopped", "asked to stop", process.pid)
    assert int((tmp_path / "closed").read_text()) > 0
    with locked(run_dir):  # free again
        pass
