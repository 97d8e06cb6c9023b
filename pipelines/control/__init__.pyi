from .lifecycle import run, start_over
from .preflight import writable

__all__ = [
    "run",
    "start_over",
    "writable",
]
