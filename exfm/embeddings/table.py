"""Embedding tables: one interface for a kind of table, one for whoever holds the tables of a model.

    Table    a kind of table: how many rows a feature has, and which of them an id reads, when it is looked up, learned,
             touched and grown. A new kind is a subclass in a file of its own, and a line of `KINDS`
    Tables   all tables of a model, in one place: looked up, learned, written down, exported. A new place or engine is a
             subclass

    held by                                             engine                         learns
    FusedTables     one process (fused.py)              loops                          student, teacher of one rank
    ParallelTables  ranks (exfm/parallel/tables.py)     FBGEMM's kernels, CPU or CUDA  teacher; one that scores
    ServedTables    served student, teacher's replica   torch's operators              –
    QuantisedTables served student, int8 or int4        FBGEMM's operators             –

A holder knows tensors of rows × columns only, and so every kind is held, sharded, quantised, stored and followed alike.

B examples, N ids, P parts, S rows of a part, D width of a row, E columns of all keys of a batch.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import scale_accumulator
from exfm.embeddings.weights import Appended, Repeated, draw_initial_weights
from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
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
    """A feature's table: weights (`rows`, `width`) of one tensor, looked up by `keys` of a batch. Here a row per id.

    An id reads `parts` parts, each the sum of its rows; the parts stand beside each other, so a key is `parts · width`
    wide. The embedding of a bag is the sum of those of its ids.

    Another kind sets `parts`, says in `of` what a feature's table looks like, in `read` which rows an id reads, and in
    `grow` what happens to them where the feature gets more ids. What it inherits then holds for it under every holder.

    >>> from exfm.features.sparse import SparseFeature
    >>> Table.of(SparseFeature(name="ad", rows=10), width=4)
    Table(name='ad', rows=10, width=4, keys=('ad',), hashed=True)
    """

    name: str
    rows: int
    width: int
    keys: tuple[str, ...]
    hashed: bool = False  # ids are hashes modulo the feature's rows

    parts: ClassVar[int] = 1

    @classmethod
    def of(cls, feature: SparseFeature | SequenceFeature, width: int) -> Table:
        """The table of a feature whose keys are `width` wide."""
        keys = tuple(feature.keys) if isinstance(feature, SequenceFeature) else (feature.name,)
        return cls(feature.name, feature.rows, width, keys, feature.transform == "hash")

    def read(self, ids_N: Tensor) -> Tensor:
        """Rows (N, P, S) that ids read. An id is in [0, the feature's `rows`)."""
        return ids_N.view(-1, 1, 1)

    def grow(self, stored: TensorSource, initial: TensorSource) -> TensorSource:
        """A stored tensor of fewer rows, longer: a hashed id finds its row again, any other new one begins anew.
        `initial`: the new tensor as it would begin."""
        return Repeated(stored, self.rows) if self.hashed else Appended(stored, initial)

    @property
    def plain(self) -> bool:
        """True if an id is its row."""
        return type(self).read is Table.read

    @property
    def lookups(self) -> tuple[str, ...]:
        """Names of what is looked up, in order: of every key, every part."""
        return self.keys if self.parts == 1 else tuple(f"{key}/{p}" for key in self.keys for p in range(self.parts))

    def touched(self, ids_N: Tensor) -> Tensor:
        """Distinct rows (K,), ascending, that distinct ascending ids read."""
        return ids_N if self.plain else self.read(ids_N).unique()


KINDS: dict[str, type[Table]] = {"plain": Table}
"""Kinds of table, by the name in a feature's `table`."""


def tables_of(features: FeatureSet, width: int) -> list[Table]:
    """One table per sparse feature and sequence, named after it. Without a width of its own it gets `width`.

    Raises ConfigError for a kind that does not exist.
    """
    sparse = [_kind(f.table).of(f, f.width or width) for f in features.sparse]
    return sparse + [Table.of(f, width) for f in features.sequence]


def plain_tables(features: FeatureSet, width: int) -> list[Table]:
    """A row of `width` columns for each id of every feature, whatever table the feature has: of a linear part."""
    tabled: list[SparseFeature | SequenceFeature] = [*features.sparse, *features.sequence]
    return [Table.of(feature, width) for feature in tabled]


def event_tables(features: FeatureSet, width: int) -> list[Table]:
    """A table for each item of events, named after its list; the row's own id is looked up there too."""
    named = [pair for events in features.events for pair in zip(events.lists, events.items, strict=False)]
    return [Table(name, item.rows, width, (name,), item.transform == "hash") for name, item in named]


def _kind(name: str) -> type[Table]:
    if name in KINDS:
        return KINDS[name]
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"unknown kind of table `{name}` ({error}); choose from {', '.join(KINDS)}, or name a subclass of Table as "
            "`package.module:Class`"
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, Table)):
        raise ConfigError(f"table `{name}` must be a subclass of exfm.embeddings.table.Table")
    return kind


