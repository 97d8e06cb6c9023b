"""A state whose tables have fewer bits on disk: the rows packed (rowwise.py), all else as it is.

    table/ad/weight (R, D) float32  ──►  table/ad/weight:4bit (R, bytes of a row) uint8

Tables whose rows would not fill whole bytes stay as they are. Ranks that cut their tables by columns have no whole row
to find a range of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.snapshots.rowwise import HEAD, Bits, packed, row_bytes, unpacked
from exfm.snapshots.staging import Storable
from exfm.snapshots.stored import StoredTensor
from exfm.snapshots.windows import Offsets, TensorPieces, TensorSource, whole_tensor


class PackedRows(NamedTuple):
    """A table (R, D) float32, read from packed rows by window."""

    rows: TensorSource
    bits: Bits

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.rows.shape[0], (self.rows.shape[1] - HEAD) * 8 // self.bits))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        rows = torch.empty(len(out), self.rows.shape[1], dtype=torch.uint8)
        if isinstance(self.rows, Tensor):
            rows.copy_(self.rows[offsets[0] : offsets[0] + len(out)])
        else:
            self.rows.fill(rows, (offsets[0], 0))
        out.copy_(unpacked(rows, self.bits)[:, offsets[1] : offsets[1] + out.shape[1]])


def in_bits(tensors: Mapping[str, Storable], bits: Bits) -> dict[str, Storable]:
    """A state with its tables packed. Raises ModelError for tables that ranks cut by columns.

    >>> state = {"table/ad/weight": torch.zeros(10, 16), "dense/bias": torch.zeros(3)}
    >>> {name: tuple(tensor.shape) for name, tensor in in_bits(state, 4).items()}
    {'table/ad/weight:4bit': (10, 12), 'dense/bias': (3,)}
    >>> {name: tuple(tensor.shape) for name, tensor in in_full(in_bits(state, 4)).items()}
    {'table/ad/weight': (10, 16), 'dense/bias': (3,)}
    """
    found: dict[str, Storable] = {}
    for name, tensor in tensors.items():
        table = name.startswith(("table/", "events/")) and name.endswith("/weight")
        if not table or tensor.shape[1] * bits % 8:
            found[name] = tensor
        elif isinstance(tensor, TensorPieces):
            found[f"{name}:{bits}bit"] = _pieces(name, tensor, bits)
        else:
            found[f"{name}:{bits}bit"] = packed(whole_tensor(tensor), bits)
    return found


def in_full(tensors: Mapping[str, StoredTensor | TensorSource]) -> dict[str, TensorSource]:
    """The same state by its own names, its tables read as float32."""
    found: dict[str, TensorSource] = {}
    for name, tensor in tensors.items():
        plain, _, kind = name.partition(":")
        found[plain] = PackedRows(tensor, cast("Bits", int(kind.removesuffix("bit")))) if kind else tensor
    return found


def _pieces(name: str, of: TensorPieces, bits: Bits) -> TensorPieces:
    if any(piece.shape[1] != of.shape[1] for _, piece in of.pieces):
        raise ModelError(
            f"`{name}` is cut by columns, and a row of {bits} bits needs all {of.shape[1]} of them; take other "
            "`teacher.sharding` or no `teacher.publish_bits`"
        )
    shape = (of.shape[0], row_bytes(of.shape[1], bits))
    if not of.pieces:  # the type of what is held elsewhere
        return TensorPieces(shape, [((0, 0), torch.zeros(0, shape[1], dtype=torch.uint8))], of.replicated)
    return TensorPieces(shape, [(start, packed(piece, bits)) for start, piece in of.pieces], of.replicated)
