from .checks import CHECKS, Finding, examine
from .machine import total_memory

__all__ = [
    "CHECKS",
    "Finding",
    "examine",
    "total_memory",
]