def rows_read(tables: Sequence[Table], sparse: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The rows that a batch's ids read: of the tables' lookups × B bags. Ids of plain tables are their rows."""
    if all(table.plain for table in tables):
        return sparse
    B = sparse.stride()
    lengths_KB = sparse.lengths().view(-1 if B else len(sparse.keys()), B)
    ids_K = sparse.values().split(lengths_KB.sum(1).tolist())
    rows, lengths = list[Tensor](), list[Tensor]()
    of_keys = (table for table in tables for _ in table.keys)
    for table, ids_N, lengths_B in zip(of_keys, ids_K, lengths_KB, strict=True):
        read_NPS = table.read(ids_N)
        rows += [part_NS.reshape(-1) for part_NS in read_NPS.unbind(1)]
        lengths += [lengths_B * read_NPS.shape[2]] * table.parts
    return KeyedJaggedTensor(
        [name for table in tables for name in table.lookups], torch.cat(rows), lengths=torch.cat(lengths)
    )


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
    clock: int = 0
    """The time of what is learned now (`tick`)."""

    @abstractmethod
    def send(self, batch: HasIds) -> Any:
        """Begin a lookup: make rows of the batch's ids, and send them to those who hold the rows."""

    @abstractmethod
    def lookup(self, sent: Any) -> Lookup:
        """Pooled embeddings of a batch that was sent."""

    def learn(self, lookup: Lookup, gradient: Tensor) -> None:
        """Move the rows that were looked up by one step, each once. The gradient (B, E) may be written over."""
        raise TypeError(f"{type(self).__name__} are looked up only")

    @abstractmethod
    def tensors(self) -> Mapping[str, Held]:
        """The state itself, by name: writing into it loads it."""

    def touched(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows (K,) of the weights that distinct ids of features read, ascending, by the tensor's name."""
        return {f"{t.name}/weight": t.touched(ids[t.name]) for t in self.tables if t.name in ids}

    def copies(self, ending: str = "") -> dict[str, Held]:
        """Copies, in the CPU's memory, of all tensors whose names end so."""
        named = ((name, held) for name, held in self.tensors().items() if name.endswith(ending))
        return {name: held.clone() for name, held in named if isinstance(held, Tensor)}

    def tick(self) -> int:
        """Begin another time, and return it: what is learned from now on changed since."""
        self.clock += 1
        return self.clock

    def changed(self, since: int) -> dict[str, Tensor] | None:
        """Rows (K,) int64, ascending, of each table that may have changed since this time; None where it is not
        tracked."""
        return None

    def all_changed(self) -> None:  # noqa: B027 - tables that are not tracked note nothing
        """Note that every row changed."""

    def changes(self, ending: str, since: int) -> dict[str, ChangedRows] | None:
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
            draw_initial_weights(t.name, t.rows, t.width, seed, windows_of(held[f"{t.name}/weight"]))
        self.all_changed()

    def take(self, changes: Mapping[str, ChangedTensor]) -> None:
        """Overwrite the rows that changed, by the names of `tensors`; of what is held elsewhere none is read."""
        held = self.tensors()
        for name, changed in changes.items():
            for start, window in windows_of(held[name]):
                changed.overwrite(window, start)
        self.all_changed()

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
