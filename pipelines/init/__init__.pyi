from .proposal import Asked, Begun, begin, begin_on_topics, summary
from .topics import AskedTopics

__all__ = [
    "Asked",
    "AskedTopics",
    "Begun",
    "begin",
    "begin_on_topics",
    "summary",
]
