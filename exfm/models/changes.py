"""The delta of a served student: tensors that its batches changed, row by row the large ones.

A row of a table, or of a history, changes only in a step on a batch that has its id. So the ids are enough, and a step
costs a reference to its batch; once there are many ids, each row is kept once. Rows that a batch has and a step left
out are named too: copied again, they are what they were. The linear part marks its own slots while it learns.

K rows of a tensor that are named.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import ComposedTables
from exfm.features.features import FeatureSet
from exfm.features.histories.history import BY_ID
from exfm.models.student import Student
from exfm.models.student_wide import LINEAR
from exfm.snapshots.delta import ChangedRows, Delta
from exfm.snapshots.marks import take_marked

THETA = "wide.theta"

SPARSE = 64
"""Tables of more rows than this times the ids are not looked through for the marked ones: the ids are sorted."""

MOST_COUNTED = 2**40
"""Ids of a feature from which on they are not noted: its table follows its own rows (exfm/embeddings/composed.py)."""

MOST_IDS = 2**22
"""Ids of batches that are kept as they came."""


class Touched:
    """Ids of a student's batches since the last call, by feature; for the linear part slots since the first call.

    >>> from exfm.features.sparse import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=9000)])
    >>> touched = Touched(features)
    >>> ids, lengths = torch.tensor([3, 1, 3, 8, 8, 2]), torch.ones(6, dtype=torch.int64)
    >>> touched.note(KeyedJaggedTensor(keys=["ad", "user"], values=ids, lengths=lengths))
    >>> {feature: ids.tolist() for feature, ids in touched.take().items()}
    {'ad': [1, 3], 'user': [2, 8]}
    >>> touched.take()
    {}
    """

    def __init__(self, features: FeatureSet) -> None:
        sizes = {feature.name: min(feature.rows, MOST_COUNTED) for feature in features.sparse}
        sizes |= {feature.name: min(feature.rows, MOST_COUNTED) for feature in features.sequence}
        ends = np.cumsum([0, *sizes.values()]).tolist()
        self._features = dict(zip(sizes, pairwise(ends), strict=True))  # bounds of ids that are counted through
        self._most: int = ends[-1]
        of_key = {feature.name: feature.name for feature in features.sparse}
        of_key |= {key: feature.name for feature in features.sequence for key in feature.keys}
        self._first = {key: self._features[f][0] for key, f in of_key.items() if sizes[f] < MOST_COUNTED}
        self._rows = np.zeros(0, np.int64)  # distinct, of batches before those that are noted
        self._noted: list[KeyedJaggedTensor] = []
        self._ids = 0  # of the noted
        self._slots: np.ndarray | None = None  # (SLOTS,) bool, of the linear part

    def note(self, sparse: KeyedJaggedTensor) -> None:
        """Record a batch that was learned. Its ids are kept until they are taken, or until there are `MOST_IDS`."""
        self._noted.append(sparse)
        self._ids += sparse.values().numel()
        if self._ids >= MOST_IDS:
            self._fold()

    def note_ids(self, feature: str, ids: Tensor) -> None:
        """Record ids (I,) of a feature that changed in another way."""
        first, end = self._features[feature]
        if end - first < MOST_COUNTED:
            self._rows = np.union1d(self._rows, ids.numpy() + first)

    def take(self) -> dict[str, Tensor]:
        """Distinct ids (K,) of the batches recorded since the last call, ascending, of each feature that has some."""
        self._fold()
        counted, self._rows = self._rows, np.zeros(0, np.int64)
        ids = {}
        for feature, bounds in self._features.items():
            first, end = np.searchsorted(counted, bounds)
            if first < end:
                ids[feature] = torch.from_numpy(counted[first:end] - bounds[0])
        return ids

    def _fold(self) -> None:
        """Keep each row once instead of the batches."""
        rows = [self._rows, *map(self._rows_of, self._noted)]
        self._rows = _distinct(np.concatenate(rows), self._most)
        self._noted, self._ids = [], 0

    def _rows_of(self, sparse: KeyedJaggedTensor) -> np.ndarray:
        """(I,): a batch's ids, counted through all features."""
        keys = sparse.keys()
        if len(self._first) < len(keys):
            counted = [sparse[key].values().numpy() + first for key, first in self._first.items()]
            return np.concatenate([np.zeros(0, np.int64), *counted])
        firsts = np.array([self._first[key] for key in keys])
        per_bag = firsts.repeat(sparse.stride())
        ids = sparse.values().numpy()
        return ids + (per_bag if len(ids) == len(per_bag) else per_bag.repeat(sparse.lengths().numpy()))

    def take_slots(self, student: Student) -> np.ndarray:
        """Slots of the linear part (K,) int64 that were learned since the last call, ascending; none the first time."""
        assert student.wide is not None
        if self._slots is None:
            self._slots = student.wide.marked()
        return take_marked(self._slots)


