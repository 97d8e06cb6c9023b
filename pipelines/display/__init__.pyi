from .closing import print_closing
from .progress import Advance, rows_bar
from .screen import Screen, duration, worker_table
from .stored import show_status

__all__ = [
    "Advance",
    "Screen",
    "duration",
    "print_closing",
    "rows_bar",
    "show_status",
    "worker_table",
]
