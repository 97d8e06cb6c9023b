"""Input topics that get more partitions while a run reads them: none is left unread without a word, and with `--evolve`
every row of them is in the lake, once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka import KafkaAdminClient

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.end_offsets import stored_ends
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from streaming.errors import BadInput
from streaming.lake.writer import LakeWriter
from streaming.position import Partition
from streaming.settlement.settlement import Settlement
from tests.support.pipelines.crashes import Point, crash_at
from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.small_runs import assert_learned_the_lake, slow_commits, small, stop_after, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, grow, make_inputs, send

pytestmark = pytest.mark.broker

IMPRESSIONS, FEEDBACK = 4, 3


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.rules.restarts.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


@pytest.fixture
def config(broker) -> Config:
    codecs = {f"kafka__{kind}__codec": "json" for kind in ("impressions", "feedback")}
    found = small(broker.bootstrap_servers, source=None, students=[], pace__block_rows=256, **codecs)
    make_inputs(found)
    return found


def grown(config: Config) -> Config:
    """The config as it is edited when the topics have more partitions, one of them more than the other."""
    kafka = config.kafka
    topics = {
        "impressions": kafka.impressions.model_copy(update={"partitions": IMPRESSIONS}),
        "feedback": kafka.feedback.model_copy(update={"partitions": FEEDBACK}),
    }
    return config.model_copy(update={"kafka": kafka.model_copy(update=topics)})


def send_all(config: Config, shown: list[dict[str, Any]], feedback: list[dict[str, Any]], first: int) -> None:
    """Impressions to partitions `first` and `first` + 1, feedback to the one that its producer finds."""
    kafka = config.kafka
    spread = 2 if first == 0 else FEEDBACK - first
    rows = [(kafka.impressions.topic, first + row["impression_id"] % 2, row) for row in shown]
    rows += [(kafka.feedback.topic, first + row["impression_id"] // 2 % spread, row) for row in feedback]
    send(str(kafka.bootstrap_servers), [(topic, number, json.dumps(row).encode()) for topic, number, row in rows])


def test_rows_of_partitions_that_were_added_are_in_the_lake_exactly_once_whatever_crashes(
    config, tmp_path, monkeypatch
):
    servers, root = str(config.kafka.bootstrap_servers), tmp_path / "run"
    shown, feedback = by_hand(config, 3000)
    half_ms = shown[1500]["event_time_ms"]
    send_all(config, shown[:1500], [row for row in feedback if row["event_time_ms"] < half_ms], first=0)
    with slow_commits():
        status, _ = run(config, RunDir(root), local=True, until_end=True, watch=stop_after(300))
    assert status.state is RunState.STOPPED, status.reason
    assert status.lake.rows < 1000
    ends = stored_ends(RunDir(root).end_offsets)

    admin = KafkaAdminClient(bootstrap_servers=servers)
    grow(admin, {config.kafka.impressions.topic: IMPRESSIONS, config.kafka.feedback.topic: FEEDBACK})
    admin.close()
    send_all(config, shown[1500:], [row for row in feedback if row["event_time_ms"] >= half_ms], first=2)
    with pytest.raises(BadInput, match=r"has 4 partitions, and 2 are configured, .* resumed with --evolve"):
        run(config, RunDir(root), local=True, until_end=True)
    config = grown(config)
    with pytest.raises(BadInput, match=r"partitions was 2, is 3; .* Or continue it with --evolve: topic `small-impr"):
        run(config, RunDir(root), local=True, until_end=True)
    too_many = grown(config)
    more = too_many.kafka.impressions.model_copy(update={"partitions": IMPRESSIONS + 1})
    too_many = too_many.model_copy(update={"kafka": too_many.kafka.model_copy(update={"impressions": more})})
    with pytest.raises(BadInput, match=r"has 4 partitions, and 5 are configured; set its `partitions` to 4"):
        run(too_many, RunDir(root), local=True, until_end=True, evolve=True)  # of which nothing is written down

    # The state is saved and not committed; the added partitions are committed and nothing of them is read; and later.
    points = [Point(Settlement, "save", 1), Point(LakeWriter, "commit", 1), Point(LakeWriter, "commit", 4)]
    crashed: list[Point] = []
    for point in points:
        crash_at(monkeypatch, point, crashed)
    said: list[str] = []

    def watch(status: RunStatus) -> None:
        if set(crashed) == set(points):
            stop_after(0)(status)

    status, _ = run(config, RunDir(root), local=True, until_end=True, evolve=True, say=said.append, watch=watch)
    assert status.state is RunState.STOPPED, status.reason
    assert set(crashed) == set(points)
    assert any("is read in 4 partitions, 2 until now" in line for line in said)
    finished = to_the_end(config, root)  # from now on it is this run's config, and nothing is asked

    assert lake_rows(finished.lake) == expected_rows(config)
    clicked = set(zip(finished.lake["impression_id"].to_pylist(), finished.lake["label_ctr"].to_pylist(), strict=True))
    assert {row["impression_id"] for row in shown[:1500]} & {row["impression_id"] for row in feedback} <= {
        number for number, label in clicked if label
    } | {row["impression_id"] for row in finished.side_table("late_feedback")}
    counts = finished.summary["counts"]
    assert counts["impressions_read"] == len(shown)
    assert counts["feedback_read"] == len(feedback)
    assert counts["offsets"]["impression"]["offsets"] == len(shown)
    assert counts_hold(counts)
    assert_learned_the_lake(finished)
    now = stored_ends(RunDir(root).end_offsets)
    assert {partition: now[partition] for partition in ends} == ends
    assert set(now) - set(ends) == {
        *(Partition(config.kafka.impressions.topic, number) for number in (2, 3)),
        Partition(config.kafka.feedback.topic, 2),
    }


def test_a_row_that_retention_deleted_from_an_added_partition_is_missed(config, tmp_path):
    root, kafka = tmp_path / "run", config.kafka
    shown, feedback = by_hand(config, 1000)
    send_all(config, shown, feedback, first=0)
    status, _ = run(config, RunDir(root), local=True, until_end=True, watch=stop_after(200))
    assert status.state is RunState.STOPPED, status.reason
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    grow(admin, {kafka.impressions.topic: IMPRESSIONS, kafka.feedback.topic: FEEDBACK})
    send_all(config, shown[-20:], [], first=2)
    deleted = Partition(kafka.impressions.topic, 2)
    admin.delete_records({deleted: 5})
    admin.close()
    status, _ = run(grown(config), RunDir(root), local=True, until_end=True, evolve=True)
    assert status.state is RunState.FAILED
    assert "partition 2" in str(status.reason)
    assert "5 messages are lost" in str(status.reason)
