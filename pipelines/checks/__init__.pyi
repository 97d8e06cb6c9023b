from .check import Report, check_again, check_config
from .collisions import shared
from .memory import student_bytes, teacher_bytes
from .sample import TimeSeen
from .screen import finding_lines, report_text
from .times import WRITTEN, day, plausible, written_as

__all__ = [
    "WRITTEN",
    "Report",
    "TimeSeen",
    "check_again",
    "check_config",
    "day",
    "finding_lines",
    "plausible",
    "report_text",
    "shared",
    "student_bytes",
    "teacher_bytes",
    "written_as",
]
