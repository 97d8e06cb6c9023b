from .check import Report, check_again, check_config
from .collisions import shared
from .memory import student_bytes, teacher_bytes
from .sample import ColumnSeen, TimeSeen
from .screen import columns_text, finding_lines, report_text
from .times import WRITTEN, day, plausible, written_as

__all__ = [
    "WRITTEN",
    "ColumnSeen",
    "Report",
    "TimeSeen",
    "check_again",
    "check_config",
    "columns_text",
    "day",
    "finding_lines",
    "plausible",
    "report_text",
    "shared",
    "student_bytes",
    "teacher_bytes",
    "written_as",
]
