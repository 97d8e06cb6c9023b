"""Embedding tables that learn in one process, by exact AdaGrad (arXiv 2104.05158): row-wise, or element-wise.

    m_r ← m_r + mean_j g_rj²        w_r ← w_r − lr · g_r / (√m_r + ε)
    m_rj ← m_rj + g_rj²             w_rj ← w_rj − lr · g_rj / (√m_rj + ε)

g_r is the sum of the gradients of all bags of a batch that hold row r: a row moves once a step. Tables of one width lie
in memory one after the other, so that a step takes the same few operators however many features there are.

Weights and accumulators are those of FBGEMM's own optimizers, bit for bit (tests/unit/exfm/embeddings/test_fused.py),
also where it rounds otherwise: element-wise, and where several keys are looked up in a table. On a CPU FBGEMM takes up
to four times as long: it sorts the ids of every table by itself.

B examples, K keys, D width, N ids of a batch, U distinct rows of these.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.data import Batch, FeatureSet, offsets_of
from exfm.embeddings.accumulators import SparseOptimizer
from exfm.embeddings.weights import TableSize, draw_initial_weights, table_sizes
from exfm.loops import loop, prefetch

LANES = 8
"""FBGEMM adds the squares of a row in so many lanes; in one where several keys are looked up in the table."""

AHEAD = 8
"""Ids that a loop looks ahead, so that their rows are in the cache when their turn comes."""

DIGIT_BITS = 11


class ByRow(NamedTuple):
    """The ids of a batch in order of their rows (N,), and the bag (N,) of each; those of one row as they came."""

    rows: np.ndarray
    bags: np.ndarray


@dataclass(frozen=True, eq=False)
class Places:
    """Where the ids of a batch are in the tables of one width. All tables of the same rows share it."""

    rows: np.ndarray  # (N,) int64, of all tables together
    bags: np.ndarray  # (N,) int32: bag b · K + k
    most: int  # no row is this large

    @cached_property
    def by_row(self) -> ByRow:
        return ByRow(*_sorted(self.rows, self.bags, self.most))


class Looked(NamedTuple):
    """What was looked up, and where, by width: `learn` needs it."""

    pooled: Tensor  # (B, E): the sum of every bag's rows, keys in order; no gradient goes through it
    places: tuple[Places, ...]


class FusedTables(nn.Module):
    """Tables of these sizes, of weight 0: KeyedJaggedTensor of K keys × B -> `Looked`.

    >>> from exfm.data import SparseFeature
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
        self.weight = nn.Parameter(torch.zeros(rows, self.D), requires_grad=False)
        self.m = torch.zeros(rows) if optimizer == "row_wise_adagrad" else torch.zeros(rows, self.D)
        first, of_key = 0, []
        several: list[tuple[int, int]] = []  # the first row of each table of several keys, and the one after it
        for size in sizes:
            of_key += [first] * len(size.keys)
            if len(size.keys) > 1:
                several.append((first, first + size.rows))
            first += size.rows
        self._several_V2 = np.array(several, np.int64).reshape(-1, 2)
        self._first_K, self._key_K = np.array(of_key, np.int64), np.array(keys, np.int64)

    @property
    def rows(self) -> Hashable:
        """All that a place depends on besides the batch."""
        return self.keys, tuple(self._rows.values()), tuple(self._first_K.tolist())

    def by_name(self, of_all: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._rows, of_all.split(list(self._rows.values())), strict=True))

    def places(self, ids: np.ndarray, offsets: np.ndarray, B: int) -> Places:
        count = sum(int(offsets[(key + 1) * B] - offsets[key * B]) for key in self.keys)
        rows, bags = np.empty(count, np.int64), np.empty(count, np.int32)
        _place(ids, offsets, self._key_K, self._first_K, B, rows, bags)
        return Places(rows, bags, len(self.weight))

    def look_up(self, at: Places, weight: Tensor, B: int) -> Tensor:
        """(B, K, D)."""
        pooled = torch.zeros(B, len(self.keys), self.D)
        _pool(at.rows, at.bags, weight.numpy(), pooled.view(-1, self.D).numpy())
        return pooled

    def learn(self, at: Places, gradient: Tensor, lr: float, eps: float) -> None:
        g_ND, w, m = gradient.reshape(-1, self.D).contiguous().numpy(), self.weight.numpy(), self.m.numpy()
        if m.ndim == 1:
            _row_wise(*at.by_row, self._several_V2, g_ND, w, m, np.float32(lr), np.float32(eps))
        else:
            _element_wise(*at.by_row, g_ND, w, m, np.float32(lr), np.float32(eps))


@loop("void(i8[::1], i8[::1], i8[::1], i8[::1], i8, i8[::1], i4[::1])")
def _place(ids, offsets, key_K, first_K, B, rows_N, bags_N):
    K, n = len(key_K), 0
    for k in range(K):
        for b in range(B):
            bag = key_K[k] * B + b
            for i in range(offsets[bag], offsets[bag + 1]):
                rows_N[n], bags_N[n] = ids[i] + first_K[k], b * K + k
                n += 1


