"""Embedding tables: plain ones, and one interface for whoever holds the tables of a model.

    Table    weights (rows, width): an id is the number of its row
    Tables   all tables of a model, in one place: looked up, learned, written down, exported. A new place or engine is a
             subclass

    held by                                             engine                         learns
    FusedTables     one process (fused.py)              loops                          student, teacher of one rank
    ParallelTables  ranks (exfm/parallel/tables.py)     FBGEMM's kernels, CPU or CUDA  teacher; one that scores
    ServedTables    served student, teacher's replica   torch's operators              –
    QuantisedTables served student, int8 or int4        FBGEMM's operators             –

What ids read of plain tables is the matter of kinds of tables (composed.py): each is held, sharded, quantised, stored
and followed as plain tables are.

B examples, N ids, D width of a row, E columns of all keys of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import scale_accumulator
from exfm.embeddings.weights import Appended, Repeated, draw_initial_weights
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.delta import ChangedRows, Codec
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorPieces, TensorSource, windows_of

V = TypeVar("V")

Held = Tensor | TensorPieces
"""The state itself, not a copy: a whole tensor, or the pieces that this rank has."""


@dataclass(frozen=True)
class Table:
    """A plain table: weights (`rows`, `width`) of one tensor, a row per id, looked up by `keys` of a batch. The
    embedding of a bag is the sum of those of its ids.

    >>> from exfm.features.sparse import SparseFeature
    >>> Table.of(SparseFeature(name="ad", rows=10), width=4)
    Table(name='ad', rows=10, width=4, keys=('ad',), hashed=True, bound=None)
    """

    name: str
    rows: int
    width: int
    keys: tuple[str, ...]
    hashed: bool = False  # ids are hashes modulo the feature's rows
    bound: float | None = None  # weights begin in ±bound; None: √(1 / rows)

    @classmethod
    def of(cls, feature: SparseFeature | SequenceFeature, width: int) -> Table:
        """A row of `width` columns for each id of a feature."""
        return cls(feature.name, feature.rows, width, keys_of(feature), feature.transform == "hash")

    def grow(self, stored: TensorSource, initial: TensorSource) -> TensorSource:
        """A stored tensor of fewer rows, longer: a hashed id finds its row again, any other new one begins anew.
        `initial`: the new tensor as it would begin."""
        return Repeated(stored, self.rows) if self.hashed else Appended(stored, initial)

    def begun(self, rows: Tensor, seed: int | None) -> Begun:
        """Rows (K,), distinct, as tables drawn from this seed begin with them, or 0."""
        values = torch.zeros(len(rows), self.width)
        if seed is not None:
            windows = [((row, 0), value[None]) for row, value in zip(rows.tolist(), values, strict=True)]
            draw_initial_weights(self.name, self.rows, self.width, seed, windows, self.bound)
        return Begun(self.name, rows, values)


class Begun(NamedTuple):
    """Rows (K,) int64 of a plain table, distinct, that begin anew: `values` (K, width); accumulators 0."""

    table: str
    rows: Tensor
    values: Tensor


def keys_of(feature: SparseFeature | SequenceFeature) -> tuple[str, ...]:
    """Keys of a batch that look up a feature's table."""
    return tuple(feature.keys) if isinstance(feature, SequenceFeature) else (feature.name,)


class HasIds(Protocol):
    """A batch, or its events: the ids that tables look up."""

    @property
    def sparse(self) -> KeyedJaggedTensor: ...

    def once(self, what: Hashable, make: Callable[[], V]) -> V: ...


class Lookup(NamedTuple):
    """Result of a lookup, and what its holder needs to learn from it."""

    pooled: Tensor  # (B, E): the embeddings of every key's bags, keys in order
    indices: Any = None


