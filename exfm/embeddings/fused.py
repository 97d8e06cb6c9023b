"""Embedding tables that learn in one process, by exact AdaGrad (arXiv 2104.05158): row-wise, or element-wise.

    m_r ← m_r + mean_j g_rj²        w_r ← w_r − lr · g_r / (√m_r + ε)
    m_rj ← m_rj + g_rj²             w_rj ← w_rj − lr · g_rj / (√m_rj + ε)

g_r is the sum of the gradients of all bags of a batch that hold row r: a row moves once a step. Tables of one width lie
in memory one after the other, so that a step takes the same few operators however many features there are.

Weights and accumulators are those of FBGEMM's own optimizers, bit for bit (tests/unit/exfm/embeddings/test_fused.py),
also where it rounds otherwise: element-wise, and where several keys are looked up in a table. On a CPU FBGEMM takes up
to four times as long: it sorts the ids of every table by itself.

B examples, K keys, P bags (B · K), D width, N ids of a batch, R rows, V tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.accumulators import SparseOptimizer
from exfm.embeddings.places import Keys, Places
from exfm.embeddings.weights import TableSize, draw_initial_weights, table_sizes
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.jagged import offsets_of
from exfm.lanes import LANES, by_width, load, load_some, row, same, store, total
from exfm.loops import inlined, loop, prefetch

LINE = 16  # numbers in a line of the cache

AHEAD = 32
"""Ids that a loop looks ahead, so that their rows are in the cache when their turn comes."""


class Looked(NamedTuple):
    """What was looked up, and where, by width: `learn` needs it."""

    pooled: Tensor  # (B, E): the sum of every bag's rows, keys in order; no gradient goes through it
    places: tuple[Places, ...]


class FusedTables(nn.Module):
    """Tables of these sizes, of weight 0: KeyedJaggedTensor of K keys × B -> `Looked`.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> tables = FusedTables.drawn(features, 4, seed=0, lr=0.1, eps=1e-8)
    >>> looked = tables(KeyedJaggedTensor(["ad", "user"], torch.tensor([3, 5]), lengths=torch.tensor([1, 1])))
    >>> tables.learn(looked, torch.ones(1, 8))
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

    def forward(self, sparse: KeyedJaggedTensor) -> Looked:
        return self._looked(self._places(sparse), sparse.stride())

    def of(self, batch: Batch) -> Looked:
        """What is looked up for a batch; where, is worked out once for all tables of these rows."""
        return self._looked(self._places_of(batch), len(batch))

    def pooled(self, batch: Batch, weights: Sequence[Tensor]) -> Tensor:
        """(B, E): what is looked up in other tables of these sizes, by width as `parameters` are."""
        return self._pooled(self._places_of(batch), len(batch), weights)

    def packed(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, ...] | None:
        """Other tables by name, as `pooled` takes them; None where they are not of these sizes."""
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in self.weights.items()}:
            return None
        return tuple(torch.cat([weights[name] for name in tables.names]) for tables in self._of_width)

    def _places_of(self, batch: Batch) -> tuple[Places, ...]:
        return batch.once(("places", self._rows), lambda: self._places(batch.sparse))

    @cached_property
    def _rows(self) -> Hashable:
        return tuple(tables.rows for tables in self._of_width)

    def _places(self, sparse: KeyedJaggedTensor) -> tuple[Places, ...]:
        ids, offsets = sparse.values().numpy(), offsets_of(sparse)
        return tuple(tables.places(ids, offsets, sparse.stride()) for tables in self._of_width)

    def _looked(self, places: tuple[Places, ...], B: int) -> Looked:
        return Looked(self._pooled(places, B, [tables.weight for tables in self._of_width]), places)

    def _pooled(self, places: tuple[Places, ...], B: int, weights: Sequence[Tensor]) -> Tensor:
        found = [t.look_up(at, w, B) for t, at, w in zip(self._of_width, places, weights, strict=True)]
        if len(found) == 1:
            return found[0].flatten(1)
        parts: dict[int, Tensor] = {}
        for tables, of_keys in zip(self._of_width, found, strict=True):
            parts |= dict(zip(tables.keys, of_keys.unbind(1), strict=True))
        return torch.cat([parts[k] for k in sorted(parts)], dim=1)

    def learn(self, looked: Looked, gradient: Tensor) -> None:
        """One step, with the gradient (B, E) of what was looked up."""
        parts = None if len(self._of_width) == 1 else gradient.split(self._widths, dim=1)
        for tables, at in zip(self._of_width, looked.places, strict=True):
            own = gradient if parts is None else torch.cat([parts[k] for k in tables.keys], dim=1)
            tables.learn(at, own, self.lr, self.eps)

    def _keys_of(self, D: int) -> list[int]:
        return [k for k, width in enumerate(self._widths) if width == D]


