"""A model's tables, read and written whole or in windows, under any sharding."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from exfm.embeddings.adagrad import scale_accumulator
from exfm.parallel.group import RankGroup
from exfm.snapshots.named import check_fit
from exfm.snapshots.windows import TensorPieces, TensorSource, Window, fill_window, whole_tensor


class ShardedTables:
    """Tensors by table name, some windows of which this rank holds; `shapes` are those of all tables.

    `replicated` tables are held whole by every rank.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        held: Mapping[str, Sequence[Window]],
        group: RankGroup,
        replicated: Collection[str] = (),
    ):
        self.shapes, self._replicated, self._group = dict(shapes), frozenset(replicated), group
        self.windows = {name: [(at, w) for at, w in held.get(name, ()) if w.numel()] for name in shapes}

    def copies(self) -> dict[str, Tensor | TensorPieces]:
        """Copies of all tables, in CPU memory: whole ones on a single rank, on one of several the pieces that it holds.

        Where every rank holds a whole table, only rank 0 has a piece.
        """
        copies: dict[str, Tensor | TensorPieces] = {}
        for name, shape in self.shapes.items():
            mine = self._group.rank == 0 or name not in self._replicated
            held = TensorPieces(tuple(shape), self.windows[name] if mine else [])
            alone = self._group.world_size == 1
            copies[name] = whole_tensor(held) if alone else _copied(held)
        return copies

    def load(self, tables: Mapping[str, TensorSource]) -> None:
        """Overwrite this rank's windows, reading only those. Raises ModelError where they do not match."""
        check_fit(self.shapes, tables)
        for name, windows in self.windows.items():
            for start, window in windows:
                fill_window(window, tables[name], start)

    def scale(self, factor: float) -> None:
        """Multiply this rank's windows in place."""
        if factor != 1:
            for _, window in chain.from_iterable(self.windows.values()):
                scale_accumulator(window, factor)


def _copied(held: TensorPieces) -> TensorPieces:
    return held._replace(pieces=[(start, piece.to("cpu", copy=True)) for start, piece in held.pieces])