class Tables(ABC):
    """All embedding tables of a model, whoever holds them:

        send ──► lookup ──► pooled (B, E) ──► the model ──► its gradient (B, E) ──► learn

    Tensors have names: `<table>/weight` (rows, width) float32; where tables learn, `<table>/accumulator`, AdaGrad's:
    (rows,), or (rows, width) of the element-wise. On ranks all three verbs are collectives.
    """

    tables: tuple[Table, ...]
    codec: Codec = "fp32"
    lr: float = 0.0
    """The rate of the next step."""
    clock: int = 0
    """The time of what is learned now (`tick`)."""
    notes_read_rows = False
    """Whether `changed` has every row that a learned step read, also one whose gradient was 0."""

    @abstractmethod
    def send(self, batch: HasIds) -> Any:
        """Begin a lookup: make rows of the batch's ids, and send them to those who hold the rows."""

    @abstractmethod
    def lookup(self, sent: Any) -> Lookup:
        """Pooled embeddings of a batch that was sent."""

    def looked(self, sent: Any) -> Lookup:
        """A lookup that is only learned from."""
        return self.lookup(sent)

    def learn(self, lookup: Lookup, gradient: Tensor, *, decides: bool = True) -> None:
        """Move the rows that were looked up by one step, each once. The gradient (B, E) may be written over. A step
        decides which ids have rows, where they come and go: a further one on the same batch does not."""
        raise TypeError(f"{type(self).__name__} are looked up only")

    @abstractmethod
    def tensors(self) -> Mapping[str, Held]:
        """The state itself, by name: writing into it loads it."""

    def touched(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows (K,) of the weights that distinct ids of features read, ascending, by the tensor's name."""
        return {f"{t.name}/weight": ids[t.name] for t in self.tables if t.name in ids}

    def copies(self, ending: str = "") -> dict[str, Held]:
        """Copies, in the CPU's memory, of all tensors whose names end so."""
        named = ((name, held) for name, held in self.tensors().items() if name.endswith(ending))
        return {name: held.clone() for name, held in named if isinstance(held, Tensor)}

    def tick(self, after: int = 0) -> int:
        """Begin another time, later than `after`, and return it: what is learned from now on changed since."""
        self.clock = 1 + max(self.clock, after)
        return self.clock

    def changed(self, since: int) -> dict[str, Tensor] | None:
        """Rows (K,) int64, ascending, of each table that may have changed since this time; None where it is not
        tracked."""
        return None

    def all_changed(self) -> None:  # noqa: B027 - tables that are not tracked note nothing
        """Note that every row changed."""

    def path(self, name: str) -> str:
        """The name of a tensor in the module of a served student's tables."""
        return f"embedding_bags.{name.replace('/', '.')}"

    def changes(self, ending: str, since: int) -> dict[str, ChangedRows | Held] | None:
        """Copies of the rows that changed since this time, of all tensors whose names end so; None where it is not
        tracked."""
        if (rows := self.changed(since)) is None:
            return None
        named = ((name, held, rows[name.rpartition("/")[0]]) for name, held in self.tensors().items())
        return {
            name: ChangedRows(0, at, held.index_select(0, at))
            for name, held, at in named
            if name.endswith(ending) and isinstance(held, Tensor)
        }

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        """Overwrite all tensors; of each only the windows that are here are read. Raises ModelError where names or
        shapes are others."""
        copy_tensors(self.tensors(), tensors)
        self.all_changed()

    def draw(self, seed: int) -> None:
        """Overwrite the weights by those they begin with, a function of the seed and each table's name."""
        held = self.tensors()
        for t in self.tables:
            draw_initial_weights(t.name, t.rows, t.width, seed, windows_of(held[f"{t.name}/weight"]), t.bound)
        self.all_changed()

    def take(self, changes: Mapping[str, TensorSource]) -> None:
        """Overwrite the rows that changed, by the names of `tensors`; of what is held elsewhere none is read."""
        held = self.tensors()
        for name, changed in changes.items():
            assert isinstance(changed, ChangedTensor)
            for start, window in windows_of(held[name]):
                changed.overwrite(window, start)
        self.all_changed()

    def begin(self, begun: Sequence[Begun]) -> None:
        """Overwrite rows by the values they begin with, their accumulators by 0."""
        held = self.tensors()
        for name, rows, values in begun:
            for of, new in (("weight", values), ("accumulator", None)):
                for start, window in windows_of(held[f"{name}/{of}"]):
                    here = (rows >= start[0]) & (rows < start[0] + len(window))
                    at = (rows[here] - start[0]).to(window.device)
                    if new is None:
                        window[at] = 0
                    else:
                        window[at] = new[here, start[1] : start[1] + window.shape[1]].to(window)
            self.note(name, rows)

    def forget(self, name: str, ids: Tensor, seed: int | None) -> None:
        """Reset ids (K,) of a table to what tables drawn from this seed begin with, or to 0: what they learned is
        gone, and what others learned that share their rows."""
        self.begin([next(table for table in self.tables if table.name == name).begun(ids.unique(), seed)])

    def note(self, name: str, rows: Tensor) -> None:  # noqa: B027 - as `all_changed`
        """Note that rows of a table changed, where that is tracked."""

    def figures(self) -> dict[str, dict[str, int]]:
        """Counts of each table whose ids come and go."""
        return {}

    def scale_accumulators(self, factor: float) -> None:
        for name, held in self.tensors().items():
            if factor != 1 and name.endswith("/accumulator"):
                for _, window in windows_of(held):
                    scale_accumulator(window, factor)
        if factor != 1:
            self.all_changed()

    def export(self, codec: Codec = "fp32") -> Tables:
        """Copies to be served, in as many bits."""
        from exfm.embeddings.quantised import QuantisedTables
        from exfm.embeddings.served import ServedTables

        weights = {name: held for name, held in self.tensors().items() if name.endswith("/weight")}
        if codec != "fp32":
            return QuantisedTables(self.tables, weights, codec)
        served = ServedTables(self.tables)
        served.load(weights)
        return served

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are here."""
        return sum(window.nbytes for held in self.tensors().values() for _, window in windows_of(held))
