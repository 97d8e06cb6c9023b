"""Kafka, as the rest of the project knows it: topics in and out.

Partitions are assigned by us, positions come from our own commits: no consumer groups, no automatic offsets. Works with
the embedded broker and with any other (`bootstrap_servers`, `security`). The client library itself is known to
kafka_client.py alone.
"""

from streaming.kafka_settings import KafkaSettings
from streaming.topic_reader import TopicReader
from streaming.topic_writer import TopicWriter
from streaming.topics import (
    beginning_offsets,
    end_offsets,
    ensure_topics,
    last_message,
    require_topics,
    topic_config,
)

__all__ = [
    "KafkaSettings",
    "TopicReader",
    "TopicWriter",
    "beginning_offsets",
    "end_offsets",
    "ensure_topics",
    "last_message",
    "require_topics",
    "topic_config",
]
