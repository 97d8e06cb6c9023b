from .encodings import Form, without_dictionary
from .files import DataFile, Statistics, TableFiles
from .identifiers import BLOCK, EPOCH, FIRST_SEQ, LAKE_SEQ, NUMBER, STATE
from .lock import housekeeping_lock, in_flight_lock
from .log import LogFiles, unfinished
from .table import CheckedTable, TableCommit, in_schema, open_table
from .torn import TornFile, torn_files
from .vacuum import Vacuumed, unneeded_files, vacuum_table
from .view import TableView

__all__ = [
    "BLOCK",
    "EPOCH",
    "FIRST_SEQ",
    "LAKE_SEQ",
    "NUMBER",
    "STATE",
    "CheckedTable",
    "DataFile",
    "Form",
    "LogFiles",
    "Statistics",
    "TableCommit",
    "TableFiles",
    "TableView",
    "TornFile",
    "Vacuumed",
    "housekeeping_lock",
    "in_flight_lock",
    "in_schema",
    "open_table",
    "torn_files",
    "unfinished",
    "unneeded_files",
    "vacuum_table",
    "without_dictionary",
]
