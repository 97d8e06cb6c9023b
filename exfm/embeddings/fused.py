"""Embedding tables that learn in one process, by exact AdaGrad (arXiv 2104.05158): row-wise, or element-wise.

    m_r ← m_r + mean_j g_rj²        w_r ← w_r − lr · g_r / (√m_r + ε)
    m_rj ← m_rj + g_rj²             w_rj ← w_rj − lr · g_rj / (√m_rj + ε)

g_r is the sum of the gradients of all bags of a batch that hold row r: a row moves once a step. Tables of one width lie
in memory one after the other, so that a step takes the same few operators however many features there are.

Weights and accumulators are those of FBGEMM's own optimizers, bit for bit (tests/unit/exfm/embeddings/test_fused.py);
row-wise to rounding where several keys are looked up in a table, whose squares FBGEMM adds in another order. On a CPU
FBGEMM takes up to four times as long: it sorts the ids of every table by itself.

B examples, K lookups, P bags (B · K), D width, N ids of a batch, R rows, V tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.table import HasIds, Lookup, Table, Tables
from exfm.features.jagged import offsets_of
from exfm.kernels.tables import find_first, learn_by_element, learn_by_row, sum_rows_of_bags

LINE = 16  # numbers in a line of the cache


class FusedTables(Tables):
    """These tables, of weight 0. `lr`: the rate of the next step. Without `optimizer` they are looked up only.

    >>> tables = FusedTables([Table("ad", 10, 4, ("ad",)), Table("user", 20, 4, ("user",))], lr=0.1, eps=1e-8)
    >>> ids = KeyedJaggedTensor(["ad", "user"], torch.tensor([3, 5]), lengths=torch.tensor([1, 1]))
    >>> lookup = tables.lookup(tables.rows(ids))
    >>> tables.learn(lookup, torch.ones(1, 8))
    >>> tables.tensors()["user/accumulator"].nonzero().tolist()
    [[5]]
    """

    notes_read_rows = True

    def __init__(
        self, tables: Sequence[Table], *, lr: float, eps: float, optimizer: SparseOptimizer | None = "row_wise_adagrad"
    ) -> None:
        self.tables, self.lr, self.eps = tuple(tables), lr, eps
        self._widths = [table.width for table in tables for _ in table.keys]
        self._of_width = tuple(
            _TablesOfWidth([table for table in tables if table.width == D], self._keys_of(D), optimizer)
            for D in sorted(set(self._widths))
        )
        held: dict[str, Tensor] = {}
        for of_width in self._of_width:
            held |= {f"{name}/weight": w for name, w in of_width.by_name(of_width.weight).items()}
            if optimizer is not None:
                held |= {f"{name}/accumulator": m for name, m in of_width.by_name(of_width.m).items()}
        names = [f"{table.name}/{of}" for of in ("weight", "accumulator") for table in tables]
        self._held = {name: held[name] for name in names if name in held}
        self._key: Hashable = (  # all that row indices depend on besides the batch: not on widths, if each has its own
            tuple((table.rows, table.keys) for table in tables),
            tuple(of_width.keys for of_width in self._of_width),
        )

    def tensors(self) -> dict[str, Tensor]:
        return self._held

    def send(self, batch: HasIds) -> tuple[RowIndices, ...]:
        """Row indices of a batch, by width; computed once for all tables of as many rows."""
        return batch.once(("row indices", self._key), lambda: self.rows(batch.sparse))

    def rows(self, sparse: KeyedJaggedTensor) -> tuple[RowIndices, ...]:
        ids, offsets, B = sparse.values().numpy(), offsets_of(sparse), sparse.stride()
        lengths_KB = np.diff(offsets).reshape(len(self._widths), B)
        return tuple(of_width.indices(ids, offsets, lengths_KB) for of_width in self._of_width)

    def lookup(self, sent: tuple[RowIndices, ...]) -> Lookup:
        """No gradient goes through what was looked up."""
        pooled = [of_width.look_up(at) for of_width, at in zip(self._of_width, sent, strict=True)]
        if len(pooled) == 1:
            return Lookup(pooled[0].flatten(1), sent)
        parts: dict[int, Tensor] = {}
        for of_width, of_keys in zip(self._of_width, pooled, strict=True):
            parts |= dict(zip(of_width.keys, of_keys.unbind(1), strict=True))
        return Lookup(torch.cat([parts[k] for k in sorted(parts)], dim=1), sent)

    def looked(self, sent: tuple[RowIndices, ...]) -> Lookup:
        return Lookup(torch.empty(0), sent)

    def learn(self, lookup: Lookup, gradient: Tensor, *, decides: bool = True) -> None:
        parts = None if len(self._of_width) == 1 else gradient.split(self._widths, dim=1)
        for of_width, at in zip(self._of_width, lookup.indices, strict=True):
            if self.clock:
                of_width.learned_at[at.rows] = self.clock
            own = gradient if parts is None else torch.cat([parts[k] for k in of_width.keys], dim=1)
            of_width.learn(at, own, self.lr, self.eps)

    def changed(self, since: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for of_width in self._of_width:
            found |= of_width.by_name(torch.from_numpy(of_width.learned_at))
        return {name: (at >= since).nonzero().flatten() for name, at in found.items()}

    def note(self, name: str, rows: Tensor) -> None:
        for of_width in self._of_width:
            if (at := of_width.by_name(torch.from_numpy(of_width.learned_at)).get(name)) is not None:
                at[rows] = self.clock

    def all_changed(self) -> None:
        for of_width in self._of_width:
            of_width.learned_at[:] = self.clock

    def _keys_of(self, D: int) -> list[int]:
        return [k for k, width in enumerate(self._widths) if width == D]


@dataclass(frozen=True, eq=False)
class RowIndices:
    """Rows of the ids of a batch in tables of one width. All tables of the same sizes share it."""

    rows: np.ndarray  # (N,) int64, in all tables together, key by key
    bags: np.ndarray  # (N,) int32, b · K + k
    one_each: bool  # every bag holds one id
    B: int

    @cached_property
    def first(self) -> np.ndarray:
        """(N,) int32, the first id that has the same row."""
        first = np.empty(len(self.rows), np.int32)
        find_first(self.rows, first)
        return first


class _TablesOfWidth:
    """Tables of one width, one after the other; `keys` are the numbers of the lookups in them."""

    def __init__(self, tables: Sequence[Table], keys: Sequence[int], optimizer: SparseOptimizer | None) -> None:
        self.keys = tuple(keys)
        self._rows = {table.name: table.rows for table in tables}
        rows, self.D = sum(self._rows.values()), tables[0].width
        self.weight = _zeros(rows, self.D)
        self.learned_at = np.zeros(rows, np.int32)  # the tables' clock when the row was learned last
        self.m = _zeros(rows, self.D) if optimizer == "adagrad" else _zeros(rows)
        rows_V, keys_V = np.array([(table.rows, len(table.keys)) for table in tables], np.int64).T
        self._first_rows_K = np.repeat(np.cumsum(rows_V) - rows_V, keys_V)

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
        return RowIndices(rows, bags, one_each, B)

    def look_up(self, at: RowIndices) -> Tensor:
        """(B, K, D)."""
        pooled = (torch.empty if at.one_each else torch.zeros)(at.B, len(self.keys), self.D)
        sum_rows_of_bags(at.rows, at.bags, self.weight.numpy(), pooled.numpy().reshape(-1, self.D))
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
