from .lifecycle import failed_before_learning, run, start_over
from .preflight import writable

__all__ = [
    "failed_before_learning",
    "run",
    "start_over",
    "writable",
]
