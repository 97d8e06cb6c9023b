from .end_offsets import store_ends, stored_ends
from .lease import Lease
from .logs import log_file, log_to
from .paths import RunDir, version_name
from .place import keep_place, original_of
from .roster import Outcome, Presence, Roster, Wish

__all__ = [
    "Lease",
    "Outcome",
    "Presence",
    "Roster",
    "RunDir",
    "Wish",
    "keep_place",
    "log_file",
    "log_to",
    "original_of",
    "store_ends",
    "stored_ends",
    "version_name",
]
