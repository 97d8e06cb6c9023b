"""A model's embedding tables on a single CPU rank, without any communication.

They learn what `ParallelTables` (tables.py) would learn on one rank, without TorchRec and FBGEMM, and several times as
fast (exfm/embeddings/fused.py). States of the one are states of the other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.fused import FusedTables, Lookup
from exfm.embeddings.weights import TableSize
from exfm.features.batch import Batch
from exfm.parallel.group import RankGroup
from exfm.parallel.held import ShardedTables
from exfm.parallel.layout import Sharding
from exfm.parallel.tables import ParallelTables, keys_of
from exfm.snapshots.windows import Window


class TablesAlone:
    """The tables of `model.tables` on the only rank of a group.

    `model` is changed: its `tables` become those that learn, of weight 0.
    """

    def __init__(
        self,
        model: nn.Module,
        group: RankGroup,
        *,
        optimizer: SparseOptimizer,
        lr: float,
        eps: float,
    ) -> None:
        assert isinstance(model.tables, EmbeddingBagCollection)
        configs = model.tables.embedding_bag_configs()
        sizes = [TableSize(c.name, c.num_embeddings, c.embedding_dim, tuple(c.feature_names)) for c in configs]
        self._group, self._tables = group, FusedTables(sizes, lr=lr, eps=eps, optimizer=optimizer)
        self.keys = keys_of(configs)
        model.tables = self._tables

    def send(self, batch: Batch) -> Batch:
        return batch

    def look_up(self, sent: Batch) -> Lookup:
        """Pooled embeddings (B, sum of widths), in order of the keys, with their row indices."""
        return self._tables.of(sent)

    def learn(self, lookup: Lookup, gradient: Tensor) -> None:
        """One step, with the gradient of the looked-up embeddings."""
        self._tables.learn(lookup, gradient)

    def weights(self) -> ShardedTables:
        """(rows, width) each; they share memory with the tables."""
        return self._held(self._tables.weights)

    def accumulators(self) -> ShardedTables:
        """(rows,) of row-wise AdaGrad, (rows, width) of element-wise; they share memory with the tables."""
        return self._held(self._tables.accumulators)

    def _held(self, tables: dict[str, Tensor]) -> ShardedTables:
        windows: dict[str, list[Window]] = {name: [((0,) * of.ndim, of)] for name, of in tables.items()}
        return ShardedTables({name: torch.Size(of.shape) for name, of in tables.items()}, windows, self._group)


def learning_tables(
    model: nn.Module,
    plan: ShardingPlan,
    group: RankGroup,
    sharding: Sharding,
    *,
    optimizer: SparseOptimizer,
    lr: float,
    eps: float,
) -> ParallelTables | TablesAlone:
    """The tables of `model.tables`, learning by AdaGrad, as a group holds them. A collective.

    A single rank on a CPU has them whole, unless `per_shard_row_wise` makes its optimizer one of pieces.
    """
    if group.world_size == 1 and group.device.type == "cpu" and not sharding.per_shard_row_wise:
        return TablesAlone(model, group, optimizer=optimizer, lr=lr, eps=eps)
    return ParallelTables(model, plan, group, sharding, optimizer=optimizer, lr=lr, eps=eps)
