from .dead_letters import DeadLetters
from .event_time import EventTime, SetBack
from .feeding import Fed, alone, feed, reached, recorded_source
from .lake import LakeCare, as_json
from .log_tail import log_lines
from .recording import record
from .stored_config import config_of
from .versions import mirrored, promote, rollback

__all__ = [
    "DeadLetters",
    "EventTime",
    "Fed",
    "LakeCare",
    "SetBack",
    "alone",
    "as_json",
    "config_of",
    "feed",
    "log_lines",
    "mirrored",
    "promote",
    "reached",
    "record",
    "recorded_source",
    "rollback",
]
