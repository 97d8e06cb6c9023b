"""A partition without a message, which everything else waits for."""

from __future__ import annotations

import pytest

from tests.support.pipelines.live_topic import Live
from tests.support.pipelines.topics import ipc, send

pytestmark = pytest.mark.broker


def test_an_empty_partition_that_lockstep_waits_for_is_named(broker, tmp_path):
    live = Live(broker.bootstrap_servers, tmp_path, pace__mode="lockstep")
    topic = live.config.kafka.feedback.topic
    live.send(live.shown, [])
    send(live.servers, [(topic, 0, ipc(live.feedback, live.config.rows.feedback))])
    with live.reading() as report:
        assert report.counts["impressions_read"] == 0
        assert f"rows were read and wait for the next of {topic}/1 (empty). In lockstep every" in report.note
