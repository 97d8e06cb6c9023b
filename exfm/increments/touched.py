"""Which rows of its tables a student's batches may have changed: those whose ids are in them.

A row of a table, or of a history, changes only in a step on a batch that has its id. So the ids are enough, and a step
costs a reference to its batch. Rows that a batch has and a step left out are named too: sent again, they say the same.

K rows of a table that are named.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.data import FeatureSet

SPARSE = 64
"""A table of more rows than this times the ids is not looked through for the marked ones: the ids are sorted."""


class Touched:
    """Of the tables of a feature set, by name.

    >>> from exfm.data import SparseFeature
    >>> touched = Touched(FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=9000)]))
    >>> ids, lengths = torch.tensor([3, 1, 3, 8, 8, 2]), torch.ones(6, dtype=torch.int64)
    >>> touched.note(KeyedJaggedTensor(keys=["ad", "user"], values=ids, lengths=lengths))
    >>> {table: rows.tolist() for table, rows in touched.take().items()}
    {'ad': [1, 3], 'user': [2, 8]}
    >>> {table: rows.tolist() for table, rows in touched.take().items()}
    {'ad': [], 'user': []}
    """

    def __init__(self, features: FeatureSet) -> None:
        self._rows = {feature.name: feature.rows for feature in features.sparse}
        self._rows |= {feature.name: feature.rows for feature in features.sequence}
        self._tables = {feature.name: feature.name for feature in features.sparse}
        self._tables |= {key: feature.name for feature in features.sequence for key in feature.keys}
        self._noted: list[KeyedJaggedTensor] = []

    def note(self, sparse: KeyedJaggedTensor) -> None:
        """A batch was learned. Its ids are kept until they are taken."""
        self._noted.append(sparse)

    def take(self) -> dict[str, Tensor]:
        """Rows (K,) int64 by table, each once and ascending, of the batches noted since the last call."""
        ids: dict[str, list[Tensor]] = {table: [] for table in self._rows}
        for sparse in self._noted:
            ends, values = sparse.offset_per_key(), sparse.values()
            for n, key in enumerate(sparse.keys()):
                ids[self._tables[key]].append(values[ends[n] : ends[n + 1]])
        self._noted = []
        return {table: _distinct(parts, self._rows[table]) for table, parts in ids.items()}


def _distinct(parts: list[Tensor], rows: int) -> Tensor:
    count = sum(map(len, parts))
    if not count:
        return torch.zeros(0, dtype=torch.int64)
    if rows > SPARSE * count:
        return torch.unique(torch.cat(parts))
    marked = torch.zeros(rows, dtype=torch.bool)
    for part in parts:
        marked[part] = True
    return marked.nonzero().squeeze(1)