class _TablesOfWidth:
    """Tables of one width, one after the other; `keys` are the numbers of the keys that are looked up in them."""

    def __init__(self, sizes: Sequence[TableSize], keys: Sequence[int], optimizer: SparseOptimizer) -> None:
        self.keys = tuple(keys)
        self._rows = {size.name: size.rows for size in sizes}
        rows, self.D = sum(self._rows.values()), sizes[0].width
        self.weight = nn.Parameter(_zeros(rows, self.D), requires_grad=False)
        self.m = _zeros(rows) if optimizer == "row_wise_adagrad" else _zeros(rows, self.D)
        rows_V, keys_V = (np.array(of, np.int64) for of in zip(*((s.rows, len(s.keys)) for s in sizes), strict=True))
        self._places = Keys(np.array(keys, np.int64), rows_V, keys_V)
        self._several_K = np.repeat(keys_V > 1, keys_V)

    @property
    def rows(self) -> Hashable:
        """All that a place depends on besides the batch."""
        return self.keys, tuple(self._rows.items()), self._several_K.tobytes()

    @property
    def names(self) -> list[str]:
        return list(self._rows)

    def by_name(self, of_all: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._rows, of_all.split(list(self._rows.values())), strict=True))

    def places(self, ids: np.ndarray, offsets: np.ndarray, B: int) -> Places:
        return self._places.places(ids, offsets, B)

    def look_up(self, at: Places, weight: Tensor, B: int) -> Tensor:
        """(B, K, D)."""
        pooled = (torch.empty if at.in_all_bags else torch.zeros)(B, len(self.keys), self.D)
        _pool(at.ids, at.ends, at.first_rows, at.bags, weight.numpy(), pooled.numpy().reshape(-1, self.D))
        return pooled

    def learn(self, at: Places, gradient: Tensor, lr: float, eps: float) -> None:
        g_PD, w, m = gradient.reshape(-1, self.D).contiguous().numpy(), self.weight.numpy(), self.m.numpy()
        of, rates = (at.ids, at.ends, at.first_rows, at.bags, at.following), (np.float32(lr), np.float32(eps))
        if m.ndim == 1:
            _row_wise(*of, self._several_K, g_PD, w, m, *rates)
        else:
            _element_wise(*of, g_PD, w, m, *rates)


