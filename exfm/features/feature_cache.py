"""Cache of built features, shared by the students of a process and all their batches.

A row's hashed ids, its floats, labels and logits depend on the row alone. So they are made for a stretch of a hundred
thousand rows at a time, part by part (a feature, a label), when the first model asks for a part; a batch takes its rows
of them. Where a part cannot be made of the whole stretch, which may hold rows that a model never reads, it is made of
the batch's own.

N rows of a stretch, B rows of a batch, T tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import numpy as np
import pyarrow as pa

from exfm.features.dense import DenseFeature
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.features.transforms import Bags, bags_of, dense_of, places_of

Part = TypeVar("Part")


class Parts:
    """Cached features of one table's `rows`.

    >>> from exfm.features.features import SparseFeature
    >>> parts = Parts(pa.table({"ad": [3, 7, 3]}))
    >>> parts.bags(SparseFeature(name="ad", rows=5, transform="bucketize", boundaries=(1, 4, 6, 9)))[0].values.tolist()
    [1, 3, 1]
    """

    def __init__(self, rows: pa.RecordBatch | pa.Table) -> None:
        self.rows = rows
        self._schema = rows.schema
        self._made: dict[Hashable, object] = {}

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def has(self, column: str) -> bool:
        return bool(self._schema.get_all_field_indices(column))

    def column(self, name: str) -> pa.Array:
        return self.of(("column", name), lambda: _array(self.rows, name))

    def numbers(self, name: str) -> np.ndarray:
        """A column without nulls as a numpy array, (N,)."""
        return self.of(("numbers", name), lambda: np.asarray(self.column(name).to_numpy(zero_copy_only=False)))

    def known(self, name: str) -> np.ndarray:
        """Mask (N,) bool of rows in which a column has a value."""
        return self.of(("known", name), lambda: _known(self.column(name)))

    def filled(self, name: str) -> np.ndarray:
        """A column, (N,), with 0 for null."""
        return self.of(("filled", name), lambda: _filled(self.column(name)))

    def bags(self, feature: SparseFeature | SequenceFeature) -> list[Bags]:
        """Bags of a sparse feature, or of every position of a sequence. (N bags each)"""
        if isinstance(feature, SequenceFeature):
            return self.of(feature, lambda: places_of(feature, self._columns(feature)))
        return self.of(feature, lambda: [bags_of(feature, self._columns(feature))])

    def dense(self, feature: DenseFeature) -> np.ndarray:
        """(N, inputs) float32; of one with statistics (N, 1) float64."""
        return self.of(feature, lambda: dense_of(feature, self._columns(feature)))

    def _columns(self, feature: SparseFeature | DenseFeature | SequenceFeature) -> dict[str, pa.Array]:
        return {name: self.column(name) for name in feature.reads}

    def of(self, key: Hashable, make: Callable[[], Part]) -> Part:
        """A cached value, made on first use. What `make` raised is raised again."""
        if key not in self._made:
            try:
                self._made[key] = make()
            except Exception as error:
                self._made[key] = _Failed(error.with_traceback(None))
                raise
        found = self._made[key]
        if isinstance(found, _Failed):
            raise found.error.with_traceback(None)  # each time anew: it would keep the rows of all that asked
        return found  # type: ignore[return-value]


class Taken:
    """View of the cached rows at indices `at` (B,); None selects all."""

    def __init__(self, parts: Parts, at: np.ndarray | None = None) -> None:
        self.parts, self.at = parts, at

    def __call__(self, part_N: np.ndarray) -> np.ndarray:
        """(N,) -> (B,)"""
        return part_N if self.at is None else part_N[self.at]

    def column(self, name: str) -> pa.Array:
        whole = self.parts.column(name)
        return whole if self.at is None else whole.take(pa.array(self.at))

    def bags(self, feature: SparseFeature | SequenceFeature) -> list[Bags]:
        """B bags for each key."""
        whole = self.parts.bags(feature)
        return whole if self.at is None else [self._taken(feature, n, bags) for n, bags in enumerate(whole)]

    def _taken(self, feature: SparseFeature | SequenceFeature, n: int, bags: Bags) -> Bags:
        assert self.at is not None
        if bags.lengths is None:
            return Bags(bags.values[self.at], None)
        lengths_N = bags.lengths
        first_N = self.parts.of((feature, n), lambda: np.cumsum(lengths_N) - lengths_N)
        lengths = lengths_N[self.at]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Bags(bags.values[np.repeat(first_N[self.at], lengths) + within], lengths)


class FeatureCache:
    """The cached tables of the process. `tables`: their rows, each in order of `lake_seq`, as long as they are there.

    >>> table = pa.table({"lake_seq": [4, 6, 7, 9], "ad": [1, 2, 3, 4]})
    >>> stretches = FeatureCache(lambda: [table])
    >>> stretches.taken(table.slice(1, 2)).at, stretches.taken(pa.table({"lake_seq": [7, 8]}))
    (array([1, 2]), None)
    """

    def __init__(self, tables: Callable[[], Iterable[pa.Table]]) -> None:
        self._tables = tables
        self._parts: dict[int, Parts] = {}
        self.lock = threading.RLock()
        """To be held while parts are made and taken: students may read in threads of their own."""

    def taken(self, rows: pa.RecordBatch | pa.Table, columns: Iterable[str] = ()) -> Taken | None:
        """View of a cached table that holds all these rows and these `columns`; None if no table does."""
        if "lake_seq" not in rows.schema.names or not rows.num_rows:
            return None
        self._look()
        seq = _array(rows, "lake_seq").to_numpy()
        for parts in self._parts.values():
            there = parts.numbers("lake_seq")
            if len(there) and there[0] <= seq[0] and seq[-1] <= there[-1]:
                at = np.searchsorted(there, seq)
                if np.array_equal(there[at], seq) and all(map(parts.has, columns)):
                    return Taken(parts, at)
        return None

    def _look(self) -> None:
        now = {id(table): table for table in self._tables()}
        if now.keys() != self._parts.keys():  # a table lives as long as its parts: no other has its id
            self._parts = {key: self._parts.get(key) or Parts(table) for key, table in now.items()}


class _Failed:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _known(column: pa.Array) -> np.ndarray:
    if not column.null_count:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _filled(column: pa.Array) -> np.ndarray:
    whole = column.fill_null(0) if column.null_count else column
    return np.asarray(whole.to_numpy(zero_copy_only=False))


def _array(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """A column in one piece, not copied where it already is."""
    column = rows.column(name)
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
