from .dead_letters import DeadLetters
from .event_time import EventTime, SetBack
from .feeding import Fed, alone, feed, reached, recorded_source
from .lake import LakeCare, as_json
from .recording import record

__all__ = [
    "DeadLetters",
    "EventTime",
    "Fed",
    "LakeCare",
    "SetBack",
    "alone",
    "as_json",
    "feed",
    "reached",
    "record",
    "recorded_source",
]
