"""What is written beside the work is written in order, costs a step nothing, and never fails unseen."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from pipelines.live.training.writer import Writer
from pipelines.live.workers.stopwatch import Stopwatch
from tests.support.pipelines.disks import DiskFull, waits_for_disk
from tests.support.waiting import PATIENCE_S, eventually


class Disk:
    """A disk that writes when the test lets it."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.began = 0
        self._allowed = threading.Semaphore(0)

    def let_through(self, count: int = 1) -> None:
        for _ in range(count):
            self._allowed.release()

    def write(self, number: int):
        def write() -> None:
            self.began += 1
            assert self._allowed.acquire(timeout=PATIENCE_S)
            self.written.append(number)

        return write


def fails(writer) -> bool:
    try:
        writer.check()
    except DiskFull:
        return True
    return False


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.let_through(100)


@pytest.mark.parametrize("bound", [1, 3])
def test_a_disk_that_stands_still_delays_nobody_until_the_queue_is_full(disk, bound, monkeypatch):
    watch, waits = Stopwatch(), waits_for_disk(monkeypatch)
    writer = Writer("test", bound, watch)
    for number in range(bound + 1):  # one is being written, the others wait
        writer.put(disk.write(number))
        if number == 0:
            eventually(lambda: disk.began == 1)
    assert "wait for disk" not in watch.phases_s
    assert not writer.idle

    late = threading.Thread(target=writer.put, args=[disk.write(bound + 1)])
    late.start()
    assert waits.wait(PATIENCE_S)
    late.join(0.05)
    assert late.is_alive()  # full: this one waits for the disk
    disk.let_through()
    late.join(PATIENCE_S)
    assert not late.is_alive()
    assert watch.phases_s["wait for disk"] >= 0.04
    assert watch.busy_s == 0  # waiting is not work
    disk.let_through(bound + 1)
    writer.close()
    assert disk.written == list(range(bound + 2))


def test_closing_waits_for_everything_and_ends_the_thread(disk):
    writer = Writer("test", 2)
    writer.put(disk.write(0)), writer.put(disk.write(1))
    disk.let_through(2)
    writer.close()
    assert disk.written == [0, 1]
    assert not any(thread.name == "test-writer" for thread in threading.enumerate())


def test_what_fails_is_raised_as_it_is_wherever_the_worker_asks_next_and_nothing_behind_it_is_written():
    def full() -> None:
        raise DiskFull("no space left")

    written: list[int] = []
    for ask in ("put", "check", "drain", "close", "idle"):
        writer, go = Writer("test", 5), threading.Event()
        writer.put(lambda go=go: go.wait(PATIENCE_S) and full())
        writer.put(lambda: written.append(1))
        go.set()
        eventually(lambda writer=writer: fails(writer))
        with pytest.raises(DiskFull, match="no space left"):
            getattr(writer, ask)(*[lambda: written.append(2)] * (ask == "put"))
        with pytest.raises(DiskFull):
            writer.close()
    assert written == []


def test_a_worker_that_waits_for_a_disk_that_fails_is_not_left_waiting(disk):
    writer, go = Writer("test", 1), threading.Event()

    def fail() -> None:
        go.wait(PATIENCE_S)
        raise DiskFull

    writer.put(fail)
    eventually(lambda: writer.has_room)
    writer.put(disk.write(1))
    raised: list[BaseException] = []

    def put() -> None:
        try:
            writer.put(disk.write(2))
        except DiskFull as error:
            raised.append(error)

    late = threading.Thread(target=put)
    late.start()
    go.set()
    late.join(PATIENCE_S)
    assert len(raised) == 1
    assert disk.written == []


def test_abandoned_like_a_crash_it_finishes_what_it_is_writing_and_nothing_more(disk):
    writer = Writer("test", 3)
    for number in range(3):
        writer.put(disk.write(number))
    eventually(lambda: disk.began == 1)
    threading.Timer(0.02, disk.let_through).start()
    writer.abandon()
    assert disk.written == [0]
    assert not any(thread.name == "test-writer" for thread in threading.enumerate())


def test_a_copy_is_let_go_once_it_is_written():
    class Copy:
        pass

    copy = Copy()
    seen = weakref.ref(copy)
    writer = Writer("test", 1)
    writer.put(lambda copy=copy: None)
    del copy
    writer.drain()
    gc.collect()
    assert seen() is None
    writer.close()
