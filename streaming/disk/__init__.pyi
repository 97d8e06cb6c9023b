from .files import (
    PART_SUFFIX,
    append_line,
    disk_full_named,
    is_disk_full,
    link_file,
    make_folder,
    read_json,
    replacing,
    replacing_folder,
    sync,
    sync_all,
    write_bytes,
    write_json,
    write_text,
)
from .lock import file_lock
from .seal import SEAL, json_object, sealed, unsealed
from .segments import PIECE_SUFFIX, Piece, read_rows, store_pieces
from .spool import Spool

__all__ = [
    "PART_SUFFIX",
    "PIECE_SUFFIX",
    "SEAL",
    "Piece",
    "Spool",
    "append_line",
    "disk_full_named",
    "file_lock",
    "is_disk_full",
    "json_object",
    "link_file",
    "make_folder",
    "read_json",
    "read_rows",
    "replacing",
    "replacing_folder",
    "sealed",
    "store_pieces",
    "sync",
    "sync_all",
    "unsealed",
    "write_bytes",
    "write_json",
    "write_text",
]
