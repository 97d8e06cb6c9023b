"""Features that are alike, made in one pass: what `bags_of` and `dense_of` make of each alone, the same to the bit.

A small batch costs the calls of numpy and Arrow, some of them for each feature, more than what they compute. So columns
that are plain (whole numbers, floats or texts, one in every row) are taken as one array for each type, and features
that differ in numbers only are one operation on it. What is left, lists, times, buckets and columns with nulls, is made
feature by feature.

B rows, K keys, W floats of dense features, S of them with statistics that are learned; n features of a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.features.dense import DenseFeature, on_its_scale
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.kernels.columns import ArrowAddresses, ColumnAddresses
from exfm.kernels.hashing import Hashes
from exfm.kernels.loops import integer_at, loop, single_at
from exfm.kernels.siphash import hash_texts

INTEGER, FLOAT, TEXT = pa.int64(), pa.float32(), pa.string()
MOST_PLANS = 64
"""So many sets of columns that held a null are remembered."""


class RemainingFeatures(NamedTuple):
    """The features that are still to be made, by their places among the sparse and the dense ones."""

    sparse: Sequence[int]
    dense: Sequence[int]


class Alike:
    """Writes what it can of a batch.

    >>> features = FeatureSet(
    ...     sparse=[SparseFeature(name="ad", rows=9, transform="index"), SparseFeature(name="user", rows=7)])
    >>> ids, nothing = np.zeros((2, 2), np.int64), np.zeros((2, 0))
    >>> rows = pa.record_batch({"ad": [3, 8], "user": pa.array([5, None])})
    >>> Alike(features)(rows, ids, nothing, nothing), ids.tolist()
    (RemainingFeatures(sparse=[1], dense=[]), [[3, 8], [0, 0]])
    """

    def __init__(self, features: FeatureSet) -> None:
        self._features = features
        self._plans: tuple[pa.Schema | None, dict[frozenset[str], _Plan]] = None, {}

    def __call__(
        self, rows: pa.RecordBatch | pa.Table, ids_KB: np.ndarray, dense_BW: np.ndarray, raw_BS: np.ndarray
    ) -> RemainingFeatures:
        """The rows of plain features' tables, their floats (float32), and raw values (float64) of those with learned
        statistics."""
        batch = self._in_one_piece(rows)
        if batch is None:
            return RemainingFeatures(range(len(self._features.sparse)), range(len(self._features.dense)))
        plan = self._plan(batch.schema, frozenset())
        try:
            return plan.write(batch, ids_KB, dense_BW, raw_BS)
        except _Null:
            with_nulls = frozenset(name for name in plan.columns if batch.column(name).null_count)
            return self._plan(batch.schema, with_nulls).write(batch, ids_KB, dense_BW, raw_BS)

    def _in_one_piece(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | None:
        """Join the chunks; None if there are no rows."""
        if isinstance(rows, pa.RecordBatch):
            return rows if len(rows) else None
        batches = rows.to_batches()
        if len(batches) > 1:
            batches = rows.select(self._features.needs_columns()).combine_chunks().to_batches()
        return batches[0] if len(batches) == 1 else None

    def _plan(self, schema: pa.Schema, with_nulls: frozenset[str]) -> _Plan:
        of, plans = self._plans
        if of is None or not schema.equals(of) or len(plans) > MOST_PLANS:
            plans = {}
            self._plans = schema, plans
        if with_nulls not in plans:
            plans[with_nulls] = _Plan(self._features, schema, with_nulls)
        return plans[with_nulls]


class _Null(Exception):
    """A column that was thought plain has a null."""


class _Plan:
    """Plan of a batch schema: its plain columns, and their groups."""

    def __init__(self, features: FeatureSet, schema: pa.Schema, with_nulls: frozenset[str]) -> None:
        names = schema.names
        kinds = {name: kind for name, kind in zip(names, schema.types, strict=True)
                 if kind in (INTEGER, FLOAT, TEXT) and name not in with_nulls and names.count(name) == 1}  # fmt: skip

        def of(name: str) -> pa.DataType | None:
            return kinds.get(name)

        sparse = list(enumerate(features.sparse))
        hashed = [(k, f) for k, f in sparse if f.transform == "hash"
                  and all(of(name) in (INTEGER, TEXT) for name in f.reads)]  # fmt: skip
        indexes = [(k, f) for k, f in sparse if f.transform == "index" and of(f.reads[0]) == INTEGER]
        dense = [(d, f) for d, f in enumerate(features.dense)
                 if not f.of_time and f.length is None and of(f.reads[0]) in (INTEGER, FLOAT)]  # fmt: skip
        read = _once(name for _, f in hashed for name in f.reads)
        whole, texts = ([name for name in read if of(name) == kind] for kind in (INTEGER, TEXT))
        others = [f.reads[0] for _, f in indexes] + [f.reads[0] for _, f in dense if of(f.reads[0]) == INTEGER]
        integers = _once([*whole, *others])
        floats = _once(f.reads[0] for _, f in dense if of(f.reads[0]) == FLOAT)
        self.columns = (*integers, *floats, *texts)
        self._places = ColumnAddresses([schema.get_field_index(name) for name in self.columns], schema)
        self._hashes = _Hashed(len(texts), len(whole), [*whole, *texts], hashed)
        self._indexes = _Indexes(indexes, integers)
        self._dense = _Floats(features, dense, [*integers, *floats], len(integers))
        made = {k for k, _ in (*hashed, *indexes)}
        self._left = RemainingFeatures(
            [k for k, _ in sparse if k not in made],
            [d for d, f in enumerate(features.dense) if (d, f) not in dense],
        )
        self._with_indexes = RemainingFeatures(
            [k for k, f in sparse if k not in made or f.transform == "index"], self._left.dense
        )

    def write(
        self, batch: pa.RecordBatch, ids_KB: np.ndarray, dense_BW: np.ndarray, raw_BS: np.ndarray
    ) -> RemainingFeatures:
        """Raises _Null."""
        places = self._places(batch)
        if places is None:
            raise _Null
        self._dense(places.values, dense_BW, raw_BS)
        self._hashes(places, ids_KB)
        return self._left if self._indexes(places.values, ids_KB) else self._with_indexes


class _Hashed:
    """Hashed features of columns and of crosses."""

    def __init__(
        self, texts: int, integers: int, columns: list[str], features: list[tuple[int, SparseFeature]]
    ) -> None:
        """`columns`: those that are hashed, `integers` of them first; the `texts` are the last of all columns."""
        self._texts, self._integers = texts, integers
        reads = [[columns.index(name) for name in f.reads] for _, f in features]
        self._hashes = Hashes(reads, [f.rows for _, f in features], [k for k, _ in features])

    def __call__(self, places: ArrowAddresses, ids_KB: np.ndarray) -> None:
        hashes_XB = np.empty((self._texts, ids_KB.shape[1]), np.uint64)
        first = len(places.values) - self._texts
        for x in range(self._texts):
            hash_texts(places.values[first + x], places.texts[first + x], False, hashes_XB[x])
        self._hashes(places.values[: self._integers], hashes_XB, ids_KB)


class _Indexes:
    """Ids that are rows of their tables as they are."""

    def __init__(self, features: list[tuple[int, SparseFeature]], integers: list[str]) -> None:
        self._at_n = np.array([integers.index(f.reads[0]) for _, f in features], np.int64)
        self._rows_n = np.array([f.rows for _, f in features], np.int64)
        self._keys_n = np.array([k for k, _ in features], np.int64)

    def __call__(self, places_C: np.ndarray, ids_KB: np.ndarray) -> bool:
        """Fill the ids; True if all lie in their tables."""
        return not len(self._at_n) or bool(_take(places_C[self._at_n], self._rows_n, self._keys_n, ids_KB))


class _Floats:
    """Dense features: those that take no step but a mean and a deviation in one loop, of the others those together
    that take the same steps."""

    def __init__(
        self, of: FeatureSet, features: list[tuple[int, DenseFeature]], columns: list[str], integers: int
    ) -> None:
        """`columns`: of numbers, `integers` of them first."""
        direct = [(d, f) for d, f in features if _is_direct(f)]
        self._direct = _Reads([f.reads[0] for _, f in direct], columns, integers)
        self._at_n = np.array([of.dense_slices[d].start for d, _ in direct], np.int64)
        self._mean_n, self._std_n = np.array([f.mean for _, f in direct]), np.array([f.std for _, f in direct])
        ordered = sorted((each for each in features if not _is_direct(each[1])), key=lambda feature: _steps(feature[1]))
        self._others = _Reads([f.reads[0] for _, f in ordered], columns, integers)
        self._groups = []
        for steps in _once(_steps(f) for _, f in ordered):
            group = [n for n, (_, f) in enumerate(ordered) if _steps(f) == steps]
            self._groups.append(_Group(of, [ordered[n] for n in group], slice(group[0], group[-1] + 1)))

    def __call__(self, places_C: np.ndarray, dense_BW: np.ndarray, raw_BS: np.ndarray) -> None:
        if len(self._at_n):
            _write_direct(*self._direct.of(places_C), self._at_n, self._mean_n, self._std_n, dense_BW)
        if not self._groups:
            return
        x_nB = np.empty((len(self._others.at_n), len(dense_BW)))
        _read_doubles(*self._others.of(places_C), x_nB)
        for group in self._groups:
            made = group(x_nB[group.within])
            if group.online:
                raw_BS[:, group.at] = made.T
            else:
                dense_BW[:, group.at] = made.T


class _Reads:
    """The column of each of n features."""

    def __init__(self, names: list[str], columns: list[str], integers: int) -> None:
        self.at_n = np.array([columns.index(name) for name in names], np.int64)
        self._whole_n = self.at_n < integers

    def of(self, places_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of the values, and whether they are whole numbers."""
        return places_C[self.at_n], self._whole_n


