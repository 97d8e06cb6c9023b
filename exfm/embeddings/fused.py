"""Embedding tables that learn in one process, by exact AdaGrad (arXiv 2104.05158): row-wise, or element-wise.

    m_r ← m_r + mean_j g_rj²        w_r ← w_r − lr · g_r / (√m_r + ε)
    m_rj ← m_rj + g_rj²             w_rj ← w_rj − lr · g_rj / (√m_rj + ε)

g_r is the sum of the gradients of all bags of a batch that hold row r: a row moves once a step. Tables of one width lie
in memory one after the other, so that a step takes the same few operators however many features there are.

Weights and accumulators are those of FBGEMM's own optimizers, bit for bit (tests/unit/exfm/embeddings/test_fused.py);
row-wise to rounding where several keys are looked up in a table, whose squares FBGEMM adds in another order. On a CPU
FBGEMM takes up to four times as long: it sorts the ids of every table by itself.

B examples, K keys, P bags (B · K), D width, N ids of a batch, R rows, V tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.weights import TableSize, draw_initial_weights, table_sizes
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.jagged import offsets_of
from exfm.kernels.tables import find_first, learn_by_element, learn_by_row, sum_rows_of_bags

LINE = 16  # numbers in a line of the cache


class Lookup(NamedTuple):
    """Result of a lookup, with the row indices that `learn` needs, by width."""

    pooled: Tensor  # (B, E): the sum of every bag's rows, keys in order; no gradient goes through it
    indices: tuple[RowIndices, ...]


class FusedTables(nn.Module):
    """Tables of these sizes, of weight 0: KeyedJaggedTensor of K keys × B -> `Lookup`.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> tables = FusedTables.drawn(features, 4, seed=0, lr=0.1, eps=1e-8)
    >>> lookup = tables(KeyedJaggedTensor(["ad", "user"], torch.tensor([3, 5]), lengths=torch.tensor([1, 1])))
    >>> tables.learn(lookup, torch.ones(1, 8))
    >>> tables.accumulators["user"].nonzero().tolist()
    [[5]]
    """

    def __init__(
        self, sizes: Sequence[TableSize], *, lr: float, eps: float, optimizer: SparseOptimizer = "row_wise_adagrad"
    ) -> None:
        super().__init__()
        self.lr, self.eps = lr, eps
        self._widths = [size.width for size in sizes for _ in size.keys]
        self._of_width = tuple(
            _TablesOfWidth([size for size in sizes if size.width == D], self._keys_of(D), optimizer)
            for D in sorted(set(self._widths))
        )
        weights: dict[str, Tensor] = {}
        accumulators: dict[str, Tensor] = {}
        for tables in self._of_width:
            self.register_parameter(f"width_{tables.D}", tables.weight)
            weights |= tables.by_name(tables.weight.detach())
            accumulators |= tables.by_name(tables.m)
        self.weights: dict[str, Tensor] = {size.name: weights[size.name] for size in sizes}
        """By table, (rows, width): the state itself, not a copy."""
        self.accumulators: dict[str, Tensor] = {size.name: accumulators[size.name] for size in sizes}
        """By table, m (rows,), element-wise (rows, width): the state itself, not a copy."""

    @classmethod
    def drawn(cls, features: FeatureSet, width: int, seed: int, *, lr: float, eps: float) -> FusedTables:
        """One table per sparse feature and sequence, with the weights that they begin with."""
        sizes = table_sizes(features, width)
        tables = cls(sizes, lr=lr, eps=eps)
        for name, rows, columns, _ in sizes:
            draw_initial_weights(name, rows, columns, seed, [((0, 0), tables.weights[name])])
        return tables

    def forward(self, sparse: KeyedJaggedTensor) -> Lookup:
        return self._looked(self._indices(sparse), sparse.stride())

    def of(self, batch: Batch) -> Lookup:
        """Look up a batch; its row indices are computed once for all tables of these sizes."""
        return self._looked(self._indices_of(batch), len(batch))

    def pooled(self, batch: Batch, weights: Sequence[Tensor]) -> Tensor:
        """Look up (B, E) in other weights of these sizes, by width as in `parameters`."""
        return self._pooled(self._indices_of(batch), len(batch), weights)

    def packed(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, ...] | None:
        """Other tables by name, as `pooled` takes them; None where they are not of these sizes."""
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in self.weights.items()}:
            return None
        return tuple(torch.cat([weights[name] for name in tables.names]) for tables in self._of_width)

    def _indices_of(self, batch: Batch) -> tuple[RowIndices, ...]:
        return batch.once(("row indices", self._shapes), lambda: self._indices(batch.sparse))

    @cached_property
    def _shapes(self) -> Hashable:
        return tuple(tables.shape for tables in self._of_width)

    def _indices(self, sparse: KeyedJaggedTensor) -> tuple[RowIndices, ...]:
        ids, offsets, B = sparse.values().numpy(), offsets_of(sparse), sparse.stride()
        lengths_KB = np.diff(offsets).reshape(len(self._widths), B)
        return tuple(tables.indices(ids, offsets, lengths_KB) for tables in self._of_width)

    def _looked(self, indices: tuple[RowIndices, ...], B: int) -> Lookup:
        return Lookup(self._pooled(indices, B, [tables.weight for tables in self._of_width]), indices)

    def _pooled(self, indices: tuple[RowIndices, ...], B: int, weights: Sequence[Tensor]) -> Tensor:
        found = [t.look_up(at, w, B) for t, at, w in zip(self._of_width, indices, weights, strict=True)]
        if len(found) == 1:
            return found[0].flatten(1)
        parts: dict[int, Tensor] = {}
        for tables, of_keys in zip(self._of_width, found, strict=True):
            parts |= dict(zip(tables.keys, of_keys.unbind(1), strict=True))
        return torch.cat([parts[k] for k in sorted(parts)], dim=1)

    def learn(self, lookup: Lookup, gradient: Tensor) -> None:
        """One step, with the gradient (B, E) of what was looked up, which may be written over."""
        parts = None if len(self._of_width) == 1 else gradient.split(self._widths, dim=1)
        for tables, at in zip(self._of_width, lookup.indices, strict=True):
            own = gradient if parts is None else torch.cat([parts[k] for k in tables.keys], dim=1)
            tables.learn(at, own, self.lr, self.eps)

    def _keys_of(self, D: int) -> list[int]:
        return [k for k, width in enumerate(self._widths) if width == D]


@dataclass(frozen=True, eq=False)
class RowIndices:
    """Rows of the ids of a batch in tables of one width. All tables of the same sizes share it."""

    rows: np.ndarray  # (N,) int64, in all tables together, key by key
    bags: np.ndarray  # (N,) int32, b · K + k
    one_each: bool  # every bag holds one id

    @cached_property
    def first(self) -> np.ndarray:
        """(N,) int32, the first id that has the same row."""
        first = np.empty(len(self.rows), np.int32)
        find_first(self.rows, first)
        return first


class _TablesOfWidth:
    """Tables of one width, one after the other; `keys` are the numbers of the keys that are looked up in them."""

    def __init__(self, sizes: Sequence[TableSize], keys: Sequence[int], optimizer: SparseOptimizer) -> None:
        self.keys = tuple(keys)
        self._rows = {size.name: size.rows for size in sizes}
        rows, self.D = sum(self._rows.values()), sizes[0].width
        self.weight = nn.Parameter(_zeros(rows, self.D), requires_grad=False)
        self.m = _zeros(rows) if optimizer == "row_wise_adagrad" else _zeros(rows, self.D)
        rows_V, keys_V = (np.array(of, np.int64) for of in zip(*((s.rows, len(s.keys)) for s in sizes), strict=True))
        self._first_rows_K = np.repeat(np.cumsum(rows_V) - rows_V, keys_V)

    @property
    def shape(self) -> Hashable:
        """All that row indices depend on besides the batch."""
        return self.keys, tuple(self._rows.items()), self._first_rows_K.tobytes()

    @property
    def names(self) -> list[str]:
        return list(self._rows)

    def by_name(self, of_all: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._rows, of_all.split(list(self._rows.values())), strict=True))

    def indices(self, ids: np.ndarray, offsets: np.ndarray, lengths_KB: np.ndarray) -> RowIndices:
        """`offsets`: where the bags of the batch begin, key by key; `lengths_KB`: how many ids are in them."""
        keys, B = np.array(self.keys), lengths_KB.shape[1]
        starts, ends = offsets[keys * B], offsets[(keys + 1) * B]
        own = ids[starts[0] : ends[-1]]
        if len(own) != (ends - starts).sum():  # keys of other widths lie between
            own = np.concatenate([ids[start:end] for start, end in zip(starts, ends, strict=True)])
        rows = own + np.repeat(self._first_rows_K, ends - starts)
        bags_KB = np.arange(B, dtype=np.int32) * len(keys) + np.arange(len(keys), dtype=np.int32)[:, None]
        lengths = lengths_KB[keys].ravel()
        one_each = bool((lengths == 1).all())
        bags = bags_KB.ravel() if one_each else np.repeat(bags_KB.ravel(), lengths)
        return RowIndices(rows, bags, one_each)

    def look_up(self, at: RowIndices, weight: Tensor, B: int) -> Tensor:
        """(B, K, D)."""
        pooled = (torch.empty if at.one_each else torch.zeros)(B, len(self.keys), self.D)
        sum_rows_of_bags(at.rows, at.bags, weight.numpy(), pooled.numpy().reshape(-1, self.D))
        return pooled

    def learn(self, at: RowIndices, gradient: Tensor, lr: float, eps: float) -> None:
        g_PD, own = gradient.reshape(-1, self.D).contiguous().numpy(), at.bags
        if not at.one_each:  # ids of a bag have its gradient each
            g_PD, own = g_PD[at.bags], np.arange(len(at.bags), dtype=np.int32)
        learn = learn_by_row if self.m.ndim == 1 else learn_by_element
        learn(at.rows, at.first, own, g_PD, self.weight.numpy(), self.m.numpy(), np.float32(lr), np.float32(eps))


def _zeros(*shape: int) -> Tensor:
    """In huge pages, which NumPy asks Linux for and torch does not: with small ones a row that is fetched from
    anywhere costs a walk through the page tables. Rows of 16 numbers begin where lines of the cache do."""
    size = math.prod(shape)
    memory = np.zeros(size + LINE, np.float32)
    first = -(memory.ctypes.data // memory.itemsize) % LINE
    return torch.from_numpy(memory[first : first + size].reshape(shape))