def _zeros(*shape: int) -> Tensor:
    """In huge pages, which NumPy asks Linux for and torch does not: with small ones a row that is fetched from
    anywhere costs a walk through the page tables. Rows of 16 numbers begin where lines of the cache do."""
    size = math.prod(shape)
    memory = np.zeros(size + LINE, np.float32)
    first = -(memory.ctypes.data // memory.itemsize) % LINE
    return torch.from_numpy(memory[first : first + size].reshape(shape))


@by_width
def _add(D, to, of):
    whole = D - D % LANES
    for d in range(0, whole, LANES):
        store(to, d, load(to, d) + load(of, d))
    for d in range(whole, D):
        to[d] += of[d]


@by_width
def _set(D, to, of):
    """To 0 + what it is set to: a weight of -0 is looked up as 0."""
    whole = D - D % LANES
    for d in range(0, whole, LANES):
        store(to, d, same(np.float32(0)) + load(of, d))
    for d in range(whole, D):
        to[d] = np.float32(0) + of[d]


@inlined
def _ahead(n, end, first, after):
    """Where the table begins of the id that is looked ahead to: of the same key, or of the next. Where it is of another
    still, what is fetched is not needed, and does no harm."""
    return first if n + AHEAD < end else after


@inlined
def _bag_ahead(n, start, end, k, K):
    return (n + AHEAD - start) * K + k if n + AHEAD < end else (n + AHEAD - end) * K + k + 1


@loop("void(i8[::1], i8[:, ::1], i8[::1], i4[::1], f4[:, ::1], f4[:, ::1])")
def _pool(ids, ends_K2, first_K, bags_N, w_RD, pooled_PD):
    N, K, D, single = len(ids), len(first_K), w_RD.shape[1], len(bags_N) == 0
    for k in range(K):
        (start, end), first, after, bag = ends_K2[k], first_K[k], first_K[min(k + 1, K - 1)], -1
        for n in range(start, end):
            if n + AHEAD < N:
                prefetch(w_RD, _ahead(n, end, first, after) + ids[n + AHEAD])
            before, bag = bag, (n - start) * K + k if single else bags_N[n]
            if bag == before:
                _add(D, row(pooled_PD, bag), row(w_RD, first + ids[n]))
            else:
                _set(D, row(pooled_PD, bag), row(w_RD, first + ids[n]))


@by_width
def _squares(D, g):
    """In lanes, as FBGEMM adds them where one key is looked up in a table."""
    whole, lanes = D - D % LANES, same(np.float32(0))
    for d in range(0, whole, LANES):
        lanes = lanes + load(g, d) * load(g, d)
    if whole < D:
        some = load_some(g, whole, D - whole)
        lanes = lanes + some * some
    return total(lanes)


@inlined
def _squares_in_order(D, g):
    squares = np.float32(0)
    for d in range(D):
        squares += g[d] * g[d]
    return squares


@by_width
def _move(D, w, rate, g):
    whole = D - D % LANES
    for d in range(0, whole, LANES):
        store(w, d, load(w, d) - same(rate) * load(g, d))
    for d in range(whole, D):
        w[d] -= rate * g[d]


@loop("void(i8[::1], i8[:, ::1], i8[::1], i4[::1], i4[::1], b1[::1], f4[:, ::1], f4[:, ::1], f4[::1], f4, f4)")
def _row_wise(ids, ends_K2, first_K, bags_N, following_N, several_K, g_PD, w_RD, m_R, lr, eps):
    N, K, D, single = len(ids), len(first_K), w_RD.shape[1], len(bags_N) == 0
    sum_1D = np.empty((1, D), np.float32)
    for k in range(K):
        (start, end), first, after, several = ends_K2[k], first_K[k], first_K[min(k + 1, K - 1)], several_K[k]
        for n in range(start, end):
            if n + AHEAD < N:
                r = _ahead(n, end, first, after) + ids[n + AHEAD]
                prefetch(w_RD, r)
                prefetch(m_R, r)
                prefetch(g_PD, _bag_ahead(n, start, end, k, K) if single else bags_N[n + AHEAD])
            following = following_N[n]
            if following < 0:  # its row has moved
                continue
            r, g = first + ids[n], row(g_PD, (n - start) * K + k if single else bags_N[n])
            if following > 0:
                sum_g = row(sum_1D, 0)
                _set(D, sum_g, g)
                while following > 0:
                    _add(D, sum_g, row(g_PD, (following - start) * K + k if single else bags_N[following]))
                    following = ~following_N[following]
                g = sum_g
            squares = _squares_in_order(D, g) if several else _squares(D, g)
            m = m_R[r] + squares / np.float32(D)
            m_R[r] = m
            _move(D, row(w_RD, r), lr / (np.sqrt(m) + eps), g)


@loop("void(i8[::1], i8[:, ::1], i8[::1], i4[::1], i4[::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4, f4)")
def _element_wise(ids, ends_K2, first_K, bags_N, following_N, g_PD, w_RD, m_RD, lr, eps):
    """FBGEMM's rounds in double where ours does."""
    N, K, D, single = len(ids), len(first_K), w_RD.shape[1], len(bags_N) == 0
    sum_1D = np.empty((1, D), np.float32)
    g = row(sum_1D, 0)
    for k in range(K):
        (start, end), first, after = ends_K2[k], first_K[k], first_K[min(k + 1, K - 1)]
        for n in range(start, end):
            if n + AHEAD < N:
                r = _ahead(n, end, first, after) + ids[n + AHEAD]
                prefetch(w_RD, r)
                prefetch(m_RD, r)
                prefetch(g_PD, _bag_ahead(n, start, end, k, K) if single else bags_N[n + AHEAD])
            following = following_N[n]
            if following < 0:  # its row has moved
                continue
            _set(D, g, row(g_PD, (n - start) * K + k if single else bags_N[n]))
            while following > 0:
                _add(D, g, row(g_PD, (following - start) * K + k if single else bags_N[following]))
                following = ~following_N[following]
            w, m = row(w_RD, first + ids[n]), row(m_RD, first + ids[n])
            for d in range(D):
                if g[d] == 0:  # nothing moves, as in columns that are there to fill a row
                    continue
                m[d] = np.float32(np.float64(m[d]) + np.float64(g[d]) * np.float64(g[d]))
                step = np.float64(lr * g[d]) / (np.sqrt(np.float64(m[d])) + np.float64(eps))
                w[d] = np.float32(np.float64(w[d]) - step)
