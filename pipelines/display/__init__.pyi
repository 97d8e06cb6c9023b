from .closing import print_closing
from .progress import Advance, rows_bar, share_bar
from .report import print_report
from .screen import Screen, duration, worker_table
from .stored import show_status, watch_status
from .students import students_table

__all__ = [
    "Advance",
    "Screen",
    "duration",
    "print_closing",
    "print_report",
    "rows_bar",
    "share_bar",
    "show_status",
    "students_table",
    "watch_status",
    "worker_table",
]
