from .parts import is_stored, load_part, part_name, save_part
from .pool import Pool, Tell
from .rows import OPTIMUM, Rows, rows_of

__all__ = [
    "OPTIMUM",
    "Pool",
    "Rows",
    "Tell",
    "is_stored",
    "load_part",
    "part_name",
    "rows_of",
    "save_part",
]
