"""The clock on the wall jumps under live augmentation: blocks go on, and nothing is taken for stale."""

from __future__ import annotations

import time

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from streaming.kafka.topics import ensure_topics
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from tests.support.pipelines.live_topic import Live
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.teacher_snapshots import publish_drawn
from tests.support.pipelines.topics import by_hand, ipc, send
from tests.support.streams.scripted import HandClock

pytestmark = pytest.mark.broker

DAY_MS = 86_400_000


def test_a_jump_of_the_wall_clock_neither_stalls_blocks_nor_takes_their_logits(broker, tmp_path):
    config = small(
        broker.bootstrap_servers, source=None, pace__mode="free", pace__commit_interval_s=5, pace__max_age_s=60,
        pace__block_rows=10_000, pace__max_rows_ahead=100_000, augmentation__idle_s=0.2,
    )  # fmt: skip
    run_dir, kafka = RunDir(tmp_path), config.kafka
    topics = (kafka.impressions, kafka.feedback, kafka.examples, kafka.dead_letters)
    ensure_topics(kafka, {topic.topic: topic.partitions for topic in topics})
    shown, _ = by_hand(config, 1500)
    prepare(config, run_dir)
    LakeTable(run_dir.lake, config.rows).open_writer()
    publish_drawn(config, run_dir, version=1)
    began_ms = int(time.time() * 1000)
    clock, wall_ms = HandClock(), [began_ms]
    worker = AugmentationWorker(config, run_dir, until_end=False, now_ms=lambda: wall_ms[0], clock=clock)
    worker.open()

    def block_of(rows) -> None:
        send(
            broker.bootstrap_servers,
            [(kafka.impressions.topic, n, ipc(rows[n::2], config.rows.impression)) for n in (0, 1)],
        )
        before = worker.report().lake_seq
        for _ in range(400):
            worker.step()
            clock.advance(2 if worker.block.num_rows else 0.1)  # silent partitions become idle by this clock
            if worker.report().lake_seq > before:
                return
        raise AssertionError("no block was made")

    try:
        for number, jump_ms in enumerate((0, -DAY_MS, 2 * DAY_MS)):
            wall_ms[0] += jump_ms
            block_of(shown[500 * number : 500 * (number + 1)])
    finally:
        worker.close()
    lake = LakeReader(run_dir.lake, config.rows).read().table
    assert lake["block"].to_pylist()[-1] == 2
    assert lake["teacher_version"].null_count == 0
    assert set(lake["scored_at_ms"].to_pylist()) == {began_ms, began_ms - DAY_MS, began_ms + DAY_MS}


def test_a_clock_that_steps_back_refuses_no_row_and_is_named_once(broker, tmp_path):
    live = Live(broker.bootstrap_servers, tmp_path)
    now_ms = max(row["event_time_ms"] for row in live.shown + live.feedback)
    clock, wall_ms = HandClock(), [now_ms]
    worker = AugmentationWorker(live.config, live.run_dir, until_end=False, now_ms=lambda: wall_ms[0], clock=clock)
    worker.open()
    try:
        wall_ms[0] = now_ms - 600_000
        live.send(live.shown, live.feedback)
        quiet = 0
        while quiet < 30:
            quiet = 0 if worker.step() else quiet + 1
            clock.advance(0.1)
            wall_ms[0] += 100
        report = worker.report()
    finally:
        worker.close()
    letters = report.counts["dead_letters"]
    assert letters["impression"] == {}
    assert letters["feedback"].keys() <= {"unknown_impression"}
    assert report.counts["impressions_read"] == len(live.shown)
    [warning] = report.counts["warnings"]
    assert "went back by 600 s" in warning
    assert "mend watermark" not in str(report.note)
