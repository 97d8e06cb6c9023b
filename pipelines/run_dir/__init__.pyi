from .end_offsets import store_ends, stored_ends
from .paths import RunDir, version_name

__all__ = [
    "RunDir",
    "store_ends",
    "stored_ends",
    "version_name",
]
