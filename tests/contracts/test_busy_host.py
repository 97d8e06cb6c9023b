"""A worker that is to sit in a process which others share, and which is at work."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from pipelines.core.config.sections import Resources
from pipelines.live.launch.ray import SLOW_STARTS, RayLauncher
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.worker import Orders, Worker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PLACED_WITHIN_S = 2.0
OPENS_FOR_S = (SLOW_STARTS + 1) * PLACED_WITHIN_S


class Slow(Worker):
    """Takes a while to open."""

    kind = "student"

    def __init__(self, name: str, opens_for_s: float) -> None:
        super().__init__(name)
        self._opens_for_s = opens_for_s

    def open(self) -> None:
        time.sleep(self._opens_for_s)  # work: it opens

    def step(self) -> bool:
        self.rows += 1
        time.sleep(0.005)  # work: a step
        return True

    @property
    def done(self) -> bool:
        return False


def build(name: str, opens_for_s: float, rendezvous: Rendezvous) -> Worker:
    return Slow(name, opens_for_s)


def test_a_worker_waits_for_a_busy_host_however_long_it_takes(tmp_path):
    """A host that opens another worker answers late, later than any process that has a place takes to start."""
    launcher = RayLauncher(Resources(cpus_per_worker=0.2, students_per_host=2, placement_timeout_s=PLACED_WITHIN_S))
    try:
        slow = launcher.start("slow", partial(build, "slow", OPENS_FOR_S), log_of(tmp_path, "slow"), 1, "students")
        eventually(lambda: slow.poll(Orders()) or slow.node, look_s=0.01)  # its process runs, and opens it
        assert slow.poll(Orders()) is None
        late = launcher.start("late", partial(build, "late", 0.0), log_of(tmp_path, "late"), 1, "students")
        began = time.monotonic()
        report = eventually(lambda: late.poll(Orders()), look_s=0.01)
        assert time.monotonic() - began > SLOW_STARTS * PLACED_WITHIN_S
        assert report.rows > 0
        assert report.pid == (slow.poll(Orders()) or report).pid
        for handle in (slow, late):
            assert handle.close(20) is not None
    finally:
        launcher.shutdown()


def log_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"
