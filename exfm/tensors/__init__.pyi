from .checkpoint import (
    Checkpoint,
    Together,
    checkpoint_names,
    load_checkpoint,
    open_checkpoint,
    prune_checkpoints,
    remove_leftovers,
    save_checkpoint,
    set_checkpoint_aside,
    sync_directory,
    verified_checkpoint,
)
from .manifest import read_manifest
from .marks import take_marked
from .named import check_fit, copy_tensors
from .packing import WHOLE, Fields, Packing
from .staging import Storable
from .stored import StoredTensor, as_bytes
from .versions import Versions
from .windows import Offsets, TensorPieces, TensorSource, Window, fill_window, whole_tensor

__all__ = [
    "WHOLE",
    "Checkpoint",
    "Fields",
    "Offsets",
    "Packing",
    "Storable",
    "StoredTensor",
    "TensorPieces",
    "TensorSource",
    "Together",
    "Versions",
    "Window",
    "as_bytes",
    "check_fit",
    "checkpoint_names",
    "copy_tensors",
    "fill_window",
    "load_checkpoint",
    "open_checkpoint",
    "prune_checkpoints",
    "read_manifest",
    "remove_leftovers",
    "save_checkpoint",
    "set_checkpoint_aside",
    "sync_directory",
    "take_marked",
    "verified_checkpoint",
    "whole_tensor",
]
