from .delays import feedback_delays
from .mapped import PIECE_ROWS, let_go, spilled
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
    "let_go",
    "load_part",
    "part_name",
    "rows_of",
    "save_part",
    "spilled",
]
