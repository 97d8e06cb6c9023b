"""A linear model of a row's ids and of pairs of them, hashed, learned by FTRL (exfm/baselines/ftrl.py).

    z_b = Σ_i w_i over the coordinates i of row b

A row has a coordinate that all rows share; one for every id of a sparse feature or sequence (its row in the feature's
table), one for the bucket of every dense feature, and one for every cross: a pair of values of two sparse features,
for all pairs of the CROSSED plain features with the largest tables. All are hashed into SLOTS; weights are per task.
Histories have no coordinate.

B examples, T tasks, C coordinates of a row, I those of all rows of a batch.
"""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.jagged import offsets_of
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.kernels.hashing import FIRST, GOLDEN, SECOND, mix
from exfm.kernels.loops import loop

SLOT_BITS = 18
SLOTS = 2**SLOT_BITS
CROSSED = 6
BUCKETS = 4.0  # of a dense feature, after its transform, in one unit
LARGEST_DENSE = 2.0**18  # what lies beyond is in the last bucket
UNBOUNDED = 2**62


class Coordinates(NamedTuple):
    """Hashed coordinates of a batch: `slots` (I,) int32, row by row; those of row b begin at `starts[b]`, (B + 1,)
    int64."""

    slots: np.ndarray
    starts: np.ndarray

    def sums(self, w_ST: np.ndarray) -> Tensor:
        """Sums of weights per row, (B, T), from the weights of all slots with the tasks side by side."""
        z_BT = np.empty((len(self.starts) - 1, w_ST.shape[1]), np.float32)
        _sum_slots(w_ST, self.slots, self.starts, z_BT)
        return torch.from_numpy(z_BT)


class Hashing(nn.Module):
    """Hashes the ids and dense values of a batch to coordinates.

    `modulus` is a part of the state: the rows that a hashed table began with. Where it has grown since, by a whole
    multiple, an id's place in it says its first place, and so its coordinates stay what they were.
    """

    modulus: Tensor  # (K,) int64

    def __init__(self, features: FeatureSet) -> None:
        super().__init__()
        tables: list[SparseFeature | SequenceFeature] = list(features.sparse)
        tables += [feature for feature in features.sequence for _ in feature.keys]
        rows = [feature.rows if feature.transform == "hash" else UNBOUNDED for feature in tables]
        self.register_buffer("modulus", torch.tensor(rows, dtype=torch.int64))
        self._tables = torch.tensor([_number(feature.name) for feature in tables], dtype=torch.int64)
        self._buckets = _Buckets(features)
        self._dense = torch.tensor([_number(f"dense/{label}") for label in self._buckets.labels], dtype=torch.int64)
        self.crosses = crosses_of(features)
        self._first, self._second = torch.tensor(self.crosses, dtype=torch.int64).view(-1, 2).unbind(1)
        numbers = (self._tables, self._dense, self._first, self._second)
        self._key = b"|".join(of.numpy().tobytes() for of in numbers)
        self._pairs = np.array(self.crosses, np.int64).reshape(-1, 2)
        self.count = len(self._tables) + len(self._dense) + len(self.crosses) + 1
        """Coordinates of a row that has one id of every feature."""

    def of(self, batch: Batch) -> Coordinates:
        """Coordinates of a batch, computed once for all models with the same hashing."""
        return batch.once(("coordinates", self.key), lambda: self(batch.sparse, batch.dense))

    @property
    def key(self) -> bytes:
        """Key of everything besides the batch that coordinates depend on."""
        return self._key + self.modulus.numpy().tobytes()

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor) -> Coordinates:
        """KeyedJaggedTensor of K keys × B, (B, D) -> coordinates. Dense columns beyond the features' are histories."""
        B, ids, offsets = len(dense), sparse.values().numpy(), offsets_of(sparse)
        slots = np.empty(len(ids) + B * (self.count - len(self._tables)), np.int32)
        starts = np.empty(B + 1, np.int64)
        values = self._buckets.values(dense).contiguous().numpy()
        of = (self.modulus.numpy(), self._tables.numpy(), self._pairs, self._dense.numpy())
        _hash_rows(ids, offsets, values, *of, slots, starts)
        return Coordinates(slots, starts)

    def slots_of(self, table: str, ids: Tensor) -> np.ndarray:
        """The slots (I,) of ids of a table, without crosses."""
        k = self._tables.tolist().index(number := _number(table))
        return _high_bits(_mixed(ids % self.modulus[k] + number), SLOT_BITS).numpy()

    def single(self, ids_KB: Tensor, dense: Tensor) -> Tensor:
        """The slots (C · B,) of rows that have one id of every key, by torch's operators: for code that is exported."""
        hashed = _mixed(ids_KB % self.modulus.unsqueeze(1) + self._tables.unsqueeze(1))
        crossed = hashed[self._first] * _PAIR + hashed[self._second]
        values = self._buckets.values(dense).T.nan_to_num().clamp(-LARGEST_DENSE, LARGEST_DENSE)
        buckets = _mixed((values * BUCKETS).floor().long() + self._dense.unsqueeze(1))
        shared = hashed.new_zeros(dense.shape[0])
        hashes = torch.cat([part.reshape(-1) for part in (hashed, crossed, buckets, shared)])
        return _high_bits(hashes, SLOT_BITS)