@loop("void(i8[::1], i4[::1], f4[:, ::1], f4[:, ::1])")
def _pool(rows_N, bags_N, w_RD, pooled_PD):
    D = w_RD.shape[1]
    for n in range(len(rows_N)):
        r, bag = rows_N[n], bags_N[n]
        if n + AHEAD < len(rows_N):
            prefetch(w_RD, rows_N[n + AHEAD])
        for d in range(D):
            pooled_PD[bag, d] += w_RD[r, d]


@loop("Tuple((i8[::1], i4[::1]))(i8[::1], i4[::1], i8)")
def _sorted(rows_N, bags_N, most):
    """Rows in order, and their bags with them; what is equal stays in order (a radix sort)."""
    digits, shift = 1 << DIGIT_BITS, 0
    rows, bags = rows_N, bags_N
    while shift == 0 or (most - 1) >> shift > 0:
        ends = np.zeros(digits + 1, np.int64)
        for n in range(len(rows)):
            ends[((rows[n] >> shift) & (digits - 1)) + 1] += 1
        for digit in range(digits):
            ends[digit + 1] += ends[digit]
        next_rows, next_bags = np.empty_like(rows), np.empty_like(bags)
        for n in range(len(rows)):
            digit = (rows[n] >> shift) & (digits - 1)
            next_rows[ends[digit]], next_bags[ends[digit]] = rows[n], bags[n]
            ends[digit] += 1
        rows, bags = next_rows, next_bags
        shift += DIGIT_BITS
    return rows, bags


@numba.njit(inline="always")
def _summed(rows_N, bags_N, first, g_ND, g_D):
    """The gradient of the row that begins at `first`: the sum of its bags'. Returns where the next row begins."""
    D, r, bag, n = len(g_D), rows_N[first], bags_N[first], first + 1
    for d in range(D):
        g_D[d] = g_ND[bag, d]
    while n < len(rows_N) and rows_N[n] == r:
        bag = bags_N[n]
        for d in range(D):
            g_D[d] += g_ND[bag, d]
        n += 1
    return n


@numba.njit(inline="always")
def _fetch(r, bag, g_ND, w_RD, m_R):
    prefetch(g_ND, bag)
    prefetch(w_RD, r)
    prefetch(m_R, r)


@loop("void(i8[::1], i4[::1], i8[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], f4, f4)")
def _row_wise(rows_N, bags_N, several_V2, g_ND, w_RD, m_R, lr, eps):
    D, v, first = w_RD.shape[1], 0, 0
    g_D, lanes = np.empty(D, np.float32), np.empty(LANES, np.float32)
    while first < len(rows_N):
        r = rows_N[first]
        if first + AHEAD < len(rows_N):
            _fetch(rows_N[first + AHEAD], bags_N[first + AHEAD], g_ND, w_RD, m_R)
        first = _summed(rows_N, bags_N, first, g_ND, g_D)
        while v < len(several_V2) and r >= several_V2[v, 1]:
            v += 1
        squares = np.float32(0)
        if v < len(several_V2) and r >= several_V2[v, 0]:
            for d in range(D):
                squares += g_D[d] * g_D[d]
        else:
            lanes[:] = 0
            for d in range(0, D - D % LANES, LANES):
                for lane in range(LANES):
                    lanes[lane] += g_D[d + lane] * g_D[d + lane]
            for lane in range(D % LANES):
                g = g_D[D - D % LANES + lane]
                lanes[lane] += g * g
            first_half = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
            squares = first_half + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
        m = m_R[r] + squares / np.float32(D)
        m_R[r] = m
        rate = lr / (np.sqrt(m) + eps)
        for d in range(D):
            w_RD[r, d] -= rate * g_D[d]


@loop("void(i8[::1], i4[::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4, f4)")
def _element_wise(rows_N, bags_N, g_ND, w_RD, m_RD, lr, eps):
    """FBGEMM's rounds in double where ours does."""
    D, first = w_RD.shape[1], 0
    g_D = np.empty(D, np.float32)
    while first < len(rows_N):
        r = rows_N[first]
        if first + AHEAD < len(rows_N):
            _fetch(rows_N[first + AHEAD], bags_N[first + AHEAD], g_ND, w_RD, m_RD)
        first = _summed(rows_N, bags_N, first, g_ND, g_D)
        for d in range(D):
            m = np.float32(np.float64(m_RD[r, d]) + np.float64(g_D[d]) * np.float64(g_D[d]))
            step = np.float64(lr * g_D[d]) / (np.sqrt(np.float64(m)) + np.float64(eps))
            m_RD[r, d], w_RD[r, d] = m, np.float32(np.float64(w_RD[r, d]) - step)
