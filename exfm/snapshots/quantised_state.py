"""A state whose tables are quantised on disk: rows in 8, 4, 3 or 2 bits a value, all else as it is.

    table/ad/weight (R, D) float32  ──►  table/ad/weight:4bit (R, bytes of a row) uint8

Tables whose rows would not fill whole bytes stay as they are. Every piece of a table has whole rows: a range is that of
a row, so no config cuts such tables by columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor

from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.row_quantisation import HEAD, Bits, dequantise_rows, quantise_rows, row_bytes
from exfm.snapshots.staging import Storable
from exfm.snapshots.windows import Offsets, TensorPieces, TensorSource, fill_window, whole_tensor

PACKED = re.compile(r"(.+/weight):([8432])bit")


class QuantisedTable(NamedTuple):
    """A table (R, D) float32, read by window from quantised rows."""

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
        fill_window(rows, self.rows, (offsets[0], 0))
        out.copy_(dequantise_rows(rows, self.bits)[:, offsets[1] : offsets[1] + out.shape[1]])


def quantise_tables(
    tensors: Mapping[str, Storable | ChangedRows], bits: Bits | None
) -> dict[str, Storable | ChangedRows]:
    """Quantise the tables of a state to `bits` a value; None: none of them.

    >>> state = {"table/ad/weight": torch.zeros(10, 16), "dense/bias": torch.zeros(3)}
    >>> {name: tuple(tensor.shape) for name, tensor in quantise_tables(state, 4).items()}
    {'table/ad/weight:4bit': (10, 12), 'dense/bias': (3,)}
    >>> {name: tuple(tensor.shape) for name, tensor in as_read(state, 4).items()}
    {'table/ad/weight': (10, 16), 'dense/bias': (3,)}
    """
    if bits is None:
        return dict(tensors)
    found: dict[str, Storable | ChangedRows] = {}
    for name, tensor in tensors.items():
        table = name.startswith(("table/", "events/")) and name.endswith("/weight")
        values = tensor.values if isinstance(tensor, ChangedRows) else tensor
        if not table or values.shape[1] * bits % 8:
            found[name] = tensor
        elif isinstance(tensor, ChangedRows):
            (packed,) = quantise_tables({name: values}, bits).values()
            found[f"{name}:{bits}bit"] = tensor._replace(values=cast("Tensor", packed))
        elif isinstance(tensor, TensorPieces):
            shape = (tensor.shape[0], row_bytes(tensor.shape[1], bits))
            pieces = [(start, quantise_rows(piece, bits)) for start, piece in tensor.pieces]
            found[f"{name}:{bits}bit"] = TensorPieces(shape, pieces, tensor.replicated)
        else:
            found[f"{name}:{bits}bit"] = quantise_rows(whole_tensor(tensor), bits)
    return found


def as_read(tensors: Mapping[str, Storable], bits: Bits | None) -> dict[str, TensorSource]:
    """Tables as they are read back once they were quantised to `bits` a value."""
    return dequantise_tables(cast("dict[str, TensorSource]", quantise_tables(tensors, bits)))


def dequantise_changes(changes: Mapping[str, ChangedTensor]) -> dict[str, ChangedTensor]:
    """`dequantise_tables` of changed tensors: of their base and of their values."""
    base = dequantise_tables({name: of.base for name, of in changes.items()})
    values = dequantise_tables({name: of.values for name, of in changes.items()})
    at = {name if (of := PACKED.fullmatch(name)) is None else of[1]: changed.at for name, changed in changes.items()}
    return {name: ChangedTensor(base[name], at[name], values[name]) for name in at}


def dequantise_tables(tensors: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    """Restore the names of a state, and read its tables as float32."""
    found: dict[str, TensorSource] = {}
    for name, tensor in tensors.items():
        if (of := PACKED.fullmatch(name)) is None:
            found[name] = tensor
        else:
            found[of[1]] = QuantisedTable(tensor, cast("Bits", int(of[2])))
    return found
