from .end_offsets import store_ends, stored_ends
from .paths import RunDir, read_json, write_json

__all__ = [
    "RunDir",
    "read_json",
    "store_ends",
    "stored_ends",
    "write_json",
]
