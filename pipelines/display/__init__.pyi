from .closing import print_closing
from .progress import Advance, rows_bar
from .report import print_report
from .screen import Screen, duration, worker_table
from .stored import show_status

__all__ = [
    "Advance",
    "Screen",
    "duration",
    "print_closing",
    "print_report",
    "rows_bar",
    "show_status",
    "worker_table",
]
