"""The supervision of the embedded broker: a broker that follows a script, a clock advanced by hand; then a real one."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import pytest

from pipelines.live.loop.embedded_broker import EmbeddedBroker
from pipelines.live.rules.restarts import Patience
from streaming.broker.broker import LocalBroker, RunningBroker
from streaming.errors import BadInput, DiskFull, StreamingError
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics, require_topics
from tests.support.pipelines.clocks import Clock
from tests.support.waiting import eventually

PATIENCE = Patience(max_restarts=2, restart_window_s=60, give_up_s=300, disk_give_up_s=100)


class Scripted:
    """A broker that is alive or not, and whose starts succeed or fail in turn."""

    def __init__(self, clock):
        self.clock, self.alive, self.stopped = clock, False, False
        self.failures: list[StreamingError] = []
        self.started_at: list[float] = []
        self.ports: list[int | None] = []

    def make(self, port):
        self.ports.append(port)
        return self

    def start(self, wait_s=0.0):
        self.started_at.append(self.clock())
        if self.failures:
            raise self.failures.pop(0)
        self.alive = True
        return RunningBroker("127.0.0.1:5000", 100 + len(self.started_at), 5000)

    def status(self):
        return RunningBroker("127.0.0.1:5000", 100 + len(self.started_at), 5000) if self.alive else None

    def stop(self, wait_s=0.0):
        self.alive, self.stopped = False, True
        return True

    def log_tail(self, lines=0):
        return "java.lang.Killed"


@pytest.fixture
def scripted(monkeypatch):
    """(the script, what supervises it, its status); nothing happens by itself."""
    monkeypatch.setattr("pipelines.live.loop.embedded_broker.POLL_S", 1e6)
    clock = Clock()
    script, status = Scripted(clock), {}
    supervised = EmbeddedBroker(script.make, status, PATIENCE, clock=clock)
    assert supervised.__enter__() == "127.0.0.1:5000"
    yield script, supervised, status
    supervised.__exit__(None, None, None)


def pass_time(script, supervised, seconds):
    for _ in range(round(seconds / 0.1)):
        script.clock.sleep(0.1)
        supervised.attend()


def test_a_broker_that_dies_is_started_again_at_its_port_and_counted(scripted):
    script, supervised, status = scripted
    pass_time(script, supervised, 5)
    assert (len(script.started_at), status["restarts"], status["pid"]) == (1, 0, 101)
    script.alive = False
    supervised.attend()
    assert status["pid"] is None
    assert "gone" in status["reason"]
    pass_time(script, supervised, 1)
    assert (status["restarts"], status["pid"], status["reason"]) == (1, 102, None)
    assert script.ports == [None, 5000]


def test_starts_that_fail_are_repeated_ever_later_and_given_up_with_the_last_words(scripted):
    script, supervised, status = scripted
    script.failures = [StreamingError(f"it ended while starting ({n})") for n in range(9)]
    script.alive = False
    pass_time(script, supervised, 30)
    assert [b - a for a, b in pairwise(script.started_at[1:])] == pytest.approx([1.0], abs=0.2)
    assert supervised.given_up == status["reason"]
    assert supervised.given_up.startswith("the embedded broker is not started again: it died 3 times within 60 s")
    assert supervised.given_up.endswith("(1)")
    assert status["pid"] is None


def test_a_full_disk_is_waited_for_and_counts_for_nothing(scripted):
    script, supervised, status = scripted
    script.failures = [DiskFull("3 MiB free")] * 8
    script.alive = False
    pass_time(script, supervised, 20)
    assert status["reason"] == "3 MiB free"
    pass_time(script, supervised, 70)
    assert (supervised.given_up, status["restarts"], status["pid"] is None) == (None, 1, False)


def test_a_port_that_somebody_has_meanwhile_is_waited_for_as_long_as_workers_wait(scripted):
    script, supervised, status = scripted
    script.failures = [BadInput("port 5000 is occupied by process 7")] * 12
    script.alive = False
    pass_time(script, supervised, 200)
    assert (supervised.given_up, status["restarts"]) == (None, 1)
    script.failures = [BadInput("port 5000 is occupied by process 7")] * 100
    script.alive = False
    pass_time(script, supervised, 330)
    assert "300 s are allowed (kafka.give_up_s)" in supervised.given_up
    assert supervised.given_up.endswith("occupied by process 7")


def test_a_disk_that_stays_full_is_given_up_with_both_times(scripted):
    script, supervised, _ = scripted
    script.failures = [DiskFull("3 MiB free")] * 100
    script.alive = False
    pass_time(script, supervised, 150)
    assert "100 s are allowed (resources.disk_give_up_s)" in supervised.given_up


def test_leaving_stops_the_broker(scripted):
    script, supervised, _ = scripted
    supervised.__exit__(None, None, None)
    assert script.stopped


@pytest.mark.broker
def test_a_real_broker_killed_is_back_with_its_topics_while_nobody_asks(tmp_path):
    status = {}
    patience = Patience(max_restarts=5, restart_window_s=600, give_up_s=300, disk_give_up_s=600)
    with EmbeddedBroker(lambda port: LocalBroker(tmp_path, port=port, heap_mb=256), status, patience) as servers:
        ensure_topics(KafkaSettings(bootstrap_servers=servers), {"kept": 3})
        first = status["pid"]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: status["restarts"], lambda: status, look_s=0.1)
        assert status["pid"] != first
        assert status["bootstrap_servers"] == servers
        assert require_topics(KafkaSettings(bootstrap_servers=servers), ["kept"]) == {"kept": 3}
    assert LocalBroker(tmp_path).status() is None
