from .broker import Broker, Running
from .jars import DIGEST, digest, fetch

__all__ = [
    "DIGEST",
    "Broker",
    "Running",
    "digest",
    "fetch",
]
