"""A model's tables, read and written whole or in windows, whichever way they are cut over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor

from exfm.checkpoint import check_fit
from exfm.decay import scale
from exfm.pieces import Pieces, Source, fill, whole
from exfm.ranks import RankGroup


class ShardedTables:
    """Tensors by table name, of which this rank holds some pieces; `shapes` are those of all tables."""

    def __init__(self, shapes: Mapping[str, torch.Size], held: Mapping[str, ShardedTensor], group: RankGroup):
        self.shapes = dict(shapes)
        self._pieces = {name: held[name].local_shards() if name in held else [] for name in shapes}
        self._group = group

    def copies(self) -> dict[str, Tensor | Pieces]:
        """Copies of all tables: on a single rank whole ones, on one of several the pieces that it holds."""
        alone = self._group.world_size == 1
        return {name: whole(held) if alone else _copied(held) for name, held in self._held().items()}

    def load(self, tables: Mapping[str, Source]) -> None:
        """Overwrite this rank's pieces, reading nothing else. Raises ModelError where they do not match."""
        check_fit(self.shapes, tables)
        for name, held in self._held().items():
            for start, piece in held.pieces:
                fill(piece, tables[name], start)

    def _held(self) -> dict[str, Pieces]:
        """This rank's own memory."""
        return {
            name: Pieces(tuple(shape), [(tuple(p.metadata.shard_offsets), p.tensor) for p in self._pieces[name]])
            for name, shape in self.shapes.items()
        }

    def scale(self, factor: float) -> None:
        """Multiply this rank's pieces in place."""
        if factor != 1:
            for piece in chain.from_iterable(self._pieces.values()):
                scale(piece.tensor, factor)


def _copied(held: Pieces) -> Pieces:
    return held._replace(pieces=[(start, piece.clone()) for start, piece in held.pieces])
