"""What stands on topics, and what somebody else's producer puts there: plain rows and messages."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from pipelines.core.config.settings import Config
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from streaming.sources.synthetic.stream import GeneratedStream
from tests.support.waiting import eventually

COLUMNS = ("user_id", "ad_id", "bid", "interest_0")


def messages_of(servers: str | None, topic: str) -> list[Any]:
    """Every message of a topic, partition by partition, with a plain client; of transactions, the committed ones."""
    settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer = KafkaConsumer(bootstrap_servers=servers, **settings)
    try:
        keys = [TopicPartition(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(keys)
        ends = consumer.end_offsets(keys)
        found: dict[TopicPartition, list[Any]] = defaultdict(list)
        while any(consumer.position(key) < ends[key] for key in keys):
            for key, records in consumer.poll(timeout_ms=500).items():
                found[key] += records
    finally:
        consumer.close(autocommit=False)
    return [message for key in keys for message in found[key]]


def grow(admin: KafkaAdminClient, topics: dict[str, int]) -> None:
    """Give topics so many partitions, and wait until the broker says that they have them."""
    admin.create_partitions(topics)
    eventually(
        lambda: {t["name"]: len(t["partitions"]) for t in admin.describe_topics(list(topics))} == topics,
        lambda: f"the broker does not show {topics}",
        look_s=0.05,
    )


def send(
    servers: str, messages: list[tuple[str, int, bytes | None]], timestamp_ms: int | list[int] | None = None
) -> list[int]:
    """Somebody else's producer: (topic, partition, value) in this order; returns the offset of each. `timestamp_ms`:
    of all, or one each; None: now."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=20, max_request_size=8 << 20)
    times = timestamp_ms if isinstance(timestamp_ms, list) else [timestamp_ms] * len(messages)
    sent = [
        producer.send(topic, value, None if value else b"k", partition=partition, timestamp_ms=time_ms)
        for (topic, partition, value), time_ms in zip(messages, times, strict=True)
    ]
    producer.flush(30)
    offsets = [future.get(timeout=30).offset for future in sent]
    producer.close()
    return offsets


def by_hand(config: Config, impressions: int, **settings: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A generated stream as plain rows, in the order they arrive: (impressions, feedback)."""
    from streaming.sources.synthetic.world_config import GeneratorConfig

    settings = {"users": 500, "ads": 50, "duration_s": 40000, "malformed_rate": 0.0, "seed": 5} | settings
    windows = {task.name: task.window_s for task in config.rows.tasks}
    stream = GeneratedStream(GeneratorConfig(impressions=impressions, **settings), windows, columns=COLUMNS)
    shown: list[dict[str, Any]] = []
    feedback: list[dict[str, Any]] = []
    for chunk in stream.chunks(4096):
        shown += chunk.impressions.to_pylist()
        feedback += chunk.feedback.to_pylist()
    return shown, feedback


def ipc(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    return sink.getvalue().to_pybytes()


def fill(config: Config, shown: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> None:
    """Put rows into the input topics, each of two partitions: micro-batches of a hundred, without an end marker."""
    inputs = (
        (config.kafka.impressions.topic, shown, config.rows.impression),
        (config.kafka.feedback.topic, feedback, config.rows.feedback),
    )
    ensure_topics(config.kafka, {topic: 2 for topic, *_ in inputs})
    messages = []
    for topic, rows, schema in inputs:
        for partition in (0, 1):
            mine = [row for row in rows if row["impression_id"] % 2 == partition]
            messages += [(topic, partition, ipc(mine[n : n + 100], schema)) for n in range(0, len(mine), 100)]
    send(str(config.kafka.bootstrap_servers), messages)


def make_inputs(config: Config, max_message_bytes: int = 4 << 20) -> None:
    servers = config.kafka.bootstrap_servers
    topics = {topic.topic: topic.partitions for topic in (config.kafka.impressions, config.kafka.feedback)}
    ensure_topics(KafkaSettings(bootstrap_servers=servers, max_message_bytes=max_message_bytes), topics)
