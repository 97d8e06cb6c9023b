"""Embedding tables that learn in one process, by exact row-wise AdaGrad (arXiv 2104.05158).

    m_r ← m_r + mean_j g_rj²        w_r ← w_r − lr · g_r / (√m_r + ε)

g_r is the sum of the gradients of all bags of a batch that hold row r: a row moves once a step. Tables of one width lie
in memory one after the other, so that a step takes the same few operators however many features there are.

Weights and accumulators are those of FBGEMM's own optimizer, bit for bit (tests/unit/exfm/embeddings/test_fused.py). On
a CPU FBGEMM takes two to four times as long: it sorts the ids of every table by itself.

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
from exfm.embeddings.weights import TableSize, initial_weights, table_sizes

LANES = 8


class ByRow(NamedTuple):
    """The ids of a batch, row by row: the distinct rows (U,); the bags (N,) of all ids, those of one row together; and
    where each row begins among them, (U + 1,)."""

    rows: np.ndarray
    bags: Tensor
    starts: Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """Where the ids of a batch are in the tables of one width. All tables of the same sizes share it."""

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
    """One table per sparse feature and sequence: KeyedJaggedTensor of K keys × B -> `Looked`.

    >>> from exfm.data import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=20)])
    >>> tables = FusedTables(features, 4, seed=0, lr=0.1, eps=1e-8)
    >>> looked = tables(KeyedJaggedTensor(["ad", "user"], torch.tensor([3, 5]), lengths=torch.tensor([1, 1])))
    >>> tables.learn(looked, torch.ones(1, 8))
    >>> tables.accumulators["user"].nonzero().tolist()
    [[5]]
    """

    def __init__(self, features: FeatureSet, width: int, seed: int, *, lr: float, eps: float) -> None:
        super().__init__()
        self.lr, self.eps = lr, eps
        sizes = table_sizes(features, width)
        self._widths = [size.width for size in sizes for _ in size.keys]
        self._of_width = tuple(
            _TablesOfWidth([size for size in sizes if size.width == D], self._keys_of(D))
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
        """By table, m (rows,): the state itself, not a copy."""
        for name, rows, columns, _ in sizes:
            self.weights[name].copy_(initial_weights(name, rows, columns, seed))

    def forward(self, sparse: KeyedJaggedTensor) -> Looked:
        return self._looked(self._places(sparse), sparse.stride())

    def of(self, batch: Batch) -> Looked:
        """What is looked up for a batch; where, is worked out once for all tables of these sizes."""
        return self._looked(batch.once(("places", self._sizes), lambda: self._places(batch.sparse)), len(batch))

    @property
    def _sizes(self) -> Hashable:
        return tuple(tables.sizes for tables in self._of_width)

    def _places(self, sparse: KeyedJaggedTensor) -> tuple[Places, ...]:
        B, lengths, offsets = sparse.stride(), sparse.lengths(), sparse.offsets()
        if len(self._of_width) == 1:
            return (self._of_width[0].places(sparse.values(), lengths, offsets, B),)
        ids = sparse.values().split(offsets[::B].diff().tolist())
        of_key, found = lengths.split(B), []
        for tables in self._of_width:
            own = torch.cat([of_key[k] for k in tables.keys])
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

    def __init__(self, sizes: Sequence[TableSize], keys: Sequence[int]) -> None:
        self.keys = tuple(keys)
        self._rows = {size.name: size.rows for size in sizes}
        rows, self.D = sum(self._rows.values()), sizes[0].width
        self.weight = nn.Parameter(torch.zeros(rows, self.D), requires_grad=False)
        self.m = torch.zeros(rows)
        first, of_key = 0, []
        for size in sizes:
            of_key += [first] * len(size.keys)
            first += size.rows
        self._first_K = torch.tensor(of_key)

    @property
    def sizes(self) -> Hashable:
        """All that a place depends on besides the batch."""
        return self.keys, self.D, tuple(self._rows.values()), tuple(self._first_K.tolist())

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
        g_UD, m = summed.numpy(), self.m.numpy()
        m_U = m.take(rows_U) + sum_of_squares(g_UD) / self.D
        m[rows_U] = m_U
        rate_U = np.float32(lr) / (np.sqrt(m_U) + np.float32(eps))
        whole = self.weight.numpy().view(f"V{self.weight.itemsize * self.D}")[:, 0]  # rows that numpy moves as one item
        w_UD = whole.take(rows_U).view(np.float32).reshape(-1, self.D)
        w_UD -= rate_U[:, None] * g_UD
        whole[rows_U] = w_UD.view(whole.dtype)[:, 0]


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


def sum_of_squares(g_UD: np.ndarray) -> np.ndarray:
    """Σ_j g_rj², (U,), added in FBGEMM's order: eight lanes along the row, then neighbours pairwise.

    >>> sum_of_squares(np.array([[1, 2, 3, 4]], dtype=np.float32)).tolist()
    [30.0]
    """
    squares = np.square(g_UD)
    if lacking := -g_UD.shape[1] % LANES:
        squares = np.pad(squares, ((0, 0), (0, lacking)))
    lanes, *others = squares.reshape(len(g_UD), -1, LANES).swapaxes(0, 1)
    for other in others:
        lanes = lanes + other
    summed = lanes.reshape(-1)
    for _ in range(LANES.bit_length() - 1):
        summed = summed[::2] + summed[1::2]
    return summed
