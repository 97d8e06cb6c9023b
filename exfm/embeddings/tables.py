"""Embedding tables for a feature set: one TorchRec table per sparse feature, sum-pooled, and one per sequence, looked
up once for every place of it.

`embedding_bags` are to score, to serve, to shard. To train in one process there is `FusedTables` (fused.py), whose
optimizer is at work inside. Both start from the same weights for the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.data import FeatureSet
from exfm.randomness import named_generator
from exfm.tensors import TensorSource, Window, copy_tensors

CHUNK = 2**20  # numbers drawn at once


def bag_configs(features: FeatureSet, width: int) -> list[EmbeddingBagConfig]:
    """One table per sparse feature and sequence, named after it. Without a width of its own it gets `width`."""
    sparse = [
        EmbeddingBagConfig(
            name=feature.name,
            embedding_dim=feature.width or width,
            num_embeddings=feature.rows,
            feature_names=[feature.name],
        )
        for feature in features.sparse
    ]
    return sparse + [
        EmbeddingBagConfig(
            name=feature.name, embedding_dim=width, num_embeddings=feature.rows, feature_names=list(feature.keys)
        )
        for feature in features.sequence
    ]


def initial_weights(name: str, rows: int, width: int, seed: int) -> Tensor:
    """E ~ U(±√(1/rows)), (rows, width) float32, from the seed and the table's name alone."""
    bound = rows**-0.5
    return torch.empty(rows, width).uniform_(-bound, bound, generator=named_generator(seed, f"table/{name}"))


def draw_initial_weights(name: str, rows: int, width: int, seed: int, windows: Sequence[Window]) -> None:
    """Fill windows of a table with what `initial_weights` has there, without ever holding the whole table.

    torch's CPU generator draws one number per element in sequence, so chunk after chunk gives the same bits as at once.

    >>> whole, part = initial_weights("ad", 10, 4, 0), torch.empty(3, 2)
    >>> draw_initial_weights("ad", 10, 4, 0, [((5, 2), part)])
    >>> bool((part == whole[5:8, 2:4]).all())
    True
    """
    bound, generator = rows**-0.5, named_generator(seed, f"table/{name}")
    chunk = torch.empty(min(rows, max(1, CHUNK // width)), width)
    last = max((row + len(window) for (row, _), window in windows), default=0)
    for start in range(0, last, len(chunk)):
        drawn = chunk[: rows - start].uniform_(-bound, bound, generator=generator)
        for (row, column), window in windows:
            first, end = max(start, row), min(start + len(drawn), row + len(window))
            if first < end:
                columns = drawn[first - start : end - start, column : column + window.shape[1]]
                window[first - row : end - row] = columns


def embedding_bags(features: FeatureSet, width: int, seed: int) -> EmbeddingBagCollection:
    """The tables as a plain TorchRec collection.

    Output of a call: a KeyedTensor whose values are (B, sum of widths), in the order of `features.keys`.

    >>> from exfm.data.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> sorted(embedding_bags(features, 4, seed=0).state_dict())
    ['embedding_bags.ad.weight', 'embedding_bags.user.weight']
    """
    collection = EmbeddingBagCollection(bag_configs(features, width))
    load_table_weights(collection, _initial(features, width, seed))
    return collection


def table_weights(collection: EmbeddingBagCollection) -> dict[str, Tensor]:
    """The weights by table name, (rows, width) each; they share memory with the collection."""
    return {name: bag.weight.detach() for name, bag in collection.embedding_bags.items()}


def look_up(collection: EmbeddingBagCollection, sparse: KeyedJaggedTensor) -> Tensor:
    """What a call of the collection has as values, (B, E), bit for bit, without a gradient: torch's own operators for
    each table, on stretches of the ids in place. The call itself spends more on cutting the ids up than on small
    requests.
    """
    B = sparse.stride()
    if not B:
        return collection(sparse).values()
    weights = [
        collection.embedding_bags[config.name].weight
        for config in collection.embedding_bag_configs()
        for _ in config.feature_names
    ]
    if _one_id_each(sparse):
        pooled = [weight.index_select(0, ids) for weight, ids in zip(weights, sparse.values().split(B), strict=True)]
    else:
        pooled = [
            torch.embedding_bag(weight, ids, own, mode=0, include_last_offset=True)[0]
            for weight, (ids, own) in zip(weights, stretches(sparse), strict=True)
        ]
    return torch.cat(pooled, dim=1)


def stretches(sparse: KeyedJaggedTensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each key the ids, and where each of the B bags begins among them, (B + 1,). B is at least 1."""
    B, offsets, values = sparse.stride(), sparse.offsets(), sparse.values()
    keys, single = len(sparse.keys()), _one_id_each(sparse)
    firsts = [k * B for k in range(keys + 1)] if single else offsets[::B].tolist()
    for k in range(keys):
        own = offsets[: B + 1] if single else offsets[k * B : (k + 1) * B + 1] - firsts[k]
        yield values[firsts[k] : firsts[k + 1]], own


def _one_id_each(sparse: KeyedJaggedTensor) -> bool:
    """Whether every bag holds one id."""
    lengths = sparse.lengths()
    return len(sparse.values()) == len(lengths) and bool((lengths == 1).all())


def load_table_weights(collection: EmbeddingBagCollection, weights: Mapping[str, TensorSource]) -> None:
    """Overwrite every table's weights.

    Raises ModelError where tables or shapes are not those of the collection.
    """
    copy_tensors(table_weights(collection), weights)


def _initial(features: FeatureSet, width: int, seed: int) -> dict[str, Tensor]:
    configs = bag_configs(features, width)
    return {c.name: initial_weights(c.name, c.num_embeddings, c.embedding_dim, seed) for c in configs}
