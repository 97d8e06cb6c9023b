"""Embedding tables for serving: lookup only, by torch's own operators on slices of the ids in place.

TorchRec's collection spends more on cutting the ids up than on looking them up where requests are small, and importing
it takes a second, which a server that starts again does not have.

B examples, E columns of all tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.weights import initial_weights, table_sizes
from exfm.features.features import FeatureSet
from exfm.features.jagged import offsets_of


class ServedTables(nn.Module):
    """Lookup with a TorchRec collection's values, (B, E), bit for bit, without a gradient. `keys`: the table of each
    key.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> sorted(ServedTables(features, 4, seed=0).state_dict())
    ['embedding_bags.ad.weight', 'embedding_bags.user.weight']
    """

    def __init__(self, features: FeatureSet, width: int, seed: int) -> None:
        super().__init__()
        sizes = table_sizes(features, width)
        self.keys = tuple(size.name for size in sizes for _ in size.keys)
        self.embedding_bags = nn.ModuleDict(
            {
                name: nn.EmbeddingBag.from_pretrained(initial_weights(name, rows, columns, seed), freeze=False)
                for name, rows, columns, _ in sizes
            }
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        """Weights by table, (rows, width): the parameters themselves, without gradient."""
        return {name: bag.weight.detach() for name, bag in self.embedding_bags.items()}  # type: ignore[operator]

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        B = sparse.stride()
        weights: list[Tensor] = [self.embedding_bags[name].weight for name in self.keys]  # type: ignore[misc]
        if not B:
            return torch.zeros(0, sum(weight.shape[1] for weight in weights))
        if one_id_each(sparse):
            return self.single(sparse.values().view(len(weights), B))
        pooled = [
            torch.embedding_bag(weight, ids, own, mode=0, include_last_offset=True)[0]
            for weight, (ids, own) in zip(weights, stretches(sparse), strict=True)
        ]
        return torch.cat(pooled, dim=1)

    def single(self, ids_KB: Tensor) -> Tensor:
        """(B, E) of rows that have one id of every key."""
        weights: list[Tensor] = [self.embedding_bags[name].weight for name in self.keys]  # type: ignore[misc]
        return torch.cat([w.index_select(0, ids) for w, ids in zip(weights, ids_KB.unbind(0), strict=True)], dim=1)


def stretches(sparse: KeyedJaggedTensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Slices of the ids by key, each with the offsets of its B bags, (B + 1,). B is at least 1."""
    B, offsets, values = sparse.stride(), torch.from_numpy(offsets_of(sparse)), sparse.values()
    keys, single = len(sparse.keys()), one_id_each(sparse)
    firsts = [k * B for k in range(keys + 1)] if single else offsets[::B].tolist()
    for k in range(keys):
        own = offsets[: B + 1] if single else offsets[k * B : (k + 1) * B + 1] - firsts[k]
        yield values[firsts[k] : firsts[k + 1]], own


def one_id_each(sparse: KeyedJaggedTensor) -> bool:
    """True if every bag holds exactly one id."""
    lengths = sparse.lengths()
    return len(sparse.values()) == len(lengths) and bool((lengths == 1).all())
