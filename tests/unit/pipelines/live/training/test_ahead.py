"""What is read ahead comes in order, each once, never more than asked for; what went wrong is told where it belongs."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from pipelines.live.training.ahead import Ahead
from pipelines.live.workers.stopwatch import Stopwatch
from tests.support.waiting import PATIENCE_S, eventually


class Source:
    """Items 0, 1, 2 …, each when the test lets it through; `None` where it is told to be dry."""

    def __init__(self, allowed: int = 1_000_000, broken_at: int | None = None) -> None:
        self.read = 0
        self.by: set[str] = set()
        self._allowed = threading.Semaphore(allowed)
        self._broken_at = broken_at

    def let_through(self, count: int = 1) -> None:
        for _ in range(count):
            self._allowed.release()

    def next(self) -> int | None:
        self.by.add(threading.current_thread().name)
        if not self._allowed.acquire(timeout=0.01):
            return None
        if self.read == self._broken_at:
            raise ZeroDivisionError(f"item {self.read}")
        self.read += 1
        return self.read - 1


@pytest.fixture
def ahead():
    made: list[Ahead] = []

    def make(source: Source, bound: int) -> Ahead:
        made.append(Ahead("test", source.next, bound))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_every_item_is_taken_once_and_in_order(ahead, bound):
    source = Source()
    taken = ahead(source, bound)
    assert [taken.take(PATIENCE_S) for _ in range(200)] == list(range(200))
    assert source.by == ({"test-ahead"} if bound else {"MainThread"})


def test_no_more_is_read_than_may_lie_ready(ahead):
    source = Source()
    taken = ahead(source, 3)
    eventually(lambda: source.read >= 3)
    time.sleep(0.05)  # work: time enough to read on, which it must not
    assert source.read == 3  # the fourth is read when there is room for it
    assert taken.take() == 0
    eventually(lambda: source.read == 4)
    time.sleep(0.05)  # work: time enough to read on, which it must not
    assert source.read == 4


def test_without_a_thread_nothing_is_read_before_it_is_asked_for(ahead):
    source = Source()
    taken = ahead(source, 0)
    assert source.read == 0
    assert taken.peek() == 0
    assert taken.peek() == 0
    assert taken.take() == 0
    assert source.read == 1


@pytest.mark.parametrize("bound", [0, 2])
def test_a_source_that_has_nothing_yet_gives_nothing_and_later_something(ahead, bound):
    source = Source(allowed=0)
    taken = ahead(source, bound)
    assert taken.take(0.02) is None
    assert taken.peek(0.02) is None
    source.let_through(2)
    assert taken.take(PATIENCE_S) == 0
    assert taken.take(PATIENCE_S) == 1
    assert taken.take(0.02) is None


def test_a_taker_waits_for_an_item_in_the_making_and_no_longer(ahead):
    source = Source(allowed=0)
    taken = ahead(source, 1)
    threading.Timer(0.05, source.let_through).start()
    start = time.monotonic()
    assert taken.take(PATIENCE_S) == 0
    assert time.monotonic() - start < PATIENCE_S / 2


@pytest.mark.parametrize("bound", [0, 1, 5])
def test_an_error_comes_out_where_its_item_would_have_and_nothing_behind_it(ahead, bound):
    source = Source(broken_at=3)
    taken = ahead(source, bound)
    assert [taken.take(PATIENCE_S) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="item 3"):
            taken.take(PATIENCE_S)
    assert source.read == 3


def test_an_error_wakes_the_one_who_waits(ahead):
    source = Source(allowed=0, broken_at=0)
    taken = ahead(source, 1)
    threading.Timer(0.05, source.let_through).start()
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        taken.take(PATIENCE_S)
    assert time.monotonic() - start < PATIENCE_S / 2


@pytest.mark.parametrize("allowed", [0, 2, 100])
def test_closing_ends_the_thread_at_once_whether_it_reads_waits_or_has_no_room(ahead, allowed):
    source = Source(allowed=allowed)
    taken = ahead(source, 2)
    eventually(lambda: source.read == min(allowed, 2) and source.by)
    start = time.monotonic()
    taken.close()
    taken.close()
    assert time.monotonic() - start < PATIENCE_S / 2
    assert not any(thread.name == "test-ahead" for thread in threading.enumerate())
    read = source.read
    source.let_through(10)
    time.sleep(0.03)  # work: time enough to read on, which it must not
    assert source.read == read
    assert taken.take(0.01) is None


def test_what_was_taken_is_the_takers_alone(ahead):
    class Batch:
        pass

    made = Ahead("test", Batch, 1)
    item = made.take(PATIENCE_S)
    seen = weakref.ref(item)
    del item
    eventually(lambda: made.ready == 1)
    gc.collect()
    assert seen() is None
    made.close()


def test_time_of_a_thread_beside_shows_and_is_not_counted_twice():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    beside = watch.parallel()
    with watch("train"), beside("read"):  # at the same time
        now[0] += 5
    with watch("wait for rows"), beside("batch"):
        now[0] += 3
    assert watch.phases_s == {"train": 5, "wait for rows": 3, "read": 5, "batch": 3}
    assert watch.busy_s == 8  # the reader was the busier one: more rows a second it cannot bring
    with watch("train"):
        now[0] += 10
    assert watch.busy_s == 15
