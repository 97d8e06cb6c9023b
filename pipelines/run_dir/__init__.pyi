from .end_offsets import store_ends, stored_ends
from .logs import log_file, log_to
from .paths import RunDir, version_name
from .roster import Outcome, Presence, Roster, Wish

__all__ = [
    "Outcome",
    "Presence",
    "Roster",
    "RunDir",
    "Wish",
    "log_file",
    "log_to",
    "store_ends",
    "stored_ends",
    "version_name",
]
