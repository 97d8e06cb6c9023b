"""A managed table by itself: batches of ids, and steps over them."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import ComposedTables
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.managed import Managed, ManagedTable


class Given:
    """Ids of a batch, one bag each, and its event time."""

    def __init__(self, ids, shown_ms=None):
        values = torch.tensor(ids, dtype=torch.int64)
        self.sparse = KeyedJaggedTensor(["ad"], values, lengths=torch.ones(len(ids), dtype=torch.int64))
        self.shown_ms = None if shown_ms is None else torch.full((len(ids),), shown_ms)

    def once(self, what, make):
        return make()


def table_of(rows=300, **settings):
    return ManagedTable("ad", ("ad",), 4, Managed(kind="managed", rows=rows, **settings))


def tables_with(table, group=None, seed=3):
    held = ComposedTables([table], lambda own: FusedTables(own, lr=0.1, eps=1e-8), lr=0.1, eps=1e-8, group=group)
    held.draw(seed)
    held.tick()
    return held


def step(tables, batch):
    lookup = tables.lookup(tables.send(batch))
    tables.learn(lookup, torch.ones_like(lookup.pooled) * (1 + batch.sparse.values()[:, None].remainder(7)))
    return lookup.pooled
