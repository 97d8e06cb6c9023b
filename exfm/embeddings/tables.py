"""The tables of a feature set as a TorchRec collection, to score with a teacher or to shard.

To train in one process there is `FusedTables` (fused.py), whose optimizer is at work inside; to serve, `ServedTables`
(served.py). All start from the same weights for the same seed.
"""

from __future__ import annotations

from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.embeddings.weights import initial_weights, load_table_weights, table_sizes
from exfm.features.features import FeatureSet


def bag_configs(features: FeatureSet, width: int) -> list[EmbeddingBagConfig]:
    """One table per sparse feature and sequence, named after it. Without a width of its own it gets `width`."""
    return [
        EmbeddingBagConfig(name=name, embedding_dim=columns, num_embeddings=rows, feature_names=list(keys))
        for name, rows, columns, keys in table_sizes(features, width)
    ]


def embedding_bags(features: FeatureSet, width: int, seed: int) -> EmbeddingBagCollection:
    """The tables as a plain TorchRec collection.

    Output of a call: a KeyedTensor whose values are (B, sum of widths), in the order of `features.keys`.

    >>> from exfm.features.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> sorted(embedding_bags(features, 4, seed=0).state_dict())
    ['embedding_bags.ad.weight', 'embedding_bags.user.weight']
    """
    collection = EmbeddingBagCollection(bag_configs(features, width))
    load_table_weights(collection, _initial(features, width, seed))
    return collection


def _initial(features: FeatureSet, width: int, seed: int) -> dict[str, Tensor]:
    configs = bag_configs(features, width)
    return {c.name: initial_weights(c.name, c.num_embeddings, c.embedding_dim, seed) for c in configs}
