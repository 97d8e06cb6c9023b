from .feeding import Fed, alone, feed, reached, recorded_source
from .lake import LakeCare, as_json
from .recording import record

__all__ = [
    "Fed",
    "LakeCare",
    "alone",
    "as_json",
    "feed",
    "reached",
    "record",
    "recorded_source",
]
