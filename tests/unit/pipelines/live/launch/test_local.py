"""Workers of one process take turns: who has nothing to do takes none, and all sleep together or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.live.launch import ray as local
from pipelines.live.launch.local import LocalLauncher
from pipelines.live.workers.worker import Orders, Worker


class Sometimes(Worker):
    """Has work for so many steps."""

    kind = "student"

    def __init__(self, steps: int) -> None:
        super().__init__("sometimes")
        self.left = steps

    def open(self) -> None:
        pass

    @property
    def done(self) -> bool:
        return False

    def step(self) -> bool:
        self.left -= 1
        self.rows += self.left >= 0
        return self.left >= 0


@pytest.fixture
def slept(monkeypatch):
    naps: list[float] = []
    monkeypatch.setattr(local.time, "sleep", naps.append)
    return naps


def test_nobody_sleeps_while_one_has_something_to_do(slept):
    launcher, workers = LocalLauncher(), [Sometimes(0), Sometimes(1 << 60)]
    handles = [launcher.start("w", lambda at, worker=worker: worker, Path("log")) for worker in workers]
    reports = [handle.poll(Orders()) for handle in handles]
    launcher.rest(0.05)
    assert [report.rows > 0 for report in reports if report is not None] == [False, True]
    assert slept == []


def test_all_sleep_once_none_has_anything_to_do(slept):
    launcher, workers = LocalLauncher(), [Sometimes(0), Sometimes(3)]
    handles = [launcher.start("w", lambda at, worker=worker: worker, Path("log")) for worker in workers]
    assert [report.rows for handle in handles if (report := handle.poll(Orders()))] == [0, 3]
    launcher.rest(0.05)
    assert slept == [0.02]
