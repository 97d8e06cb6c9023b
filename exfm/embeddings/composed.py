"""Embeddings that are composed of rows of plain tables, so that a table takes fewer bytes than a row per id.

    ids ──► kind.read ──► rows of plain tables ──► looked up ──► kind.compose ──► pooled (B, D)
                                   ▲                                  │ gradient
                                   └────────── AdaGrad ◄──────────────┘

A kind of table is a subclass of `Composed` in a file of its own (exfm/embeddings/kinds). Whoever holds plain tables, in
training or served, in one process or on ranks, holds the rows: a kind neither looks up nor learns. One whose ids come
and go decides it while a step is learned; in the step's forward pass an id reads what a server would.

B examples, N ids, U distinct ids, D width of a key, K keys.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import scale_accumulator
from exfm.embeddings.served import ServedTables
from exfm.embeddings.table import Begun, HasIds, Held, Lookup, Table, Tables
from exfm.errors import ConfigError
from exfm.kernels.bags import add_norms, distinct, keep_present
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.delta import ChangedRows, Codec
from exfm.snapshots.named import check_fit
from exfm.snapshots.windows import TensorSource, fill_window, whole_tensor, windows_of

V = TypeVar("V")
C = TypeVar("C", bound="Composed")


class TableRanks(Protocol):
    """The ranks that hold tables together (exfm/parallel/group.py). Both methods are collectives."""

    world_size: int

    def sum(self, values: Tensor) -> Tensor: ...

    def all_gather(self, values: Tensor) -> list[Tensor]: ...


class Seen(NamedTuple):
    """Ids of a step's batch, of all ranks: what a kind learns from. In what order depends on the ranks."""

    ids: Tensor  # (U,) int64, distinct
    counts: Tensor  # (U,) int64, occurrences
    norms: Callable[[int], Tensor]
    """`norms(C)`: (U, C) float64, the L2 norm of the gradient's c-th of C equal parts, summed over occurrences."""
    time_ms: int | None  # the latest event time of the batch, where it is known


class Composed(ABC):
    """A kind of table: `name` and `keys` of a feature, whose embeddings of `width` are composed of rows of `tables`.

    An id reads a row of each table; or several, its parts, where a table has several times the keys of the feature: key
    by key, all parts of the first, then all of the next. Plain tables of one name are one, which several kinds share:
    each names the keys that are its own.
    """

    each = False
    """Whether embeddings are composed id by id, and then pooled; else rows are pooled, and then composed."""

    served: tuple[str, ...] = ()
    """Names of the `tensors` that looking up needs."""

    per_row: Mapping[str, str] = MappingProxyType({})
    """Names of the `tensors` with an entry for each of the first rows of one of `tables`, by its name: an entry changes
    only in a step that changes the row, too."""

    def __init__(self, name: str, keys: tuple[str, ...], width: int, tables: Sequence[Table]) -> None:
        self.name, self.keys, self.width, self.tables = name, keys, width, tuple(tables)

    @abstractmethod
    def read(self, ids_N: Tensor) -> list[Tensor]:
        """Rows (N,) int64 of each of `tables` that ids read, part by part; below 0 where an id reads none."""

    def compose(self, parts: list[Tensor], weights: Mapping[str, Tensor]) -> Tensor:
        """Embeddings (P, D) of what was read of each of `tables`, part by part: (P, its width), of ids or of bags.
        `weights`: those that are `learned`, by name, with gradient where one is wanted. By default they lie side by
        side."""
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """State beside the rows, not copies: writing into it loads it."""
        return {}

    def called(self, name: str) -> str:
        """The name that one of `tensors` has among those of all tables: what look-ups need is told apart by it."""
        return f"{self.name}/{SERVED}{name}" if name in self.served else f"{self.name}/{name}"

    def learned(self) -> dict[str, Tensor]:
        """Tensors among these that learn by AdaGrad; each has an accumulator `<name>_accumulator` beside it."""
        return {}

    def draw(self, seed: int) -> None:  # noqa: B027 - most kinds have no state
        """Begin: overwrite `tensors`. A row's first value is a function of the seed, the table's name and the id."""

    def learn(self, seen: Seen) -> list[Begun]:
        """Decide which ids have rows, from a step that is learned. Returns the rows that begin anew."""
        return []

    def forget(self, ids: Tensor) -> list[Begun]:
        """Drop what is known of ids (K,), of a kind whose ids come and go. Returns the rows that are cleared. A kind
        that says nothing of it has the rows that they read begin anew."""
        return []

    def figures(self) -> dict[str, int]:
        """Counts of a table whose ids come and go: `rows`, `taken`, and what else there is; of others nothing."""
        return {}

    def as_served(self: C) -> C:
        """A copy of the state that look-ups need; what else there is, is empty."""
        empty = {id(t): t.new_empty(0) for n, t in self.tensors().items() if n not in self.served}
        return copy.deepcopy(self, empty)

    @property
    def learns(self) -> bool:
        """True if ids come and go."""
        return type(self).learn is not Composed.learn

    @property
    def composes(self) -> bool:
        """False where what is read of a key is its embedding as it lies there."""
        return self.each or len(self.tables) > 1 or type(self).compose is not Composed.compose


