"""What of a student its batches changed: of what is served of it, row by row where that is large.

A row of a table, or of a history, changes only in a step on a batch that has its id. So the ids are enough, and a step
costs a reference to its batch. Rows that a batch has and a step left out are named too: copied again, they are what
they were. The linear part marks its own slots while it learns.

K rows of a tensor that are named.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.data import FeatureSet
from exfm.models.student import Student

LINEAR = "wide.linear.weight"

SPARSE = 64
"""A table of more rows than this times the ids is not looked through for the marked ones: the ids are sorted."""


class Rows(NamedTuple):
    """Of a tensor the places `at` (K,) int64 along `dim` that changed, ascending, and their values now."""

    dim: int
    at: Tensor
    values: Tensor


class Changes(NamedTuple):
    """By the names of a `ServedStudent`'s state: rows of what is large, and all that is small."""

    rows: dict[str, Rows]
    whole: dict[str, Tensor]


class Touched:
    """Of a student, by table, since it was last asked; of the linear part, since it was first asked.

    >>> from exfm.data import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=10), SparseFeature(name="user", rows=9000)])
    >>> touched = Touched(features)
    >>> ids, lengths = torch.tensor([3, 1, 3, 8, 8, 2]), torch.ones(6, dtype=torch.int64)
    >>> touched.note(KeyedJaggedTensor(keys=["ad", "user"], values=ids, lengths=lengths))
    >>> {table: rows.tolist() for table, rows in touched.take().items()}
    {'ad': [1, 3], 'user': [2, 8]}
    >>> {table: rows.tolist() for table, rows in touched.take().items()}
    {'ad': [], 'user': []}
    """

    def __init__(self, features: FeatureSet) -> None:
        self._rows = {feature.name: feature.rows for feature in features.sparse}
        self._rows |= {feature.name: feature.rows for feature in features.sequence}
        self._tables = {feature.name: feature.name for feature in features.sparse}
        self._tables |= {key: feature.name for feature in features.sequence for key in feature.keys}
        self._noted: list[KeyedJaggedTensor] = []
        self._slots: np.ndarray | None = None  # (SLOTS,) bool, of the linear part

    def note(self, sparse: KeyedJaggedTensor) -> None:
        """A batch was learned. Its ids are kept until they are taken."""
        self._noted.append(sparse)

    def take(self) -> dict[str, Tensor]:
        """Rows (K,) int64 by table, each once and ascending, of the batches noted since the last call."""
        ids: dict[str, list[Tensor]] = {table: [] for table in self._rows}
        for sparse in self._noted:
            ends, values = sparse.offset_per_key(), sparse.values()
            for n, key in enumerate(sparse.keys()):
                ids[self._tables[key]].append(values[ends[n] : ends[n + 1]])
        self._noted = []
        return {table: _distinct(parts, self._rows[table]) for table, parts in ids.items()}

    def take_slots(self, student: Student) -> np.ndarray:
        """Slots of the linear part (K,) int64 that were learned since the last call, ascending; none the first time."""
        assert student.wide is not None
        if self._slots is None:
            self._slots = student.wide.marked()
        found = np.flatnonzero(self._slots)
        self._slots[found] = False
        return found


def changes_of(student: Student, touched: Touched) -> Changes:
    """Copies of the rows that were touched since they were last taken, and of what is small."""
    at = touched.take()
    rows = {
        name: Rows(0, at[table], tensor.index_select(0, at[table]))
        for name, (table, tensor) in _by_row(student).items()
        if len(at[table])
    }
    if student.wide is not None and len(slots := touched.take_slots(student)):
        rows[LINEAR] = Rows(1, torch.from_numpy(slots), student.wide.weights(slots))
    return Changes(rows, {name: tensor.clone() for name, tensor in _small(student).items()})


def all_of(student: Student, touched: Touched) -> dict[str, Tensor]:
    """A copy of all that is served of a student, by the same names. What was touched until now is in it."""
    touched.take()
    tensors = {name: tensor.clone() for name, (_, tensor) in _by_row(student).items()}
    tensors |= {name: tensor.clone() for name, tensor in _small(student).items()}
    if student.wide is not None:
        touched.take_slots(student)
        tensors[LINEAR] = student.wide.weights()
    return tensors


def _by_row(student: Student) -> dict[str, tuple[str, Tensor]]:
    """What is large but the linear part: the table whose ids it goes by, and the tensor."""
    found = {f"tables.embedding_bags.{t}.weight": (t, tensor) for t, tensor in student.net.tables.weights.items()}
    by = [feature.by for feature in student.features.history if feature.of is not None]
    for n, table in enumerate(by):
        each = student.histories.each[n]
        rows = {key: tensor for key, tensor in each.named_buffers() if key in ("sum", "count", "last")}
        found |= {f"histories.each.{n}.{key}": (table, tensor) for key, tensor in rows.items()}
    return found


def _small(student: Student) -> dict[str, Tensor]:
    found = dict(student.prior.state_dict(prefix="prior."))
    for part in ("units", "trunk", "serving"):
        found |= student.net.get_submodule(part).state_dict(prefix=f"{part}.")
    found |= student.statistics.state_dict(prefix="statistics.")
    for n, each in enumerate(student.histories.each):
        shared = {key: tensor for key, tensor in each.named_buffers() if key in ("total", "clock")}
        found |= {f"histories.each.{n}.{key}": tensor for key, tensor in shared.items()}
    if student.wide is not None:
        state = student.wide.tensors()
        found |= {"wide.theta": state["stack/theta"], "wide.linear.hashing.modulus": state["wide/modulus"]}
    return found


def _distinct(parts: list[Tensor], rows: int) -> Tensor:
    count = sum(map(len, parts))
    if not count:
        return torch.zeros(0, dtype=torch.int64)
    if rows > SPARSE * count:
        return torch.unique(torch.cat(parts))
    marked = torch.zeros(rows, dtype=torch.bool)
    for part in parts:
        marked[part] = True
    return marked.nonzero().squeeze(1)
