from .delays import feedback_delays
from .mapped import PIECE_ROWS, mapped_array, release_pages
from .parts import is_stored, load_part, part_name, save_part
from .pool import AddDone, Pool
from .rows import OPTIMUM, Rows, are_copied, rows_of

__all__ = [
    "OPTIMUM",
    "PIECE_ROWS",
    "AddDone",
    "Pool",
    "Rows",
    "are_copied",
    "feedback_delays",
    "is_stored",
    "load_part",
    "mapped_array",
    "part_name",
    "release_pages",
    "rows_of",
    "save_part",
]
