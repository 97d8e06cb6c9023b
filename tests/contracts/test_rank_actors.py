"""Several Ray actors that hold one worker: their rounds, and what one of them drags down with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipelines.core.config.sections import Resources
from pipelines.live.launch.ray import Handle, RayLauncher
from pipelines.live.rules.causes import Died
from pipelines.live.rules.restarts import Cause
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders, Worker
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.ray

COLLECTIVE_S = 3.0


class Counting(Worker):
    """Every step the ranks add up what each of them brings; rank 0 alone looks at the clock."""

    kind = "teacher"

    def __init__(self, at: Rendezvous) -> None:
        super().__init__("teacher")
        self._at = at

    def open(self) -> None:
        self._ranks = Ranks(self._at, collective_s=COLLECTIVE_S)
        assert self._ranks.broadcast_text(lambda: "of rank 0") == "of rank 0"
        assert list(self._ranks.shard(3)) == ([0], [1, 2])[self._ranks.rank]
        assert self._ranks.all_gather([self._ranks.rank, 7]).tolist() == [[0, 7], [1, 7]]

    def _go_on(self, mine: bool) -> bool:
        return bool(self._ranks.broadcast(mine if self._ranks.first else not mine))  # the others' clocks do not matter

    def step(self) -> bool:
        self.rows += int(self._ranks.sum(np.array([1]))[0])
        self.own_rows += 1
        time.sleep(0.01)  # work: a step
        return True

    @property
    def done(self) -> bool:
        return False

    def describe(self, report: Report) -> None:
        report.own_rows = self.own_rows

    own_rows = 0


@pytest.fixture(scope="module")
def launcher() -> Iterator[RayLauncher]:
    launcher = RayLauncher(Resources(cpus_per_worker=0.1, placement_timeout_s=5))
    yield launcher
    launcher.shutdown()


@pytest.fixture
def start(launcher, tmp_path) -> Iterator[Callable[[], Handle]]:
    handles = []

    def started() -> Handle:
        handles.append(launcher.start("teacher", Counting, tmp_path / "teacher.log", ranks=2))
        return handles[-1]

    yield started
    for handle in handles:
        handle.kill()


def polled(handle: Handle, until: Callable[[Report], bool]) -> Report:
    def there() -> Report | None:
        report = handle.poll(Orders())
        return report if report is not None and until(report) else None

    report: Report = eventually(there, lambda: "it neither gets there nor dies", look_s=0.02)
    return report


def never(report: Report) -> bool:
    return False


def assert_gone(report: Report) -> None:
    processes = [psutil.Process(rank.pid) for rank in report.ranks if psutil.pid_exists(rank.pid)]
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []


def test_ranks_step_together_report_as_one_and_wait_for_nobody_between_two_rounds(start, tmp_path):
    handle = start()
    first = polled(handle, lambda report: report.rows > 0)
    assert [rank.rank for rank in first.ranks] == [0, 1]
    assert first.pid == first.ranks[0].pid != first.ranks[1].pid
    assert first.rows == sum(rank.rows for rank in first.ranks)
    assert first.rss_bytes == sum(rank.rss_bytes for rank in first.ranks) > 2 * 30 << 20
    logs = [(tmp_path / name).read_text() for name in ("teacher.log", "teacher-rank1.log")]
    assert [f"pid {rank.pid} on" in log for rank, log in zip(first.ranks, logs, strict=True)] == [True, True]
    time.sleep(1.5 * COLLECTIVE_S)  # work: a coordinator that was paused
    assert polled(handle, lambda report: report.rows > first.rows + 200).pid == first.pid
    assert len(handle.close(PATIENCE_S).ranks) == 2
    assert_gone(first)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_takes_the_others_with_it(start, rank):
    handle = start()
    working = polled(handle, lambda report: report.rows > 0)
    os.kill(working.ranks[rank].pid, signal.SIGKILL)
    with pytest.raises(Died, match=f"^rank {rank} of 2: .*actor") as caught:
        polled(handle, never)
    assert caught.value.cause is Cause.CRASH
    assert_gone(working)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stands_still_is_waited_for_no_longer_than_a_collective_may_take(start, rank):
    handle = start()
    working = polled(handle, lambda report: report.rows > 0)
    os.kill(working.ranks[rank].pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    with pytest.raises(Died, match=f"^rank {1 - rank} of 2: RuntimeError.*; rank {rank} did not answer"):
        polled(handle, never)
    assert time.monotonic() - stopped_at < COLLECTIVE_S + 5
    assert_gone(working)


@pytest.mark.slow
def test_a_group_that_finds_no_place_says_what_it_needs_and_holds_nothing(launcher, tmp_path):
    many = 10 * int(1 + (os.cpu_count() or 1))
    handle = launcher.start("teacher", Counting, tmp_path / "teacher.log", ranks=many)
    words = rf"no place for teacher within \d+ s: it needs {many / 10:g} CPU \({many} ranks of 0.1, all or none\), "
    with pytest.raises(Died, match=words + r".* are free; fewer teacher ranks, lower"):
        polled(handle, never)
    small = launcher.start("teacher", partial(Alone, tmp_path), tmp_path / "teacher.log")
    assert polled(small, lambda report: report.rows > 0).ranks == []
    small.kill()


class Alone(Counting):
    def __init__(self, place: Path, at: Rendezvous) -> None:
        super().__init__(at)
        assert at == Rendezvous()

    def open(self) -> None:
        self._ranks = Ranks(self._at)