class _Buckets:
    """The number of every dense feature that is cut into buckets here. Of one that is in `quantiles` already it is
    their number, from 1 on; 0 where it is null. Lists of floats have none: what one value of them means is a matter
    of the others."""

    def __init__(self, features: FeatureSet) -> None:
        placed = zip(features.dense, features.dense_slices, strict=True)
        single_floats = [(feature, at) for feature, at in placed if feature.length is None]
        self._plain = features.dense_labels == tuple(feature.name for feature, _ in single_floats)
        self.labels, self._found = list[str](), list[tuple[slice, Tensor]]()
        for feature, at in single_floats:
            cut = feature.transform == "quantiles"
            numbers = torch.arange(1.0, feature.inputs + 1) / BUCKETS if cut else torch.ones(1)
            places = [at] if cut else [slice(n, n + 1) for n in range(at.start, at.stop)]
            self.labels += [feature.name] if cut else feature.labels
            self._found += [(place, numbers) for place in places]

    def values(self, dense: Tensor) -> Tensor:
        """(B, ≥ W) -> (B, features)"""
        if self._plain:
            return dense[:, : len(self.labels)]
        if not self._found:
            return dense[:, :0]
        return torch.stack(
            [dense[:, at.start] if len(numbers) == 1 else dense[:, at] @ numbers for at, numbers in self._found], dim=1
        )


class HashedLinear(nn.Module):
    """(KeyedJaggedTensor of K keys × B, (B, D)) -> (B, T), 0 before anything was learned.

    >>> from exfm.features.sparse import SparseFeature
    >>> linear = HashedLinear(FeatureSet(sparse=[SparseFeature(name="ad", rows=10)]), tasks=2)
    >>> linear.weight.shape
    torch.Size([2, 262144])
    """

    def __init__(self, features: FeatureSet, tasks: int) -> None:
        super().__init__()
        self.hashing = Hashing(features)
        self.weight = nn.Parameter(torch.zeros(tasks, SLOTS), requires_grad=False)

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        return self.at(self.hashing(sparse, dense))

    def at(self, at: Coordinates) -> Tensor:
        """(B, T), from the coordinates of B examples."""
        weight_TS = self.weight.detach().numpy()
        found_TB = np.empty((len(weight_TS), len(at.starts) - 1), np.float32)
        for w_S, z_B in zip(weight_TS, found_TB, strict=True):
            sum_rows(w_S, at.slots, at.starts, z_B)
        return torch.from_numpy(found_TB.T)

    def single(self, ids_KB: Tensor, dense: Tensor) -> Tensor:
        """(B, T) of rows that have one id of every key, B at least 1; B may be a symbol."""
        slots, shape = self.hashing.single(ids_KB, dense), (self.hashing.count, ids_KB.shape[1])
        return torch.stack([w.index_select(0, slots).view(shape).sum(0) for w in self.weight], dim=1)


