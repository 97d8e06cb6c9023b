"""Workers that share a process: stepped in turn, and failing alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from pipelines.core.config.sections import Resources
from pipelines.live.launch.ray import Handle, RayLauncher
from pipelines.live.rules.causes import Died
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders, Worker
from streaming.errors import DataLost
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.ray


class Counting(Worker):
    """Counts its steps; fails, or kills its process, at the third while a file of its name is there."""

    kind = "student"

    def __init__(self, name: str, place: Path) -> None:
        super().__init__(name)
        self._place = place

    def open(self) -> None:
        pass

    def step(self) -> bool:
        self.rows += 1
        trouble = self._place / self.name
        if self.rows == 3 and trouble.exists():
            ending = trouble.read_text()
            trouble.unlink()
            if ending == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise DataLost("nothing left to read")
        time.sleep(0.005)  # work: a step
        return True

    @property
    def done(self) -> bool:
        return False


def build(name: str, place: Path, rendezvous: Rendezvous) -> Worker:
    return Counting(name, place)


@pytest.fixture(scope="module")
def launcher() -> Iterator[RayLauncher]:
    launcher = RayLauncher(Resources(cpus_per_worker=0.1, students_per_host=3))
    yield launcher
    launcher.shutdown()


def started(launcher: RayLauncher, name: str, place: Path, host: str) -> Handle:
    return launcher.start(name, partial(build, name, place), place / f"{name}.log", 1, host)


def next_report(handle: Handle) -> Report:
    """Raises Died where it dies first."""
    report: Report = eventually(lambda: handle.poll(Orders()), look_s=0.01)
    return report


def until_it_dies(handle: Handle) -> Died:
    for _ in range(1000):
        try:
            next_report(handle)
        except Died as death:
            return death
    raise AssertionError("it lives on")


def test_one_that_fails_is_dropped_alone_and_opened_again_in_the_same_process(launcher, tmp_path):
    (tmp_path / "bad").write_text("fails")
    good, bad = (started(launcher, name, tmp_path, "failing") for name in ("good", "bad"))
    pid = next_report(good).pid
    assert "nothing left to read" in str(until_it_dies(bad))
    rows = next_report(good).rows
    again = started(launcher, "bad", tmp_path, "failing")
    assert next_report(again).pid == next_report(good).pid == pid
    assert next_report(good).rows > rows  # it never began anew
    assert "nothing left to read" in (tmp_path / "bad.log").read_text()
    assert "nothing left to read" not in (tmp_path / "good.log").read_text()
    for handle in (good, again):
        assert handle.close(PATIENCE_S) is not None


def test_the_one_whose_turn_it_was_when_the_process_ended_is_started_in_its_own(launcher, tmp_path):
    (tmp_path / "fatal").write_text("killed")
    fine, fatal = (started(launcher, name, tmp_path, "ending") for name in ("fine", "fatal"))
    deaths = [until_it_dies(handle) for handle in (fatal, fine)]
    assert all("actor" in str(death) for death in deaths)
    fine, fatal, other = (started(launcher, name, tmp_path, "ending") for name in ("fine", "fatal", "other"))
    pids = [next_report(handle).pid for handle in (fine, fatal, other)]
    assert pids[0] == pids[2] != pids[1]
    for handle in (fine, fatal, other):
        assert handle.close(PATIENCE_S) is not None


def test_a_slot_that_is_free_is_taken_before_a_process_is_started_and_an_empty_process_ends(launcher, tmp_path):
    first = [started(launcher, f"one-{n}", tmp_path, "filling") for n in range(3)]
    (pid,) = {next_report(handle).pid for handle in first}
    fourth = started(launcher, "four", tmp_path, "filling")
    other = next_report(fourth).pid
    assert other != pid
    assert first[0].close(PATIENCE_S) is not None
    fifth = started(launcher, "five", tmp_path, "filling")
    assert next_report(fifth).pid == pid
    assert fourth.close(PATIENCE_S) is not None
    eventually(lambda: not psutil.pid_exists(other), look_s=0.05)
    for handle in (*first[1:], fifth):
        assert handle.close(PATIENCE_S) is not None


def test_a_ray_of_the_runs_own_has_no_dashboard_autoscaler_or_reader_of_logs(launcher):
    from ray._private.worker import _global_node

    assert {*_global_node.all_processes} == {"gcs_server", "raylet"}
