from .columns import codes_of_values
from .drift import drifts
from .examine import Examined, examined
from .files import read_parquet, rows_of_file, rows_of_lake
from .finding import Finding, Severity, note, percent, stop, verdict_line, warn
from .leakage import Known, leaks, what_features_know
from .skew import skews
from .supply import shortages

__all__ = [
    "Examined",
    "Finding",
    "Known",
    "Severity",
    "codes_of_values",
    "drifts",
    "examined",
    "leaks",
    "note",
    "percent",
    "read_parquet",
    "rows_of_file",
    "rows_of_lake",
    "shortages",
    "skews",
    "stop",
    "verdict_line",
    "warn",
    "what_features_know",
]
