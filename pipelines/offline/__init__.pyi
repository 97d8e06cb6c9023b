from .rows import OPTIMUM, Rows, rows_of

__all__ = [
    "OPTIMUM",
    "Rows",
    "rows_of",
]