class _Given(NamedTuple):
    """Rows in place of a batch's ids."""

    sparse: KeyedJaggedTensor

    def once(self, what: Hashable, make: Callable[[], V]) -> V:
        return make()


class _Bags:
    """Ids of a batch by key, cut once: TorchRec cuts them anew for every key that is asked for."""

    def __init__(self, sparse: KeyedJaggedTensor) -> None:
        keys, self.B = sparse.keys(), sparse.stride()
        self._values, self._lengths = sparse.values(), sparse.lengths()
        self._ends = [0, *self._lengths.view(len(keys), self.B).sum(1).cumsum(0).tolist()]
        self._place = {key: k for k, key in enumerate(keys)}

    def of(self, keys: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids (N,) and lengths (K · B,) of the bags of keys, key by key."""
        places = [self._place[key] for key in keys]
        if places == list(range(places[0], places[0] + len(keys))):  # as they lie
            ids = self._values[self._ends[places[0]] : self._ends[places[-1] + 1]]
            return ids, self._lengths[places[0] * self.B : (places[-1] + 1) * self.B]
        of_keys = [self.of([key]) for key in keys]
        return torch.cat([ids for ids, _ in of_keys]), torch.cat([lengths for _, lengths in of_keys])

    def counts(self, keys: Sequence[str]) -> list[int]:
        """Numbers of ids of keys."""
        return [self._ends[self._place[key] + 1] - self._ends[self._place[key]] for key in keys]

    def sums(self, keys: Sequence[str], of_ids: Tensor) -> Tensor:
        """Sums (B, K · D) over the bags of keys, of values (P, K · D): the n-th are of the n-th id of each key."""
        lengths = self.of(keys)[1]
        if bool((lengths == 1).all()):
            return of_ids[: self.B]
        by_key = zip(of_ids.chunk(len(keys), dim=1), self.counts(keys), lengths.split(self.B), strict=True)
        return torch.cat([_sums(values[:count], own) for values, count, own in by_key], dim=1)


class _Looked(NamedTuple):
    """Indices of a `Lookup`: what was read, and the way from there to what was pooled."""

    bags: _Bags
    time_ms: int | None
    read: dict[str, list[Tensor]]  # rows of each composed table, part by part
    inner: dict[str, Lookup]
    leaves: dict[str, Tensor]
    weights: dict[str, dict[str, Tensor]]  # leaves too: what kinds learn beside rows
    pooled: Tensor  # (B, E), with gradient where something is composed


class ComposedTables(Tables):
    """Tables of which some are composed. `tables`: plain and composed, in order of their keys; `hold` makes the plain
    tables behind them, for rows that are pooled and for rows that are composed id by id.

    Kinds are on every rank alike, and their decisions are of the ids of all ranks in an order that does not depend on
    how many there are.
    """

    def __init__(
        self,
        tables: Sequence[Table | Composed],
        hold: Callable[[Sequence[Table]], Tables],
        *,
        lr: float,
        eps: float,
        group: TableRanks | None = None,
        learns: bool = True,
    ) -> None:
        self.whole, self.tables = tuple(tables), tuple(physical(tables))
        self._group, self.lr, self._eps, self._learns = group, lr, eps, learns
        self.kinds = [table for table in tables if isinstance(table, Composed)]
        self._physical = _by_way(tables)
        self.inner: Mapping[str, Tables] = {way: hold(own) for way, own in self._physical.items() if own}
        self._asked = self.tick()

    @cached_property
    def _composes(self) -> bool:
        """True where the embeddings of all keys are not what is read of plain tables as it lies there."""
        in_order = [key for table in self.whole for own in plain(table) for key in own.keys]
        return in_order != [key for own in self.tables for key in own.keys] or any(
            isinstance(table, Composed) and table.composes for table in self.whole
        )

    def send(self, batch: HasIds) -> HasIds:
        """The batch itself. Nothing travels yet: which rows ids read is known once the step before was learned."""
        return batch

    def lookup(self, sent: HasIds) -> Lookup:
        bags = _Bags(sent.sparse)
        read = {table.name: self._read(table, bags) for table in self.whole}
        inner = {way: held.lookup(held.send(_Given(self._rows(way, read, bags)))) for way, held in self.inner.items()}
        learns = self._learns and torch.is_grad_enabled()
        leaves = {way: of.pooled.detach().requires_grad_(learns and self._composes) for way, of in inner.items()}
        weights = {k.name: {n: w.detach().requires_grad_(learns) for n, w in k.learned().items()} for k in self.kinds}
        pooled = self._composed(leaves, weights, bags) if self._composes else leaves[POOLED]
        if not learns:
            return Lookup(pooled.detach())
        shown = getattr(sent, "shown_ms", None)
        time_ms = None if shown is None or not len(shown) else int(shown.max())
        return Lookup(pooled.detach(), _Looked(bags, time_ms, read, inner, leaves, weights, pooled))

    def learn(self, lookup: Lookup, gradient: Tensor, *, decides: bool = True) -> None:
        at: _Looked = lookup.indices
        for held in self.inner.values():
            held.lr = self.lr
        begun = self._decide(at, gradient) if decides else {}
        inner = at.inner
        if begun:
            for held in self.inner.values():
                held.begin([of for own in begun.values() for of in own if any(of.table == t.name for t in held.tables)])
            names = {of.table for own in begun.values() for of in own}
            moved = [table for table in self.whole if names & {own.name for own in plain(table)}]
            read = at.read | {table.name: self._read(table, at.bags) for table in moved}
            inner = {w: held.looked(held.send(_Given(self._rows(w, read, at.bags)))) for w, held in self.inner.items()}
        if not self._composes:
            self.inner[POOLED].learn(inner[POOLED], gradient)
            return
        weights = [w for own in at.weights.values() for w in own.values()]
        leaves = [*at.leaves.values(), *weights]
        found = torch.autograd.grad(at.pooled, leaves, gradient, allow_unused=True)
        grads = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
        for way, g in zip(at.leaves, grads, strict=False):
            self.inner[way].learn(inner[way], g)
        of_kinds = iter(grads[len(at.leaves) :])
        for kind in self.kinds:  # AdaGrad, element by element, of what kinds learn beside rows
            for name, w in kind.learned().items():
                g = next(of_kinds) if self._group is None else self._group.sum(next(of_kinds))
                m = kind.tensors()[f"{name}_accumulator"].addcmul_(g, g)
                w.sub_(self.lr * g / (m.sqrt() + self._eps))

    def _decide(self, at: _Looked, gradient: Tensor) -> dict[str, list[Begun]]:
        """Rows that begin anew, by the table whose ids came or went."""
        begun: dict[str, list[Begun]] = {}
        if not any(kind.learns for kind in self.kinds):
            return begun
        width, time_ms = 0, self._latest(at.time_ms)
        for table in self.whole:
            own = gradient[:, width : width + table_width(table)]
            width += own.shape[1]
            if isinstance(table, Composed) and table.learns:
                rows = [of for of in table.learn(self._seen(table, at.bags, time_ms, own)) if len(of.rows)]
                begun |= {table.name: rows} if rows else {}
        return begun

    def _latest(self, time_ms: int | None) -> int | None:
        """The latest event time of all ranks. A collective."""
        if self._group is None or self._group.world_size == 1:
            return time_ms
        times = torch.cat(self._group.all_gather(torch.tensor([-1 if time_ms is None else time_ms])))
        return None if (latest := int(times.max())) < 0 else latest

    def _seen(self, kind: Composed, bags: _Bags, time_ms: int | None, gradient: Tensor) -> Seen:
        ids, lengths = bags.of(kind.keys)
        group = None if self._group is None or self._group.world_size == 1 else self._group
        own = found = distinct(ids)
        if group is not None:
            found = distinct(_of_all_ranks(group, own.ids))
            counts = torch.zeros_like(found.ids).index_add_(0, found.at, _of_all_ranks(group, own.counts))
            found = found._replace(counts=counts)

        def norms(C: int) -> Tensor:
            summed = torch.zeros(len(own.ids), C, dtype=torch.float64)
            add_norms(gradient.numpy(), lengths.long().numpy(), len(kind.keys), own.at.numpy(), summed.numpy())
            if group is None:
                return summed
            of_all = _of_all_ranks(group, summed)
            return torch.zeros(len(found.ids), C, dtype=torch.float64).index_add_(0, found.at, of_all)

        return Seen(found.ids, found.counts, norms, time_ms)

    # what ids read

    def _read(self, table: Table | Composed, bags: _Bags) -> list[Tensor]:
        ids, _ = bags.of(table.keys)
        return table.read(ids) if isinstance(table, Composed) else [ids]

    def _rows(self, way: str, read: Mapping[str, list[Tensor]], bags: _Bags) -> KeyedJaggedTensor:
        """Rows of the plain tables that a batch reads: bags of examples, or of single ids."""
        found: dict[str, tuple[list[str], list[Tensor], list[Tensor]]] = {}  # by plain table
        own = [table for table in self.whole if way_of(table) == way]
        most = max(1, *(max(bags.counts(table.keys)) for table in own)) if way == EACH else 0
        for table in own:
            K, of_parts, (_, lengths_P) = len(table.keys), iter(read[table.name]), bags.of(table.keys)
            if way == EACH:
                lengths_P = torch.arange(most) < torch.tensor(bags.counts(table.keys))[:, None]
            for of in plain(table):
                names, rows, lengths = found.setdefault(of.name, ([], [], []))
                names += of.keys
                C = len(of.keys) // K
                parts = [next(of_parts) for _ in range(C)]
                if K > 1 and C > 1:
                    by_key = zip(*(part.split(bags.counts(table.keys)) for part in parts), strict=True)
                    parts = [part for of_key in by_key for part in of_key]
                rows += parts
                lengths.append(lengths_P.view(K, 1, -1).expand(-1, C, -1).flatten())
        all_rows = torch.cat([part for _, rows, _ in found.values() for part in rows])
        all_lengths = torch.cat([part for _, _, lengths in found.values() for part in lengths]).long()
        there = keep_present(all_rows.numpy(), all_lengths.numpy())
        keys = [name for names, _, _ in found.values() for name in names]
        return KeyedJaggedTensor(keys, all_rows[:there], lengths=all_lengths)

    def _composed(
        self, leaves: Mapping[str, Tensor], weights: Mapping[str, Mapping[str, Tensor]], bags: _Bags
    ) -> Tensor:
        """Embeddings (B, E) of all keys, in order of the tables."""
        widths = {way: [of.width * len(of.keys) for of in self._physical[way]] for way in leaves}
        left = {
            of.name: columns
            for way, leaf in leaves.items()
            for of, columns in zip(self._physical[way], leaf.split(widths[way], dim=1), strict=True)
        }
        found: list[Tensor] = []
        for table in self.whole:
            of_tables = list[Tensor]()
            for of in plain(table):
                own, left[of.name] = left[of.name].tensor_split([of.width * len(of.keys)], dim=1)
                of_tables.append(own)
            if not isinstance(table, Composed) or not table.composes:
                found += of_tables
                continue
            K, parts = len(table.keys), list[Tensor]()
            for of, own in zip(table.tables, of_tables, strict=True):
                of_parts = own.view(len(own), K, len(of.keys) // K, of.width).unbind(2)
                parts += [part.reshape(-1, of.width) for part in of_parts]
            composed = table.compose(parts, weights[table.name]).reshape(-1, K * table.width)
            found.append(bags.sums(table.keys, composed) if table.each else composed)
        return torch.cat(found, dim=1)

    # state

    def tensors(self) -> dict[str, Held]:
        found: dict[str, Held] = {}
        for held in self.inner.values():
            found |= held.tensors()
        return found | dict(self._of_kinds(""))

    def copies(self, ending: str = "") -> dict[str, Held]:
        found: dict[str, Held] = {}
        for held in self.inner.values():
            found |= held.copies(ending)
        return found | {name: tensor.clone() for name, tensor in self._of_kinds(ending).items()}

    def changes(self, ending: str, since: int) -> dict[str, ChangedRows | Held] | None:
        found: dict[str, ChangedRows | Held] = {}
        for held in self.inner.values():
            if (of := held.changes(ending, since)) is None:
                return None
            found |= of
        noted = all(held.notes_read_rows for held in self.inner.values())
        rows, of_rows = (self.changed(since) if noted else None) or {}, self._per_row(ending)
        for name, own in self._of_kinds(ending).items():
            at = rows.get(of_rows.get(name, ""))
            at = None if at is None else at[at < len(own)]
            found[name] = own.clone() if at is None else ChangedRows(0, at, own.index_select(0, at))
        return found

    def _per_row(self, ending: str = "") -> dict[str, str]:
        """Tensors of kinds with an entry for each row of a plain table: its name."""
        own = self._of_kinds(ending)
        per_row = {kind.called(n): table for kind in self.kinds for n, table in kind.per_row.items()}
        return {name: table for name, table in per_row.items() if name in own}

    def _of_kinds(self, ending: str) -> dict[str, Tensor]:
        """State of kinds; where `ending` asks for weights alone, or nothing is learned, what look-ups need of it."""
        return {
            kind.called(n): t
            for kind in self.kinds
            for n, t in kind.tensors().items()
            if n in kind.served or (self._learns and not ending)
        }

    def served_state(self, per_row: bool) -> dict[str, Tensor]:
        """State that look-ups need beside rows, not copies: with an entry for each row of a plain table, or else."""
        of_rows = self._per_row("/weight")
        return {name: tensor for name, tensor in self._of_kinds("/weight").items() if (name in of_rows) == per_row}

    def path(self, name: str) -> str:
        table = name.partition("/")[0]
        way = next((way for way, own in self._physical.items() if any(of.name == table for of in own)), None)
        of_kind = name in self._of_kinds("")
        return name if of_kind or way is None else f"inner.{way}.{self.inner[way].path(name)}"

    def touched(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        since, self._asked = self._asked, self.tick()
        found: dict[str, Tensor] = {}
        for held in self.inner.values():
            if (changed := held.changed(since)) is None:
                raise TypeError(f"{type(held).__name__} do not note which rows are learned")
            found |= {f"{name}/weight": rows for name, rows in changed.items() if len(rows)}
        of_rows = {name: found.get(f"{by}/weight") for name, by in self._per_row("/weight").items()}
        own = self._of_kinds("/weight")
        return found | {name: at[at < len(own[name])] for name, at in of_rows.items() if at is not None}

    def tick(self, after: int = 0) -> int:
        self.clock = 1 + max(self.clock, after)
        for held in self.inner.values():
            held.clock = self.clock
        return self.clock

    def changed(self, since: int) -> dict[str, Tensor] | None:
        found: dict[str, Tensor] = {}
        for held in self.inner.values():
            if (of := held.changed(since)) is None:
                return None
            found |= of
        return found

    def all_changed(self) -> None:
        for held in self.inner.values():
            held.all_changed()

    def load(self, tensors: Mapping[str, TensorSource]) -> None:
        check_fit({name: held.shape for name, held in self.tensors().items()}, tensors)
        for held in self.inner.values():
            held.load({name: tensors[name] for name in held.tensors()})
        for name, own in self._of_kinds("").items():
            with torch.no_grad():
                fill_window(own, tensors[name])

    def take(self, changes: Mapping[str, TensorSource]) -> None:
        for held in self.inner.values():
            held.take({name: of for name, of in changes.items() if name in held.tensors()})
        for name, own in self._of_kinds("").items():
            if name in changes:
                with torch.no_grad():
                    if isinstance(of := changes[name], ChangedTensor):
                        of.overwrite(own, (0,) * own.dim())
                    else:
                        own.copy_(whole_tensor(of))

    def draw(self, seed: int) -> None:
        for held in self.inner.values():
            held.draw(seed)
        for kind in self.kinds if self._learns else ():
            kind.draw(seed)

    def forget(self, name: str, ids: Tensor, seed: int | None) -> None:
        table = next(table for table in self.whole if table.name == name)
        if isinstance(table, Composed) and table.learns and type(table).forget is not Composed.forget:
            begun = [of for of in table.forget(ids) if len(of.rows)]
            for held in self.inner.values():
                held.begin([of for of in begun if any(of.table == t.name for t in held.tables)])
            return
        read = table.read(ids) if isinstance(table, Composed) else [ids]
        parts = len(read) // len(plain(table))
        for n, own in enumerate(plain(table)):
            rows = torch.cat(read[n * parts : (n + 1) * parts])
            self.inner[way_of(table)].forget(own.name, rows[rows >= 0], seed)

    def figures(self) -> dict[str, dict[str, int]]:
        by_table = {kind.name: kind.figures() for kind in self.kinds}
        return {name: of for name, of in by_table.items() if of}

    def scale_accumulators(self, factor: float) -> None:
        for held in self.inner.values():
            held.scale_accumulators(factor)
        for kind in self.kinds:
            for name in kind.learned() if factor != 1 else ():
                scale_accumulator(kind.tensors()[f"{name}_accumulator"], factor)

    def export(self, codec: Codec = "fp32") -> Tables:
        return ServedComposed(self.whole, {way: held.export(codec) for way, held in self.inner.items()})

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for held in self.tensors().values() for _, w in windows_of(held))


class ServedComposed(nn.Module, ComposedTables):
    """Tables of which some are composed, looked up only: copies of what `tables` serve; `inner` holds the plain tables.
    No id comes or goes."""

    def __init__(self, tables: Sequence[Table | Composed], inner: Mapping[str, Tables]) -> None:
        super().__init__()
        self.whole = tuple(table.as_served() if isinstance(table, Composed) else table for table in tables)
        self.tables, self._group, self._learns = tuple(physical(tables)), None, False
        self.kinds = [table for table in self.whole if isinstance(table, Composed)]
        self._physical = _by_way(tables)
        self.inner = nn.ModuleDict(inner)  # type: ignore[arg-type, assignment]  # a mapping of modules that are tables
        self.codec = next(iter(inner.values())).codec
        for name, tensor in self._of_kinds("").items():
            self.register_buffer(name, tensor)

    def forward(self, sparse: KeyedJaggedTensor) -> Tensor:
        """(B, E), as in `ServedTables`."""
        return self.lookup(_Given(sparse)).pooled

    def learn(self, lookup: Lookup, gradient: Tensor, *, decides: bool = True) -> None:
        raise TypeError(f"{type(self).__name__} are looked up only")


SERVED = "served:"
"""What names of the state that look-ups need begin with, after their table's."""

POOLED, EACH = WAYS = ("pooled", "each")
"""Rows of a bag are summed before they are composed; or every id's are composed, and then summed."""


def is_served(name: str) -> bool:
    """True for names of tensors of tables that look-ups need.

    >>> [is_served(name) for name in ("ad/weight", "ad/served:ids", "ad/ids", "served:/accumulator")]
    [True, True, False, False]
    """
    own = name.rpartition("/")[2]
    return own == "weight" or own.startswith(SERVED)


def way_of(table: Table | Composed) -> str:
    return EACH if isinstance(table, Composed) and table.each else POOLED


def plain(table: Table | Composed) -> tuple[Table, ...]:
    """The plain tables behind a table."""
    return table.tables if isinstance(table, Composed) else (table,)


def parts_of(table: Table | Composed) -> int:
    """Number of rows that an id reads."""
    return sum(len(own.keys) for own in plain(table)) // len(table.keys)


def _by_way(tables: Sequence[Table | Composed]) -> dict[str, list[Table]]:
    """The plain tables behind tables, in order, by the way that they are composed."""
    return {way: physical([table for table in tables if way_of(table) == way]) for way in WAYS}


def physical(tables: Sequence[Table | Composed]) -> list[Table]:
    """The plain tables behind tables, in order; one that several share has the keys of all."""
    found: dict[str, Table] = {}
    for own in (own for table in tables for own in plain(table)):
        shared = found.get(own.name)
        found[own.name] = own if shared is None else replace(shared, keys=shared.keys + own.keys)
    return list(found.values())


def check_device(tables: Sequence[Table | Composed], device: str) -> None:
    """Raise ConfigError where a table cannot be on this type of device."""
    if device == "cuda" and any(isinstance(table, Composed) for table in tables):
        names = ", ".join(table.name for table in tables if isinstance(table, Composed))
        raise ConfigError(
            f"embeddings.{names}: a table that is not `full` is held on CPUs only, and this teacher computes on cuda; "
            "leave the table full, or set its device to cpu"
        )


def table_width(table: Table | Composed) -> int:
    """Columns of all keys of a table."""
    return table.width * len(table.keys)


def served_tables(tables: Sequence[Table | Composed]) -> ServedTables | ServedComposed:
    """Tables of weight 0 that are looked up only."""
    if all(isinstance(table, Table) for table in tables):
        return ServedTables([table for table in tables if isinstance(table, Table)])
    return ServedComposed(tables, {way: ServedTables(own) for way, own in _by_way(tables).items() if own})


def tables_held(
    tables: Sequence[Table | Composed],
    hold: Callable[[Sequence[Table]], Tables],
    *,
    lr: float = 0.0,
    eps: float = 0.0,
    group: TableRanks | None = None,
    learns: bool = True,
) -> Tables:
    """The tables, held by what `hold` makes of plain ones; composed only where one of them is."""
    if all(isinstance(table, Table) for table in tables):
        return hold([table for table in tables if isinstance(table, Table)])
    return ComposedTables(tables, hold, lr=lr, eps=eps, group=group, learns=learns)


def _sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sums of consecutive values (N, …), so many each: (B, …)."""
    bags = torch.arange(len(lengths), device=values.device).repeat_interleave(lengths)
    return values.new_zeros(len(lengths), *values.shape[1:]).index_add(0, bags, values)


def _of_all_ranks(group: TableRanks, values: Tensor) -> Tensor:
    """Values (n, …) of every rank, in order of rank. A collective."""
    counts = torch.cat(group.all_gather(torch.tensor([len(values)]))).tolist()
    padded = values.new_zeros(max(counts), *values.shape[1:])
    padded[: len(values)] = values
    return torch.cat([of[:n] for of, n in zip(group.all_gather(padded), counts, strict=True)])
