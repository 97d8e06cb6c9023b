from .client import codecs_missing, require_answer
from .identity import SourceTopics, SourceWatch, TopicIdentity, require_cluster, source_topics
from .reader import TopicReader
from .retention import check_retention
from .secrets import SECRET_KEYS
from .settings import KafkaSettings
from .topics import (
    Lookup,
    beginning_offsets,
    delete_records,
    end_offsets,
    ensure_topics,
    last_message,
    lookup,
    require_topics,
    topic_config,
)
from .writer import TopicWriter

__all__ = [
    "SECRET_KEYS",
    "KafkaSettings",
    "Lookup",
    "SourceTopics",
    "SourceWatch",
    "TopicIdentity",
    "TopicReader",
    "TopicWriter",
    "beginning_offsets",
    "check_retention",
    "codecs_missing",
    "delete_records",
    "end_offsets",
    "ensure_topics",
    "last_message",
    "lookup",
    "require_answer",
    "require_cluster",
    "require_topics",
    "source_topics",
    "topic_config",
]
