"""Embedding tables for serving: lookup only, by torch's own operators on slices of the ids in place.

TorchRec's collection spends more on cutting the ids up than on looking them up where requests are small, and importing
it takes a second, which a server that starts again does not have.

B examples, K keys, E columns of all tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.table import HasIds, Lookup, Table, Tables
from exfm.features.jagged import offsets_of


class ServedTables(nn.Module, Tables):
    """Lookup with a TorchRec collection's values, (B, E), bit for bit. Weights are 0 until they are loaded.

    >>> tables = ServedTables([Table("ad", 10, 4, ("ad",)), Table("user", 20, 4, ("user",))])
    >>> sorted(tables.state_dict())
    ['embedding_bags.ad.weight', 'embedding_bags.user.weight']
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__()
        self.tables = tuple(tables)
        self._of_lookups = tuple(table.name for table in tables for _ in table.keys)
        self.embedding_bags = nn.ModuleDict(
            {t.name: nn.EmbeddingBag.from_pretrained(torch.zeros(t.rows, t.width), freeze=False) for t in tables}
        )

    def tensors(self) -> dict[str, Tensor]:
        return {f"{name}/weight": bag.weight.detach() for name, bag in self.embedding_bags.items()}  # type: ignore[operator]

    def send(self, batch: HasIds) -> KeyedJaggedTensor:
        return batch.sparse

    def lookup(self, sent: KeyedJaggedTensor) -> Lookup:
        return Lookup(self(sent))

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        B = sparse.stride()
        weights: list[Tensor] = [self.embedding_bags[name].weight for name in self._of_lookups]  # type: ignore[misc]
        if not B:
            return torch.zeros(0, sum(weight.shape[1] for weight in weights))
        if one_id_each(sparse):
            return self.single(sparse.values().view(len(weights), B))
        pooled = [
            torch.embedding_bag(weight, ids, own, mode=0, include_last_offset=True)[0]
            for weight, (ids, own) in zip(weights, slices_of(sparse), strict=True)
        ]
        return torch.cat(pooled, dim=1)

    def single(self, rows_KB: Tensor) -> Tensor:
        """(B, E) of examples that have one row of every lookup."""
        weights: list[Tensor] = [self.embedding_bags[name].weight for name in self._of_lookups]  # type: ignore[misc]
        return torch.cat([w.index_select(0, rows) for w, rows in zip(weights, rows_KB.unbind(0), strict=True)], dim=1)


def slices_of(sparse: KeyedJaggedTensor) -> Iterator[tuple[Tensor, Tensor]]:
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
