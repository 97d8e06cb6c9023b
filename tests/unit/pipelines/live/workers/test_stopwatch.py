"""A worker's time by phase, and how it steps within its budget."""

from __future__ import annotations

import pytest

from pipelines.live.workers.stopwatch import Stopwatch
from pipelines.live.workers.worker import Orders, Worker


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_time_counts_once_in_the_innermost_phase():
    clock = Clock()
    watch = Stopwatch(clock)
    with watch("read"):
        clock.now += 1
        with watch("decode"):
            clock.now += 10
            with watch("check"):
                clock.now += 100
        clock.now += 1000
        with watch("decode"):
            clock.now += 20
    assert watch.phases_s == {"check": 100, "decode": 30, "read": 1001}
    assert watch.busy_s == 1131 == clock.now


def test_waiting_is_a_phase_but_not_work():
    clock = Clock()
    watch = Stopwatch(clock, computed=lambda: 0.0)
    with watch("score"):
        clock.now += 2
        with watch("wait for teacher"):
            clock.now += 40
    assert watch.phases_s == {"score": 2, "wait for teacher": 40}
    assert watch.busy_s == 2


def test_what_is_computed_while_waiting_is_work_of_the_phase_around_it():
    clock, computed = Clock(), Clock()
    watch = Stopwatch(clock, computed)
    with watch("read"):
        clock.now += 1
        with watch("wait for messages"):
            clock.now += 40  # 38 in which nothing came, 2 of unpacking
            computed.now += 2
    assert watch.phases_s == {"read": 3, "wait for messages": 38}
    assert watch.busy_s == 3
    with watch("wait for rows"):  # alone, it is nobody's work
        clock.now += 5
        computed.now += 1
    assert watch.phases_s["wait for rows"] == 5


def test_cpu_seconds_count_once_in_the_innermost_phase_and_of_every_thread_with_a_stopwatch():
    clock, computed = Clock(), Clock()
    watch = Stopwatch(clock, computed)
    with watch("read"):
        computed.now += 1
        with watch("wait for messages"):
            clock.now += 40
            computed.now += 2
    with watch.parallel()("batch"):
        pass
    assert watch.cpu_s == {"read": 1, "wait for messages": 2, "batch": pytest.approx(0, abs=0.1)}


def test_a_phase_inside_a_waiting_one_counts_once():
    clock, computed = Clock(), Clock()
    watch = Stopwatch(clock, computed)
    with watch("read"), watch("wait for messages"):
        clock.now += 10
        with watch("decode"):
            clock.now += 3
            computed.now += 3
    assert watch.phases_s == {"decode": 3, "wait for messages": 10, "read": 0}


def test_time_between_phases_is_nobodys():
    clock = Clock()
    watch = Stopwatch(clock)
    with watch("train"):
        clock.now += 2
    clock.now += 50
    with watch("train"):
        clock.now += 3
    assert watch.phases_s == {"train": 5}


def test_a_phase_within_itself_counts_once():
    clock = Clock()
    watch = Stopwatch(clock)
    with watch("read"):
        clock.now += 1
        with watch("read"):
            clock.now += 2
    assert watch.phases_s == {"read": 3}


def test_a_phase_that_fails_is_counted_and_leaves_nothing_behind():
    clock = Clock()
    watch = Stopwatch(clock)

    def fails():
        with watch("read"), watch("decode"):
            clock.now += 4
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with watch("train"):
        clock.now += 1
    assert watch.phases_s == {"decode": 4, "read": 0, "train": 1}


def test_reading_the_watch_does_not_change_it():
    watch = Stopwatch()
    watch.phases_s["mine"] = 1.0
    assert watch.phases_s == {}


class Counting(Worker):
    kind = "teacher"

    def __init__(self, end):
        super().__init__("teacher")
        self.end = end
        self.steps = 0

    def open(self):
        pass

    def step(self):
        self.steps += 1
        self.rows += 10
        self.log_metrics(self.rows, {"ne_ctr": 0.9, "auc_ctr": None})
        return True

    @property
    def done(self):
        return self.orders.end_seq is not None and self.steps >= self.end


def test_a_worker_steps_until_it_is_done_and_no_further():
    worker = Counting(end=3)
    report = worker.advance(60, Orders(end_seq=99))
    assert (worker.steps, report.rows, report.done, report.state) == (3, 30, True, "done")
    assert worker.advance(60, Orders(end_seq=99)).rows == 30


def test_a_worker_that_is_not_done_stops_at_its_budget():
    report = Counting(end=3).advance(0.01, Orders())
    assert report.rows >= 10
    assert (report.done, report.state) == (False, "running")
    assert report.rss_bytes > 1 << 20
    assert report.peak_rss_bytes >= report.rss_bytes / 2


def test_metrics_are_reported_once_and_undefined_ones_never():
    worker = Counting(end=2)
    assert worker.advance(60, Orders(end_seq=1)).metrics == [(10, {"ne_ctr": 0.9}), (20, {"ne_ctr": 0.9})]
    assert worker.report().metrics == []
