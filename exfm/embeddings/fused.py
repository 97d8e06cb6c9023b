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

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.data import Batch, FeatureSet
from exfm.embeddings.accumulators import SparseOptimizer
from exfm.embeddings.weights import TableSize, draw_initial_weights, table_sizes

LANES = 8


class ByRow(NamedTuple):
    """The ids of a batch, row by row: the distinct rows (U,); the bags (N,) of all ids, those of one row together; and
    where each row begins among them, (U + 1,)."""

    rows: np.ndarray
    bags: Tensor
    starts: Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """Where the ids of a batch are in the tables of one width. All tables of the same rows share it."""

    rows: Tensor  # (N,), of all tables together
    bags: Tensor  # (N,): bag b · K + k
    offsets: Tensor  # (K · B + 1,): where each bag begins, key by key

    @cached_property
    def by_row(self) -> ByRow:
        rows_U, order_N, starts = _by_row(self.rows.numpy())
        return ByRow(rows_U, self.bags[torch.from_numpy(order_N)], torch.from_numpy(starts))


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
        return self._looked(batch.once(("places", self._rows), lambda: self._places(batch.sparse)), len(batch))

    @property
    def _rows(self) -> Hashable:
        return tuple(tables.rows for tables in self._of_width)

    def _places(self, sparse: KeyedJaggedTensor) -> tuple[Places, ...]:
        B, lengths, offsets = sparse.stride(), sparse.lengths(), sparse.offsets()
        if len(self._of_width) == 1:
            return (self._of_width[0].places(sparse.values(), lengths, offsets, B),)
        of_key, found = lengths.view(len(self._widths), B), []
        ids = sparse.values().split(of_key.sum(1).tolist())
        for tables in self._of_width:
            own = of_key[list(tables.keys)].flatten()
            ends = torch.cat([own.new_zeros(1), own.cumsum(0)])
            found.append(tables.places(torch.cat([ids[k] for k in tables.keys]), own, ends, B))
        return tuple(found)

    def _looked(self, places: tuple[Places, ...], B: int) -> Looked:
        pooled = [tables.look_up(at, B) for tables, at in zip(self._of_width, places, strict=True)]
        if len(pooled) == 1:
            return Looked(pooled[0].flatten(1), places)
        parts: dict[int, Tensor] = {}
        for tables, of_keys in zip(self._of_width, pooled, strict=True):
            parts |= dict(zip(tables.keys, of_keys.unbind(1), strict=True))
        return Looked(torch.cat([parts[k] for k in sorted(parts)], dim=1), places)

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
        self._of_several_keys: list[tuple[int, int]] = []  # the first row of each such table, and the one after it
        for size in sizes:
            of_key += [first] * len(size.keys)
            if len(size.keys) > 1:
                self._of_several_keys.append((first, first + size.rows))
            first += size.rows
        self._first_K = torch.tensor(of_key)

    @property
    def rows(self) -> Hashable:
        """All that a place depends on besides the batch."""
        return self.keys, tuple(self._rows.values()), tuple(self._first_K.tolist())

    def by_name(self, of_all: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._rows, of_all.split(list(self._rows.values())), strict=True))

    def places(self, ids: Tensor, lengths: Tensor, offsets: Tensor, B: int) -> Places:
        K = len(self.keys)
        rows = ids + self._first_K.repeat_interleave(lengths.view(K, B).sum(1))
        bags = (torch.arange(B) * K + torch.arange(K).unsqueeze(1)).view(-1).repeat_interleave(lengths)
        return Places(rows, bags, offsets)

    def look_up(self, at: Places, B: int) -> Tensor:
        """(B, K, D)."""
        pooled = torch.embedding_bag(self.weight, at.rows, at.offsets, mode=0, include_last_offset=True)[0]
        return pooled.view(len(self.keys), B, self.D).transpose(0, 1).contiguous()

    def learn(self, at: Places, gradient: Tensor, lr: float, eps: float) -> None:
        if not len(at.rows):
            return
        rows_U, place, starts = at.by_row
        summed = torch.embedding_bag(gradient.reshape(-1, self.D), place, starts, mode=0, include_last_offset=True)[0]
        g_UD, w, m = summed.numpy(), self.weight.numpy(), self.m.numpy()
        if m.ndim == 1:
            squares_U = sum_of_squares(g_UD)
            for first, end in self._of_several_keys:
                own = slice(*np.searchsorted(rows_U, (first, end)))
                squares_U[own] = sum_of_squares(g_UD[own], lanes=1)
            m_U = m.take(rows_U) + squares_U / self.D
            m[rows_U] = m_U
            step_UD = (np.float32(lr) / (np.sqrt(m_U) + np.float32(eps)))[:, None] * g_UD
        else:
            m_UD = (taken(m, rows_U) + np.square(g_UD, dtype=np.float64)).astype(np.float32)  # as FBGEMM rounds
            put(m, rows_U, m_UD)
            step_UD = np.float32(lr) * g_UD / (np.sqrt(m_UD, dtype=np.float64) + np.float32(eps))
        put(w, rows_U, (taken(w, rows_U) - step_UD).astype(np.float32, copy=False))


def taken(of_RD: np.ndarray, rows_U: np.ndarray) -> np.ndarray:
    """Rows (U, D) of (R, D) float32. numpy moves each as one item."""
    return _items(of_RD).take(rows_U).view(np.float32).reshape(-1, of_RD.shape[1])


def put(of_RD: np.ndarray, rows_U: np.ndarray, values_UD: np.ndarray) -> None:
    """The same, written."""
    _items(of_RD)[rows_U] = _items(values_UD)


def _items(of_RD: np.ndarray) -> np.ndarray:
    return of_RD.view(f"V{of_RD.itemsize * of_RD.shape[1]}")[:, 0]


def _by_row(rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct rows (U,), an order (N,) of the ids that puts those of one row together and keeps the order of
    these, and where each row begins in it (U + 1,). Row and place are sorted as one number: numpy is fast at that."""
    N = len(rows_N)
    bits = N.bit_length()
    both = (rows_N << bits) | np.arange(N)
    both.sort()
    rows, order = both >> bits, both & ((1 << bits) - 1)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return rows[starts], order, np.append(starts, N)


def sum_of_squares(g_UD: np.ndarray, lanes: int = LANES) -> np.ndarray:
    """Σ_j g_rj², (U,), added in FBGEMM's order: in lanes along the row, then neighbours pairwise. It has eight lanes,
    and one where several keys are looked up in a table.

    >>> sum_of_squares(np.array([[1, 2, 3, 4]], dtype=np.float32)).tolist()
    [30.0]
    """
    squares = np.square(g_UD)
    if lacking := -g_UD.shape[1] % lanes:
        squares = np.pad(squares, ((0, 0), (0, lacking)))
    total, *others = squares.reshape(len(g_UD), squares.shape[1] // lanes, lanes).swapaxes(0, 1)
    for other in others:
        total = total + other
    summed = total.reshape(-1)
    for _ in range(lanes.bit_length() - 1):
        summed = summed[::2] + summed[1::2]
    return summed
