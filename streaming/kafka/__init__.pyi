from .client import require_answer
from .reader import TopicReader
from .retention import check_retention
from .settings import KafkaSettings
from .topics import beginning_offsets, end_offsets, ensure_topics, last_message, require_topics, topic_config
from .writer import TopicWriter

__all__ = [
    "KafkaSettings",
    "TopicReader",
    "TopicWriter",
    "beginning_offsets",
    "check_retention",
    "end_offsets",
    "ensure_topics",
    "last_message",
    "require_answer",
    "require_topics",
    "topic_config",
]
