"""A model's tables, read and written whole or in windows, whichever way they are cut over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ShardMetadata

from exfm.checkpoint import check_fit
from exfm.decay import scale
from exfm.ranks import RankGroup


class ShardedTables:
    """Tensors by table name, of which this rank holds some pieces; `shapes` are those of all tables."""

    def __init__(self, shapes: Mapping[str, torch.Size], held: Mapping[str, ShardedTensor], group: RankGroup):
        self.shapes = dict(shapes)
        self._pieces = {name: held[name].local_shards() if name in held else [] for name in shapes}
        self._group = group

    def whole(self) -> dict[str, Tensor]:
        """Copies of all tables, each whole on every rank. A collective."""
        tables = {}
        for name, shape in self.shapes.items():
            table = torch.zeros(shape)
            for piece in self._pieces[name]:
                _window(table, piece.metadata).copy_(piece.tensor)
            tables[name] = self._group.sum(table)
        return tables

    def load(self, whole: Mapping[str, Tensor]) -> None:
        """Overwrite this rank's pieces from whole tables. Raises ModelError where they do not match."""
        check_fit(self.shapes, whole)
        for name, pieces in self._pieces.items():
            for piece in pieces:
                piece.tensor.copy_(_window(whole[name], piece.metadata))

    def scale(self, factor: float) -> None:
        """Multiply this rank's pieces in place."""
        if factor != 1:
            for piece in chain.from_iterable(self._pieces.values()):
                scale(piece.tensor, factor)


def _window(tensor: Tensor, metadata: ShardMetadata) -> Tensor:
    for dim, (start, size) in enumerate(zip(metadata.shard_offsets, metadata.shard_sizes, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor
