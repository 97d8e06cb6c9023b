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

from exfm.data.dense import DenseFeature
from exfm.data.features import FeatureSet
from exfm.data.sparse import SparseFeature
from exfm.data.transforms import hash64
from exfm.hashing import Hashes

INTEGER, FLOAT, TEXT = pa.int64(), pa.float32(), pa.string()
MOST_PLANS = 64
"""So many sets of columns that held a null are remembered."""


class Left(NamedTuple):
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
    (Left(sparse=[1], dense=[]), [[3, 8], [0, 0]])
    """

    def __init__(self, features: FeatureSet) -> None:
        self._features = features
        self._plans: tuple[pa.Schema | None, dict[frozenset[str], _Plan]] = None, {}

    def __call__(
        self, rows: pa.RecordBatch | pa.Table, ids_KB: np.ndarray, dense_BW: np.ndarray, raw_BS: np.ndarray
    ) -> Left:
        """The rows of plain features' tables, their floats (float32), and raw values (float64) of those with learned
        statistics."""
        batch = self._in_one_piece(rows)
        if batch is None:
            return Left(range(len(self._features.sparse)), range(len(self._features.dense)))
        plan = self._plan(batch.schema, frozenset())
        try:
            return plan.write(batch, ids_KB, dense_BW, raw_BS)
        except _Null:
            with_nulls = frozenset(name for name in plan.columns if batch.column(name).null_count)
            return self._plan(batch.schema, with_nulls).write(batch, ids_KB, dense_BW, raw_BS)

    def _in_one_piece(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | None:
        """None where there are no rows."""
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
    """What is plain in batches of one schema, and how it is grouped."""

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
        self._integers, self._floats = _Block(schema, integers), _Block(schema, floats)
        self._hashes = _Hashed([names.index(text) for text in texts], len(whole), [*whole, *texts], hashed)
        self._indexes = _Indexes(indexes, integers)
        self._dense = _Floats(features, dense, integers, floats)
        made = {k for k, _ in (*hashed, *indexes)}
        self._left = Left(
            [k for k, _ in sparse if k not in made],
            [d for d, f in enumerate(features.dense) if (d, f) not in dense],
        )
        self._with_indexes = Left([k for k, f in sparse if k not in made or f.transform == "index"], self._left.dense)

    def write(self, batch: pa.RecordBatch, ids_KB: np.ndarray, dense_BW: np.ndarray, raw_BS: np.ndarray) -> Left:
        """Raises _Null."""
        integers, floats = self._integers(batch), self._floats(batch)
        self._dense(integers, floats, dense_BW, raw_BS)
        self._hashes(batch, integers, ids_KB)
        return self._left if self._indexes(integers, ids_KB) else self._with_indexes


class _Block:
    """Columns of one type as one array, (columns, B)."""

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self._at = [schema.get_field_index(name) for name in names]

    def __call__(self, batch: pa.RecordBatch) -> np.ndarray:
        if not self._at:
            return np.empty((0, len(batch)))
        try:
            return np.asarray(batch.select(self._at).to_tensor(row_major=False).to_numpy().T)
        except pa.ArrowTypeError:  # there is no other reason: columns of one type of numbers
            raise _Null from None


class _Hashed:
    """Hashed features of columns and of crosses."""

    def __init__(
        self, texts: list[int], integers: int, columns: list[str], features: list[tuple[int, SparseFeature]]
    ) -> None:
        """`columns`: those that are hashed, `integers` of them first; `texts`: where the others are in a batch."""
        self._texts, self._integers = texts, integers
        reads = [[columns.index(name) for name in f.reads] for _, f in features]
        self._hashes = Hashes(reads, [f.rows for _, f in features], [k for k, _ in features])

    def __call__(self, batch: pa.RecordBatch, integers: np.ndarray, ids_KB: np.ndarray) -> None:
        hashes_XB = np.empty((len(self._texts), len(batch)), np.uint64)
        for x, place in enumerate(self._texts):
            text = batch.column(place)
            if text.null_count:
                raise _Null
            hashes_XB[x] = hash64(text)
        self._hashes(integers[: self._integers].view(np.uint64), hashes_XB, ids_KB)


class _Indexes:
    """Ids that are rows of their tables as they are."""

    def __init__(self, features: list[tuple[int, SparseFeature]], integers: list[str]) -> None:
        self._keys = _places([k for k, _ in features])
        self._at = _places([integers.index(f.reads[0]) for _, f in features])
        self._rows_n1 = np.array([[f.rows] for _, f in features], dtype=np.uint64)

    def __call__(self, integers: np.ndarray, ids_KB: np.ndarray) -> bool:
        """Whether all lie in their tables."""
        if not len(self._rows_n1):
            return True
        rows = integers[self._at]
        ids_KB[self._keys] = rows
        return not (rows.view(np.uint64) >= self._rows_n1).any()  # below 0 is the largest of these


class _Floats:
    """Dense features: those together that take the same steps."""

    def __init__(
        self, of: FeatureSet, features: list[tuple[int, DenseFeature]], integers: list[str], floats: list[str]
    ) -> None:
        ordered = sorted(features, key=lambda feature: _steps(feature[1]))
        reads = [f.reads[0] for _, f in ordered]
        self._count = len(ordered)
        self._sources = [
            (_places([n for n, name in enumerate(reads) if name in there]),
             _places([there.index(name) for name in reads if name in there]))
            for there in (integers, floats)
        ]  # fmt: skip
        """Of the columns of either type: their places among the features, and in their block."""
        self._groups = []
        for steps in _once(_steps(f) for _, f in ordered):
            group = [n for n, (_, f) in enumerate(ordered) if _steps(f) == steps]
            self._groups.append(_Group(of, [ordered[n] for n in group], slice(group[0], group[-1] + 1)))

    def __call__(self, integers: np.ndarray, floats: np.ndarray, dense_BW: np.ndarray, raw_BS: np.ndarray) -> None:
        if not self._count:
            return
        x_nB = np.empty((self._count, len(dense_BW)))
        for block, (to, at) in zip((integers, floats), self._sources, strict=True):
            x_nB[to] = block[at]
        for group in self._groups:
            made = group(x_nB[group.within])
            if group.online:
                raw_BS[:, group.at] = made.T
            else:
                dense_BW[:, group.at] = made.T


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
        if self._transform == "log1p":
            return np.sign(x) * np.log1p(np.abs(x))
        if self._transform != "standardise" or self.online:
            return x
        x = (x - self._mean_n1) / self._std_n1
        return x if self._sigmas is None else np.clip(x, -self._sigmas, self._sigmas)


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
