"""The teacher's linear part: FTRL-proximal logistic regression over the ids of its features (McMahan et al. 2013).

    wide = Σ_features Σ_{id in the bag} w[feature, id]                      per task, without the prior's offset
    g = Σ_rows of the global batch (σ(offset + wide) − y)                   of each weight; n ← n + g²
    w ← w − α · g / (√n + ε)                                                w and n start at 0

Without an L1 penalty FTRL-proximal is this AdaGrad, with ε = β + α·λ₂: its z is −w·(√n + ε)/α. So the weights are
embedding tables of one column per task, sharded and updated as the network's own are (exfm/parallel/tables.py). The
large ε is what makes it steady from the first rows: a weight that was seen once moves by at most α/2.

Bags of a sequence's places count like other bags.

B rows of this rank, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.embeddings.tables import bag_configs
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.models.teacher_config import TeacherConfig, wide_columns
from exfm.parallel.alone import learning_tables
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.sharding import TableGroup
from exfm.parallel.tables import SentIds

RATE, EPSILON = 0.1, 1.1
"""α, and ε for β = 1 and λ₂ = 1."""


def wide_configs(features: FeatureSet, tasks: int) -> list[EmbeddingBagConfig]:
    """One table for every table of the network, with `wide_columns` columns.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10, width=32)])
    >>> [(c.name, c.num_embeddings, c.embedding_dim) for c in wide_configs(features, tasks=2)]
    [('ad', 10, 4)]
    """
    columns = wide_columns(tasks)
    configs = bag_configs(features, columns)
    for config in configs:
        config.embedding_dim = columns
    return configs


def all_tables(cfg: TeacherConfig, features: FeatureSet, tasks: int, *, learns: bool = True) -> dict[str, TableGroup]:
    """All tables of a teacher, as ranks hold them: `tables` of the network and, unless it is made without, `wide` of
    the linear part.

    >>> from exfm.features.sparse import SparseFeature
    >>> parts = all_tables(TeacherConfig(), FeatureSet(sparse=[SparseFeature(name="ad", rows=10)]), tasks=2)
    >>> {part: ([table.embedding_dim for table in of.configs], of.optimizer) for part, of in parts.items()}
    {'tables': ([16], 'row_wise_adagrad'), 'wide': ([4], 'adagrad')}
    """
    parts = {"tables": TableGroup(bag_configs(features, cfg.width), cfg.sparse_optimizer if learns else None)}
    if cfg.wide:
        parts["wide"] = TableGroup(wide_configs(features, tasks), "adagrad" if learns else None, " of the linear part")
    return parts


def wide_tables(features: FeatureSet, tasks: int) -> EmbeddingBagCollection:
    """The tables in one process, of weight 0."""
    tables = EmbeddingBagCollection(wide_configs(features, tasks))
    with torch.no_grad():
        for weight in tables.parameters():
            weight.zero_()
    return tables


def summed(pooled: Tensor, keys: Sequence[str], tasks: int) -> Tensor:
    """The logits (B, T) from the pooled weights of all keys, added in order of their names: sharded over ranks, they
    come in order of rank."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    of_keys = pooled.view(len(pooled), len(keys), wide_columns(tasks))
    if order != list(range(len(keys))):
        of_keys = of_keys.index_select(1, torch.tensor(order, device=pooled.device))
    return of_keys.sum(1)[:, :tasks]


class Pooled(NamedTuple):
    """The weights of one batch, which `learn` moves, and the logits (B, T) that they sum up to."""

    lookup: Any
    logits: Tensor


class WideTables:
    """The tables on the ranks of a group. `send`, `look_up` and `learn` are collectives."""

    def __init__(
        self,
        features: FeatureSet,
        tasks: Sequence[str],
        group: RankGroup,
        sharding: Sharding,
        plan: ShardingPlan,
    ) -> None:
        """`plan`: of all tables of the teacher; its `wide` says where the rows of these go."""
        self._T = len(tasks)
        configs = wide_configs(features, self._T)
        holder = nn.Module()
        holder.tables = EmbeddingBagCollection(configs, device=torch.device("meta"))
        own = ShardingPlan({"tables": plan.plan["wide"]})
        self._tables = learning_tables(holder, own, group, sharding, optimizer="adagrad", lr=RATE, eps=EPSILON)
        self.weights, self.accumulators = self._tables.weights(), self._tables.accumulators()
        for windows in self.weights.windows.values():
            for _, window in windows:
                window.zero_()

    def send(self, batch: Batch) -> SentIds | Batch:
        """Start to send ids to the ranks that hold their weights."""
        return self._tables.send(batch)

    def look_up(self, sent: Any) -> Pooled:
        lookup = self._tables.look_up(sent)
        return Pooled(lookup, summed(lookup.pooled.detach(), self._tables.keys, self._T))

    def learn(self, pooled: Pooled, residuals: Tensor) -> None:
        """One step. `residuals` (B, T): σ(offset + wide) − y times the row's weight, 0 where a label is not known."""
        columns = torch.zeros(len(residuals), wide_columns(self._T), device=residuals.device)
        columns[:, : self._T] = residuals
        self._tables.learn(pooled.lookup, columns.repeat(1, len(self._tables.keys)))
