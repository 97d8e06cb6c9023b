from .end_offsets import store_ends, stored_ends
from .logs import log_to
from .paths import RunDir, version_name

__all__ = [
    "RunDir",
    "log_to",
    "store_ends",
    "stored_ends",
    "version_name",
]
