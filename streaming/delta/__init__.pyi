from .files import DataFile, TableFiles
from .lock import housekeeping_lock, in_flight_lock
from .log import LogFiles
from .table import CheckedTable, TableCommit, in_schema, open_table
from .vacuum import Vacuumed, unneeded_files, vacuum_table
from .view import TableView

__all__ = [
    "CheckedTable",
    "DataFile",
    "LogFiles",
    "TableCommit",
    "TableFiles",
    "TableView",
    "Vacuumed",
    "housekeeping_lock",
    "in_flight_lock",
    "in_schema",
    "open_table",
    "unneeded_files",
    "vacuum_table",
]
