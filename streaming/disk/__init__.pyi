from .files import PART, make_folder, sync, write_file
from .seal import SEAL, loaded, sealed, unsealed
from .segments import SUFFIX, Piece, read_rows, store_pieces

__all__ = [
    "PART",
    "SEAL",
    "SUFFIX",
    "Piece",
    "loaded",
    "make_folder",
    "read_rows",
    "sealed",
    "store_pieces",
    "sync",
    "unsealed",
    "write_file",
]
