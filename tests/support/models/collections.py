"""TorchRec's own collection of a feature set's tables, to compare ours with, and ours as they begin."""

from __future__ import annotations

import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import tables_of
from exfm.embeddings.weights import initial_weights
from exfm.features.features import FeatureSet
from exfm.parallel.sharding import bag_configs


def embedding_bags(features: FeatureSet, width: int, seed: int) -> EmbeddingBagCollection:
    """With the weights that ours begin with."""
    tables = tables_of(features, width, {})
    collection = EmbeddingBagCollection(bag_configs(tables))
    with torch.no_grad():
        for table in tables:
            weight = initial_weights(table.name, table.rows, table.width, seed)
            collection.embedding_bags[table.name].weight.copy_(weight)
    return collection


def fused(features: FeatureSet, width: int, seed: int, *, lr: float = 0.1, eps: float = 1e-8) -> FusedTables:
    tables = FusedTables(tables_of(features, width, {}), lr=lr, eps=eps)
    tables.draw(seed)
    return tables