class _Group:
    def __init__(self, of: FeatureSet, features: list[tuple[int, DenseFeature]], within: slice) -> None:
        each = [f for _, f in features]
        self.within, self.online = within, each[0].online
        self.at = _places([of.online.index(f) if f.online else of.dense_slices[d].start for d, f in features])
        self._transform = each[0].transform
        self._clip, self._sigmas = each[0].clip, each[0].sigmas
        self._mean_n1 = np.array([[f.mean] for f in each])
        self._std_n1 = np.array([[f.std] for f in each])

    def __call__(self, x_nB: np.ndarray) -> np.ndarray:
        """As `dense_of`."""
        x = x_nB if self._clip is None else np.clip(x_nB, *self._clip)
        x = on_its_scale(self._transform, x)
        if self._transform != "standardise" or self.online:
            return x
        x = (x - self._mean_n1) / self._std_n1
        return x if self._sigmas is None else np.clip(x, -self._sigmas, self._sigmas)


def _is_direct(feature: DenseFeature) -> bool:
    plain = feature.clip is None and feature.sigmas is None and not feature.online
    return plain and feature.transform in ("identity", "standardise")


def _steps(feature: DenseFeature) -> str:
    """Features that have this in common differ in nothing but mean and standard deviation. Bounds are among it: numpy
    clips -0 to 0 by an array of bounds, and not by one number."""
    return repr((feature.transform, feature.online, feature.clip, feature.sigmas))


