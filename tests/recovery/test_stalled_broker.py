"""A broker that stands still, restarts or stays away for longer than the windows: no label turns 0.

Feedback is on its way while impressions wait for it: written before the outage and not read yet, or held back by its
producer until the broker is back, and then later than impressions that lie windows ahead.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from streaming.broker.broker import LocalBroker
from streaming.errors import BrokerAway
from streaming.intake.intake import InputTopic, Intake
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.position import Partition
from streaming.schema import RowSchema, Task
from streaming.settlement.settlement import Settlement
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

WINDOW_S, IDLE_S = 1.0, 30.0
OUTAGE_S = WINDOW_S + IDLE_S + 1.5
SCHEMA = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=WINDOW_S),))
ADS, CLICKS = Partition("ads", 0), Partition("clicks", 0)


class Live:
    """Two topics, and the rows that their merge and settlement bring out, as live augmentation reads them; by a clock
    that the test sets ahead."""

    def __init__(self, broker: LocalBroker, settings: KafkaSettings, suffix: str) -> None:
        self.broker, self.settings = broker, settings
        self.ads, self.clicks = Partition(f"ads-{suffix}", 0), Partition(f"clicks-{suffix}", 0)
        ensure_topics(settings, {self.ads.topic: 1, self.clicks.topic: 1})
        self.settlement = Settlement(SCHEMA)
        self.labels: dict[int, int] = {}
        self.ahead_s = 0.0
        self.intake = self.open(None)

    def clock(self) -> float:
        return time.monotonic() + self.ahead_s

    def open(self, position: dict[str, Any] | None) -> Intake:
        topics = [
            InputTopic(self.ads.topic, 1, "json", "impression"),
            InputTopic(self.clicks.topic, 1, "json", "feedback"),
        ]
        source = TopicReader(self.settings, [self.ads, self.clicks], clock=self.clock)
        intake = Intake(SCHEMA, source, topics, buffer_rows=1000, idle_s=IDLE_S, clock=self.clock)
        intake.open(position)
        return intake

    def show(self, *rows: tuple[int, int]) -> None:
        """Impressions (id, event time), written and acknowledged."""
        self._write(self.ads, [{"impression_id": i, "event_time_ms": t, "vertical": "a"} for i, t in rows])

    def click(self, *rows: tuple[int, int]) -> None:
        self._write(self.clicks, [{"impression_id": i, "event_time_ms": t, "task": "ctr"} for i, t in rows])

    def _write(self, partition: Partition, rows: list[dict[str, Any]]) -> None:
        with TopicWriter(self.settings, partition.topic) as writer:
            writer.write(0, [json.dumps(row).encode() for row in rows])

    def look(self) -> None:
        if (chunk := self.intake.next_batch()) is not None:
            for row in self.settlement.step(chunk).batch.to_pylist():
                self.labels[row["impression_id"]] = row["label_ctr"]

    def read(self, until: Callable[[], bool], *, passing_s: float = IDLE_S / 4) -> None:
        """Look again and again; so much time passes from one look to the next."""

        def seen() -> bool:
            self.look()
            self.ahead_s += passing_s
            return until()

        eventually(seen)


def stop_and_continue(live: Live) -> Callable[[], None]:
    running = live.broker.status()
    assert running is not None
    os.kill(running.pid, signal.SIGSTOP)
    return lambda: os.kill(running.pid, signal.SIGCONT)


def restart(live: Live) -> Callable[[], None]:
    port = live.broker.status().port
    live.broker.stop()

    def back() -> None:
        assert live.broker.start(wait_s=120).port == port

    return back


@pytest.mark.parametrize("outage", [stop_and_continue, pytest.param(restart, marks=pytest.mark.slow)])
def test_an_outage_longer_than_the_window_turns_no_label_to_0(own_broker, outage):
    settings = KafkaSettings(bootstrap_servers=own_broker.status().bootstrap_servers, request_timeout_s=20)
    live = Live(own_broker, settings, outage.__name__)
    live.show((1, 0), (2, 0), (3, 10))
    live.read(lambda: live.settlement.watermark_ms == 10)  # clicks are idle: they never brought a row
    assert live.settlement.pending("ctr") == 3

    live.click((1, 500))  # written, and not read before the broker stands still
    back = outage(live)
    try:
        live.look()
        for _ in range(2):
            live.ahead_s += OUTAGE_S / 2
            live.look()
        assert live.intake.note == "the broker does not answer; event time stands still"
        assert live.intake.lag() is None  # not 0: what is written meanwhile is not seen
        assert live.labels == {}
        assert live.intake.watermark_ms == 10
    finally:
        back()
    live.show((4, 60_000), (5, 60_010))  # a minute ahead: every window before is over once these are let pass
    for _ in range(10):
        live.look()
    live.ahead_s += IDLE_S / 2
    live.look()
    live.click((2, 600), (3, 700))  # its producer was slower to come back
    live.read(lambda: len(live.labels) >= 3)
    live.intake.close()
    assert live.labels == {1: 1, 2: 1, 3: 1}
    assert live.settlement.counters()["late_feedback"] == 0


@pytest.mark.slow
def test_a_broker_gone_for_longer_than_patience_ends_the_process_and_not_the_labels(own_broker):
    servers = own_broker.status().bootstrap_servers
    settings = KafkaSettings(bootstrap_servers=servers, request_timeout_s=20, connect_timeout_s=1, give_up_s=2)
    live = Live(own_broker, settings, "gone")
    live.show((1, 0), (2, 10))
    live.read(lambda: live.settlement.watermark_ms == 10)
    live.click((1, 500))
    back = restart(live)
    try:
        with pytest.raises(BrokerAway, match=rf"{servers} has not answered for [2-9] s; .*nothing is lost"):
            live.read(lambda: False, passing_s=0)
        position = live.intake.position()
        live.intake.close()
        with pytest.raises(BrokerAway, match=rf"no Kafka broker answers at {servers} \(tried 1 s\)"):
            live.open(position)
    finally:
        back()
    assert live.intake.watermark_ms == 10
    live.intake = live.open(position)
    live.show((3, 60_000), (4, 60_010))
    live.click((2, 600))
    live.read(lambda: len(live.labels) >= 2)
    live.intake.close()
    assert live.labels == {1: 1, 2: 1}
