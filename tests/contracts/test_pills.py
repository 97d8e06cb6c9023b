"""Records that are valid one by one and that a run could not carry on with: each is a dead letter, and the run ends."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from kafka import KafkaProducer

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from streaming.errors import BadInput
from streaming.kafka.topics import ensure_topics
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, assert_same_run, small, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, send

pytestmark = pytest.mark.broker

COLUMNS = [
    {"name": "user_id", "minimum": 0},
    {"name": "ad_id"},
    {"name": "bid", "type": "float32"},
    {"name": "interest_0", "minimum": 0, "maximum": 4},
    {"name": "seen", "type": "list<int64>"},
    {"name": "liked", "type": "list<int64>", "max_length": 5},
]
SPARSE = [
    {"name": "user_id", "rows": 1000},
    {"name": "ad_id", "rows": 100, "transform": "index"},
    {"name": "vertical", "rows": 16},
    {"name": "interest_0", "rows": 5, "transform": "index"},
]


def config_of(servers: str, columns=COLUMNS, **settings: Any):
    return small(
        servers,
        source=None,
        rows__columns=columns,
        features__sparse=SPARSE,
        features__dense=[{"name": "bid"}],
        kafka__max_message_bytes=200_000,
        kafka__impressions__codec="json",
        kafka__feedback__codec="json",
        **settings,
    )


def test_a_row_too_large_to_publish_and_values_that_no_model_can_take_stop_nobody(broker, tmp_path):
    config = config_of(broker.bootstrap_servers)
    kafka = config.kafka
    ensure_topics(kafka, {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)})
    shown, feedback = by_hand(config, 600, duplicate_rate=0.0)
    shown = [row | {"ad_id": row["ad_id"] % 100, "seen": [1, 2], "liked": [3] * 5} for row in shown]
    shown[50]["seen"] = [7] * 6250  # 50,000 bytes, which is what fits, and the rest of the row
    shown[60]["seen"] = [7] * 20_000  # 60 KB of JSON, 160 KB of Arrow
    shown[70]["liked"] = [3] * 6
    shown[99]["ad_id"] = 100
    for number in range(200, 600, 50):
        shown[number]["bid"] = 3e38
    messages = [(kafka.impressions.topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in shown]
    messages += [(kafka.feedback.topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in feedback]
    messages.append((kafka.impressions.topic, 0, bytes(100_000)))  # of which 64 KiB are 384 KiB of JSON
    send(broker.bootstrap_servers, messages)
    finished = to_the_end(config, tmp_path / "run")
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    letters = [row for row in finished.side_table("dead_letters") if row["kind"] == "impression"]
    reasons = Counter(row["reason"] for row in letters)
    ones = ["out_of_range:ad_id", "row_too_large", "too_long:seen", "too_long:liked", "undecodable"]
    assert reasons == dict.fromkeys(ones, 1) | {"out_of_range:bid": 8}
    assert counts["dead_letters"] == 13
    assert max(letter["payload_bytes"] for letter in finished.dead_letter_messages()) == 100_000
    assert all(worker.get("quarantined_rows", 0) == 0 for worker in finished.summary["workers"].values())
    assert_learned_the_lake(finished)


def test_a_batch_that_unpacks_to_more_than_fits_is_refused_offset_by_offset(broker, tmp_path):
    config = config_of(broker.bootstrap_servers)
    kafka = config.kafka
    ensure_topics(kafka, {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)})
    shown, feedback = by_hand(config, 300, duplicate_rate=0.0)
    shown = [row | {"ad_id": row["ad_id"] % 100, "seen": [1, 2], "liked": []} for row in shown]
    messages = [(kafka.impressions.topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in shown]
    messages += [(kafka.feedback.topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in feedback]
    send(broker.bootstrap_servers, messages[:100])
    for codec in ("gzip", "zstd"):  # 160 MB each, in 155 and 5 KB
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, compression_type=codec, max_request_size=1 << 28, linger_ms=50
        )
        producer.send(kafka.impressions.topic, bytes(160_000_000), partition=0)
        producer.flush(60)
        producer.close()
    send(broker.bootstrap_servers, messages[100:])
    finished = to_the_end(config, tmp_path / "run")
    assert counts_hold(finished.summary["counts"])
    letters = [row for row in finished.side_table("dead_letters") if row["kind"] == "impression"]
    assert [row["reason"] for row in letters] == ["oversized"] * 2
    assert all("unpacks to more than 134,217,728" in row["detail"] for row in letters)
    assert_learned_the_lake(finished)


def test_what_waits_is_bounded_in_bytes_and_the_run_is_the_same(broker, tmp_path):
    """A partition of dead letters does not move event time on; a block stays open while thousands of them come."""

    def finished(name: str, **settings: Any) -> Finished:
        config = config_of(broker.bootstrap_servers, losses__fail_share=1.0, **settings)
        kafka = config.kafka
        ensure_topics(kafka, {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)})
        shown, feedback = by_hand(config, 600, duplicate_rate=0.0)
        shown = [row | {"ad_id": row["ad_id"] % 100, "seen": [1] * 50, "liked": []} for row in shown]
        messages = [(kafka.impressions.topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in shown]
        junk = [(kafka.impressions.topic, 0, b"{" + b"x" * 500)] * 4000
        messages = messages[:300] + junk + messages[300:]
        messages += [(kafka.feedback.topic, row["impression_id"] % 2, json.dumps(row).encode()) for row in feedback]
        send(broker.bootstrap_servers, messages)
        return to_the_end(config, tmp_path / name)

    plain = finished("plain")
    with patch("pipelines.live.workers.augmentation.block.MEMORY_BYTES", 1000):
        bounded = finished("bounded", augmentation__buffer_mb=0.01)
    assert len(plain.side_table("dead_letters")) > 4000
    assert_same_run(bounded, plain)
    assert len(bounded.dead_letter_messages()) == len(plain.side_table("dead_letters"))
    assert_learned_the_lake(bounded)
    assert not list(bounded.run_dir.root.rglob("*.spool"))


def test_a_column_that_may_be_larger_than_its_table_is_refused_at_the_start(broker, tmp_path):
    columns = [column | ({"maximum": 100} if column["name"] == "ad_id" else {}) for column in COLUMNS]
    with pytest.raises(BadInput, match=r"may be up to 100 .* a table of 100 rows: make the maximum 99"):
        prepare(config_of(broker.bootstrap_servers, columns), RunDir(tmp_path))