def _places(places: list[int]) -> np.ndarray | slice:
    """A slice where they follow one another: what it takes is not copied."""
    first = places[0] if places else 0
    following = slice(first, first + len(places))
    return following if places == list(range(following.start, following.stop)) else np.array(places)


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


TOGETHER = 64
"""Rows whose floats are written column by column, and stay in the nearest cache meanwhile."""


@loop("void(i8[::1], b1[::1], i8[::1], f8[::1], f8[::1], f4[:, ::1])")
def _write_direct(places_n, whole_n, at_n, mean_n, std_n, dense_BW):
    B = len(dense_BW)
    for start in range(0, B, TOGETHER):
        stop = min(start + TOGETHER, B)
        for n in range(len(places_n)):
            place, at, mean, std = places_n[n], at_n[n], mean_n[n], std_n[n]
            if whole_n[n]:
                for b in range(start, stop):
                    dense_BW[b, at] = (np.float64(integer_at(place, b)) - mean) / std
            elif mean == 0 and std == 1:
                for b in range(start, stop):
                    dense_BW[b, at] = single_at(place, b)
            else:
                for b in range(start, stop):
                    dense_BW[b, at] = (np.float64(single_at(place, b)) - mean) / std


@loop("void(i8[::1], b1[::1], f8[:, ::1])")
def _read_doubles(places_n, whole_n, x_nB):
    for n in range(len(places_n)):
        x_B, place = x_nB[n], places_n[n]
        if whole_n[n]:
            for b in range(len(x_B)):
                x_B[b] = integer_at(place, b)
        else:
            for b in range(len(x_B)):
                x_B[b] = single_at(place, b)


@loop("b1(i8[::1], i8[::1], i8[::1], i8[:, ::1])")
def _take(places_n, rows_n, keys_n, ids_KB):
    outside = 0
    for n in range(len(places_n)):
        place, rows, ids_B = places_n[n], rows_n[n], ids_KB[keys_n[n]]
        for b in range(len(ids_B)):
            row = integer_at(place, b)
            ids_B[b] = row
            outside += row < 0 or row >= rows
    return outside == 0
