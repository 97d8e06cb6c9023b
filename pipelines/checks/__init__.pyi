from .check import Report, check_again, check_config
from .finding import Finding, Severity
from .screen import finding_lines, report_text

__all__ = [
    "Finding",
    "Report",
    "Severity",
    "check_again",
    "check_config",
    "finding_lines",
    "report_text",
]