def crosses_of(features: FeatureSet) -> tuple[tuple[int, int], ...]:
    """Pairs of sparse features to cross, by index: all pairs of the single-column features with the largest tables.

    >>> from exfm.features.sparse import SparseFeature
    >>> made = SparseFeature(name="user_x_ad", columns=["user", "ad"], rows=9000)
    >>> crosses_of(FeatureSet(sparse=[SparseFeature(name="user", rows=90), made, SparseFeature(name="ad", rows=20)]))
    ((0, 2),)
    """
    plain = [k for k, feature in enumerate(features.sparse) if len(feature.reads) == 1]
    largest = sorted(plain, key=lambda k: -features.sparse[k].rows)[:CROSSED]
    return tuple(combinations(sorted(largest), 2))


def _number(name: str) -> int:
    """The number of a feature, which its ids are added to: whatever features there are."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


# splitmix64, in int64: sums and products wrap around as those of unsigned numbers do.
_PAIR, _FIRST, _SECOND = (_signed(int(n)) for n in (GOLDEN, FIRST, SECOND))


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _high_bits(x, 34)) * _FIRST
    x = (x ^ _high_bits(x, 37)) * _SECOND
    return x ^ _high_bits(x, 33)


def _high_bits(x: Tensor, count: int) -> Tensor:
    """The highest bits, as numbers ≥ 0."""
    return (x >> (64 - count)) & (2**count - 1)


@loop("void(f4[::1], i4[::1], i8[::1], f4[::1])")
def sum_rows(w_S, places_I, starts, z_B):
    """z_b = Σ_i w of the places of row b."""
    for b in range(len(z_B)):
        z = np.float32(0)
        for i in range(starts[b], starts[b + 1]):
            z += w_S[places_I[i]]
        z_B[b] = z


@loop("void(f4[:, ::1], i4[::1], i8[::1], f4[:, ::1])")
def _sum_slots(w_ST, slots_I, starts, z_BT):
    """`sum_rows` of several tasks, whose weights of a slot lie next to each other."""
    for b in range(len(z_BT)):
        for t in range(z_BT.shape[1]):
            z = np.float32(0)
            for i in range(starts[b], starts[b + 1]):
                z += w_ST[slots_I[i], t]
            z_BT[b, t] = z


_SHIFT = np.uint64(64 - SLOT_BITS)


@loop("void(i8[::1], i8[::1], f4[:, ::1], i8[::1], i8[::1], i8[:, ::1], i8[::1], i4[::1], i8[::1])")
def _hash_rows(ids, offsets, values_BD, modulus_K, table_K, pairs_X2, dense_D, slots_I, starts):
    """The coordinates of every row: its ids, crosses of two bags by the sums of their ids' hashes, buckets, and the one
    that all rows share."""
    K, B, D = len(modulus_K), len(starts) - 1, values_BD.shape[1]
    bags_K = np.empty(K, np.uint64)
    most, i = np.float32(LARGEST_DENSE), 0
    for b in range(B):
        starts[b] = i
        for k in range(K):
            bags_K[k] = np.uint64(0)
            for n in range(offsets[k * B + b], offsets[k * B + b + 1]):
                id_ = ids[n]
                if not 0 <= id_ < modulus_K[k]:  # the table has grown: a division takes longer than all the rest
                    id_ %= modulus_K[k]
                hashed = mix(np.uint64(id_ + table_K[k]))
                bags_K[k] += hashed
                slots_I[i] = np.int32(hashed >> _SHIFT)
                i += 1
        for x in range(len(pairs_X2)):
            crossed = bags_K[pairs_X2[x, 0]] * GOLDEN + bags_K[pairs_X2[x, 1]]
            slots_I[i + x] = np.int32(crossed >> _SHIFT)
        i += len(pairs_X2)
        for d in range(D):
            value = values_BD[b, d]
            value = np.float32(0) if np.isnan(value) else min(max(value, -most), most)
            hashed = mix(np.uint64(np.int64(np.floor(value * np.float32(BUCKETS))) + dense_D[d]))
            slots_I[i + d] = np.int32(hashed >> _SHIFT)
        i += D
        slots_I[i] = 0
        i += 1
    starts[B] = i
