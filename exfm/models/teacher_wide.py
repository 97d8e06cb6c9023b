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

import torch
from torch import Tensor

from exfm.embeddings.kinds.registry import event_tables, linear_tables, tables_of
from exfm.embeddings.table import Tables
from exfm.features.features import FeatureSet
from exfm.models.teacher_config import TeacherConfig, wide_columns
from exfm.parallel.sharding import TableGroup

TABLES = ("table/", "events/", "wide/")
"""What names of tensors of tables begin with, in a teacher's state."""

RATE, EPSILON = 0.2, 1.1
"""α, and ε for β = 1 and λ₂ = ½."""


def all_tables(cfg: TeacherConfig, features: FeatureSet, tasks: int, *, learns: bool = True) -> dict[str, TableGroup]:
    """All tables of a teacher, as ranks hold them: `tables` of the network and, unless it is made without, `wide` of
    the linear part.

    >>> from exfm.features.sparse import SparseFeature
    >>> parts = all_tables(TeacherConfig(), FeatureSet(sparse=[SparseFeature(name="ad", rows=10)]), tasks=2)
    >>> {part: ([table.width for table in of.tables], of.optimizer) for part, of in parts.items()}
    {'tables': ([16], 'row_wise_adagrad'), 'wide': ([4], 'adagrad')}
    """
    parts = {
        "tables": TableGroup(tables_of(features, cfg.width, cfg.embeddings), cfg.sparse_optimizer if learns else None)
    }
    if features.events:
        events = event_tables(features, cfg.width)
        parts["events"] = TableGroup(events, cfg.sparse_optimizer if learns else None)
    if cfg.wide:
        wide = linear_tables(features, wide_columns(tasks), cfg.embeddings)
        parts["wide"] = TableGroup(wide, "adagrad" if learns else None, " of the linear part")
    return parts


def wide_logits(tables: Tables, pooled: Tensor, tasks: int) -> Tensor:
    """The logits (B, T) that the pooled weights of all keys sum up to, added in order of the keys' names."""
    keys = [key for table in tables.tables for key in table.keys]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    of_keys = pooled.view(len(pooled), len(keys), wide_columns(tasks))
    if order != list(range(len(keys))):
        of_keys = of_keys.index_select(1, torch.tensor(order, device=pooled.device))
    return of_keys.sum(1)[:, :tasks]


def wide_gradient(tables: Tables, residuals: Tensor) -> Tensor:
    """The gradient of what was pooled. `residuals` (B, T): σ(offset + wide) − y times the row's weight, 0 where a label
    is not known."""
    B, T = residuals.shape
    columns = torch.zeros(B, wide_columns(T), device=residuals.device)
    columns[:, :T] = residuals
    return columns.repeat(1, sum(len(table.keys) for table in tables.tables))
