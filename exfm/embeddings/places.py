"""Where the ids of a batch are, in tables that lie one after the other.

B examples, K keys of these tables, V tables, N ids of a batch, those of keys of other tables included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from exfm.hashing import GOLDEN
from exfm.loops import inlined, loop

SLOTS_OF_AN_ID = 8
"""Of the hash table that repeated rows are found with: one id of sixteen finds another row in its slot."""


@dataclass(frozen=True, eq=False)
class Places:
    """All tables of the same rows share it. An id is in row `first_rows[k] + ids[n]` of all tables together."""

    ids: np.ndarray  # (N,) int64, key by key: the batch's own
    ends: np.ndarray  # (K, 2) int64, where the ids of a key begin and end
    first_rows: np.ndarray  # (K,) int64, where the table of a key begins
    tables: np.ndarray  # (V, 2) int64, where the ids of a table begin and end
    bags: np.ndarray  # (N,) int32, bag b · K + k of an id; (0,) where each bag has one, and each key a table of its own
    in_all_bags: bool  # there is an id

    @cached_property
    def following(self) -> np.ndarray:
        """(N,) int32, the ids of one row in order: of its first, the next, or 0 where there is none; of each other, ~
        the next, or ~0."""
        following = np.zeros(len(self.ids), np.int32)
        _follow(self.ids, self.tables, following)
        return following


class Keys:
    """K keys, by number, of V tables; `rows` (V,) and `keys` (V,): how many each table has."""

    def __init__(self, numbers: np.ndarray, rows: np.ndarray, keys: np.ndarray) -> None:
        self._numbers, self._count = numbers, keys
        self._first_rows = np.repeat(np.cumsum(rows) - rows, keys)
        self._alone = bool((keys == 1).all())

    def places(self, ids: np.ndarray, offsets: np.ndarray, B: int) -> Places:
        """`offsets`: where the bags of the batch begin, key by key."""
        ends, tables = np.empty((len(self._numbers), 2), np.int64), np.empty((len(self._count), 2), np.int64)
        one_each = _ends(offsets, self._numbers, self._count, B, ends, tables)
        if self._alone and one_each:
            return Places(ids, ends, self._first_rows, tables, np.empty(0, np.int32), in_all_bags=True)
        bags = np.empty(len(ids), np.int32)
        filled = _number(offsets, self._numbers, B, bags)
        return Places(ids, ends, self._first_rows, tables, bags, in_all_bags=filled == len(ends) * B)


@loop("b1(i8[::1], i8[::1], i8[::1], i8, i8[:, ::1], i8[:, ::1])")
def _ends(offsets, key_K, keys_V, B, ends_K2, tables_V2):
    """Returns whether all bags of the batch hold one id."""
    for k in range(len(key_K)):
        ends_K2[k, 0], ends_K2[k, 1] = offsets[key_K[k] * B], offsets[(key_K[k] + 1) * B]
    k = 0
    for v in range(len(keys_V)):  # keys of a table follow each other
        tables_V2[v, 0], tables_V2[v, 1] = ends_K2[k, 0], ends_K2[k + keys_V[v] - 1, 1]
        k += keys_V[v]
    one_each = True
    for n in range(len(offsets)):
        one_each &= offsets[n] == n
    return one_each


@loop("i8(i8[::1], i8[::1], i8, i4[::1])")
def _number(offsets, key_K, B, bags_N):
    """The bags of ids. Returns how many hold one."""
    K, filled = len(key_K), 0
    for k in range(K):
        for b in range(B):
            start, end = offsets[key_K[k] * B + b], offsets[key_K[k] * B + b + 1]
            filled += start < end
            for n in range(start, end):
                bags_N[n] = b * K + k
    return filled


@inlined
def _bits(ids):
    """Of a slot's number."""
    bits = 3
    while (1 << bits) < SLOTS_OF_AN_ID * ids:
        bits += 1
    return bits


@loop("void(i8[::1], i8[:, ::1], i4[::1])")
def _follow(ids, tables, following_N):
    """Table by table, so that what has been seen of it stays in the cache: in a hash table (Fibonacci
    hashing), the last place of an id."""
    most = 0
    for v in range(len(tables)):
        most = max(most, tables[v, 1] - tables[v, 0])
    last = np.empty(1 << _bits(most), np.int32)
    for v in range(len(tables)):
        bits = _bits(tables[v, 1] - tables[v, 0])
        shift, most = np.uint64(64 - bits), (1 << bits) - 1
        last[: most + 1] = -1
        for n in range(tables[v, 0], tables[v, 1]):
            slot = np.int64((np.uint64(ids[n]) * GOLDEN) >> shift)
            before = last[slot]
            while before >= 0 and ids[before] != ids[n]:
                slot = (slot + 1) & most
                before = last[slot]
            last[slot] = n
            if before >= 0:
                following_N[before] = n if following_N[before] == 0 else ~n
                following_N[n] = ~0
