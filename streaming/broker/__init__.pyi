from .broker import LocalBroker, RunningBroker
from .classes import keep_classes
from .jars import JARS_DIGEST, fetch_jars, jars_digest

__all__ = [
    "JARS_DIGEST",
    "LocalBroker",
    "RunningBroker",
    "fetch_jars",
    "jars_digest",
    "keep_classes",
]
