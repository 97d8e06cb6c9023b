from .files import DataFile, TableFiles
from .lock import housekeeping, in_flight
from .log import LogFiles
from .table import CheckedTable, Commit, in_schema, last_metadata, load
from .vacuum import Swept, sweep, unneeded

__all__ = [
    "CheckedTable",
    "Commit",
    "DataFile",
    "LogFiles",
    "Swept",
    "TableFiles",
    "housekeeping",
    "in_flight",
    "in_schema",
    "last_metadata",
    "load",
    "sweep",
    "unneeded",
]
