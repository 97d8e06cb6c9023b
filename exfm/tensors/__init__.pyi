from .checkpoint import (
    Stored,
    check_fit,
    load,
    names,
    open_stored,
    prune,
    save,
    set_aside,
    sweep,
    sync_directory,
    verified,
)
from .manifest import read_manifest
from .staging import Storable
from .stored import StoredTensor
from .windows import Offsets, Pieces, Source, fill, whole

__all__ = [
    "Offsets",
    "Pieces",
    "Source",
    "Storable",
    "Stored",
    "StoredTensor",
    "check_fit",
    "fill",
    "load",
    "names",
    "open_stored",
    "prune",
    "read_manifest",
    "save",
    "set_aside",
    "sweep",
    "sync_directory",
    "verified",
    "whole",
]
