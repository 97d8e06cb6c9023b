from .end_offsets import store_ends, stored_ends
from .paths import RunDir

__all__ = [
    "RunDir",
    "store_ends",
    "stored_ends",
]