def changes_of(student: Student, touched: Touched) -> Delta:
    """Copies of the rows touched since the last call, and of the small tensors."""
    ids, rows = touched.take(), {}
    indices = ids | student.net.tables.touched(ids)
    for name, (by, tensor) in by_row(student).items():
        if (at := indices.get(by)) is not None:
            rows[name] = ChangedRows(0, at, tensor.index_select(0, at))
    if student.wide is not None and len(slots := touched.take_slots(student)):
        rows[LINEAR] = ChangedRows(1, torch.from_numpy(slots), student.wide.weights(slots))
    return Delta(rows, {name: tensor.clone() for name, tensor in small(student).items()})


def all_of(student: Student, touched: Touched) -> dict[str, Tensor]:
    """A copy of everything that is served of a student, by the same names. What was touched until now is in it."""
    student.net.tables.touched(touched.take())
    tensors = {name: tensor.clone() for name, (_, tensor) in by_row(student).items()}
    tensors |= {name: tensor.clone() for name, tensor in small(student).items()}
    if student.wide is not None:
        touched.take_slots(student)
        tensors[LINEAR] = student.wide.weights()
    return tensors


def by_row(student: Student) -> dict[str, tuple[str, Tensor]]:
    """Large tensors but for the linear part: each with the feature whose ids, or the weights whose rows, index it."""
    tables = student.net.tables
    found = {
        f"tables.{tables.path(n)}": (n, held)
        for n, held in tables.tensors().items()
        if n.endswith("/weight") and isinstance(held, Tensor)
    }
    if isinstance(tables, ComposedTables):
        found |= {f"tables.{n}": (n, tensor) for n, tensor in tables.served_state(per_row=True).items()}
    by = [feature.by for feature in student.features.history if feature.of is not None]
    for n, feature in enumerate(by):
        each = student.histories.each[n]
        rows = {key: tensor for key, tensor in each.named_buffers() if key in BY_ID}
        found |= {f"histories.each.{n}.{key}": (feature, tensor) for key, tensor in rows.items()}
    return found


def small(student: Student) -> dict[str, Tensor]:
    """The tensors themselves; a step of the student may put another in the place of `THETA`."""
    found = dict(student.prior.state_dict(prefix="prior."))
    for part in ("units", "trunk", "serving"):
        found |= student.net.get_submodule(part).state_dict(prefix=f"{part}.")
    found |= student.statistics.state_dict(prefix="statistics.")
    if isinstance(student.net.tables, ComposedTables):
        found |= {f"tables.{name}": tensor for name, tensor in student.net.tables.served_state(per_row=False).items()}
    for n, each in enumerate(student.histories.each):
        shared = {key: tensor for key, tensor in each.named_buffers() if key not in BY_ID}
        found |= {f"histories.each.{n}.{key}": tensor for key, tensor in shared.items()}
    if student.wide is not None:
        found |= {THETA: student.wide.theta, "wide.linear.hashing.modulus": student.wide.tensors()["wide/modulus"]}
    return found


def _distinct(rows: np.ndarray, most: int) -> np.ndarray:
    if most > SPARSE * len(rows):
        return np.unique(rows)
    marks = np.zeros(-(-most // 8) * 8, bool)
    marks[rows] = True
    return take_marked(marks)
