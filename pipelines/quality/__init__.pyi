from .column_seen import ColumnSeen, columns_text, refused_by_column, values_in
from .columns import codes_of_values
from .drift import drifts
from .examine import Examined, examined
from .files import read_parquet, rows_of_file, rows_of_lake
from .finding import Finding, Severity, note, percent, stop, verdict_line, warn
from .leakage import Known, leaks, what_features_know
from .skew import skews
from .supply import shortages

__all__ = [
    "ColumnSeen",
    "Examined",
    "Finding",
    "Known",
    "Severity",
    "codes_of_values",
    "columns_text",
    "drifts",
    "examined",
    "leaks",
    "note",
    "percent",
    "read_parquet",
    "refused_by_column",
    "rows_of_file",
    "rows_of_lake",
    "shortages",
    "skews",
    "stop",
    "values_in",
    "verdict_line",
    "warn",
    "what_features_know",
]
