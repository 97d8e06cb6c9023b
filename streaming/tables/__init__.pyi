from .conversion import as_parquet
from .copies import LOCAL_TIME, Copies, Found, Reading
from .engine import Engine, file_literal, in_words, literal, parquet, quoted
from .forms import Files, files_at, is_parquet
from .in_order import MADE, MADE_FROM_MS, ROW, SECOND_MS, iso, made_times, rows_behind, write_in_order

__all__ = [
    "LOCAL_TIME",
    "MADE",
    "MADE_FROM_MS",
    "ROW",
    "SECOND_MS",
    "Copies",
    "Engine",
    "Files",
    "Found",
    "Reading",
    "as_parquet",
    "file_literal",
    "files_at",
    "in_words",
    "is_parquet",
    "iso",
    "literal",
    "made_times",
    "parquet",
    "quoted",
    "rows_behind",
    "write_in_order",
]
