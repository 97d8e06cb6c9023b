"""Vectors whose less useful chunks are pruned while they are trained, and regrown (FIITED: Shi et al. 2024, arXiv
2401.04408; features by importance: AdaEmbed, Lai et al. 2023).

    e_i = [a_i1; …; a_iC]       chunk c of id i is the row address[i, c] of one pool, and zeros where it is pruned

    each step learned           u_ic ← u_ic + Σ_bags ‖∂L/∂e_ic‖      frequency times gradient: pruned chunks earn it too
    every `every` steps         the K largest u_ic have rows, the others none; u_ic ← decay · u_ic

Any chunk of any id may own any row of the pool. A row that changes owners begins anew. An id that is seen for the first
time gets all of its chunks at once, as long as rows are free, and is first judged at the next pruning; an id that finds
none free waits for it. So that new ids find rows, a pruning leaves H of the pool's P rows free, or as many as the ids
not yet seen can take: K = P − min(H, C · ids unseen). Where every chunk has a row (P = V · C) nothing is ever decided,
and the table is the full one, cut in chunks.

Tables of one width of chunk may share a pool, and its bytes: the K largest are then of the utilities of all of them,
which are parts of one loss, and a chunk of one table takes the row that a chunk of another lost.

The exact utility of FIITED is not published; this one is ours. It is kept in 16 bits, 512 log₂ u: a step adds nothing
to a utility 1,477 times as large. Equal utilities: the lower id, then the lower chunk.

V virtual rows, C chunks, w = D / C columns of a chunk, P rows of the pool, U ids of a step. An element is a chunk of an
id: number i · C + c.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from exfm.embeddings.composed import Composed, Seen
from exfm.embeddings.kinds.settings import MOST, EmbeddingSettings, SharingTable, Tabled
from exfm.embeddings.table import Begun, Table, keys_of
from exfm.embeddings.weights import initial_rows
from exfm.errors import ConfigError
from exfm.features.transforms import mixed
from exfm.kernels.chunks import MOST_CODE, OCTAVES, PER_OCTAVE, UNSEEN, count_codes, earn, prune, read_addresses
from exfm.randomness import named_generator

Rule = Literal["utility", "frequency", "random"]


class Fiited(EmbeddingSettings):
    """Vectors in chunks, of which the less useful are pruned while training, and regrown."""

    kind: Literal["fiited"] = Field(description="Chunks of vectors, pruned and regrown in training.")
    chunks: int = Field(default=4, gt=0, description="Chunks of a vector, each a multiple of 4 wide.")
    keep: float = Field(default=0.25, gt=0, le=1, description="Share of all chunks that there are rows for.")
    budget_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes instead of a share: of weights with row-wise accumulators, addresses and utilities.",
    )
    shares: str | None = Field(
        default=None,
        description="Table of kind fiited whose pool of rows this one shares: `keep` or `budget_bytes` there is of all "
        "that share it, and so are all other settings but `rows`.",
    )
    rows: int | None = Field(
        default=None, gt=0, description="Virtual rows, which ids are taken modulo; by default the feature's."
    )
    rule: Rule = Field(
        default="utility",
        description="What keeps a chunk: frequency times gradient, frequency, or a coin drawn once, for comparison.",
    )
    every: int = Field(default=40, gt=0, description="Steps from one pruning to the next.")
    decay: float = Field(default=0.9, gt=0, le=1, description="What a utility is multiplied by at each pruning.")
    headroom: float = Field(default=0.1, ge=0, lt=1, description="Share of rows that a pruning leaves to new ids.")

    learns: ClassVar[bool] = True

    def host(self) -> str | None:
        return self.shares

    def table(self, feature: Tabled, width: int) -> Composed:
        return self.tables([SharingTable(feature, width, self)])[0]

    def tables(self, members: Sequence[SharingTable]) -> list[Composed]:
        host = next((of.feature for of in members if of.settings is self), members[0].feature)
        whole = next(of.width for of in members if of.feature is host)
        if self.shares is not None:
            raise ConfigError(
                f"embeddings.{host.name} shares rows of `{self.shares}`, and has none for others; a table that others "
                "share has no `shares` itself"
            )
        w = whole // self.chunks
        if whole % (4 * self.chunks):
            raise ConfigError(
                f"embeddings.{host.name} cuts {whole} columns in {self.chunks} chunks, and each must be a multiple "
                f"of 4 wide (FBGEMM's rows are); take a multiple of {4 * self.chunks} as width, or other `chunks`"
            )
        made = list[tuple[Tabled, int, int]]()  # of each table: its virtual rows and the width of its embeddings
        for feature, width, own in members:
            if not isinstance(own, Fiited):
                raise ConfigError(
                    f"embeddings.{feature.name} is `{own.kind}`, and shares rows of kind fiited only as fiited"
                )
            self._check(feature, width, own, w)
            made.append((feature, own.rows or feature.rows, width))
        pool = ChunkPool(host.name, w, self, [(virtual, width // w) for _, virtual, width in made])
        return [FiitedTable(f.name, keys_of(f), width, self, virtual, pool) for f, virtual, width in made]

    def linear_rows(self, feature: Tabled) -> int:
        return self.rows or feature.rows

    def _check(self, feature: Tabled, width: int, own: Fiited, w: int) -> None:
        """Raise ConfigError where a table cannot be in the pool of these settings' table."""
        of, fields = f"embeddings.{feature.name}", type(own).model_fields
        given = {name for name in fields if getattr(own, name) != fields[name].default} - {"kind", "shares", "rows"}
        if own.shares is not None and given:
            raise ConfigError(
                f"{of} shares the pool of `{own.shares}`, whose settings are of all that share it, and has "
                f"{', '.join(f'`{name}`' for name in sorted(given))}; give them there, or leave `shares` out"
            )
        if width % w:
            raise ConfigError(
                f"{of} cuts {width} columns in chunks of {w}, as `{own.shares}` does whose pool it shares; take a "
                f"multiple of {w} as width, or leave `shares` out"
            )
        if (virtual := own.rows or feature.rows) * (width // w) > MOST:
            raise ConfigError(
                f"{of} keeps an address for each of {width // w} chunks of {virtual:,} ids; give it `rows`, which ids "
                "are taken modulo"
            )


class ChunkPool:
    """Rows for the chunks of one table, or of several that compete for them.

    Ties, and who takes free rows first: tables in order of the model's, then the lower id, then the lower chunk.
    """

    def __init__(self, name: str, width: int, settings: Fiited, sizes: Sequence[tuple[int, int]]) -> None:
        """`sizes`: virtual rows and chunks of each table; `width`: columns of a chunk."""
        self.name, self.width, self.settings = name, width, settings
        self.rows, self.headroom = _pool(name, width, settings, sizes)
        self.bound, self.learns = sizes[0][0] ** -0.5, self.rows < _elements(sizes)
        self.free = torch.zeros(max(1, self.headroom), dtype=torch.int32)  # a stack of rows that had owners
        self.clock = torch.zeros(4, dtype=torch.int64)  # steps, rows that ever had owners, rows in `free`, the seed
        self.members = list[FiitedTable]()

    def draw(self, seed: int) -> None:
        self.clock.copy_(torch.tensor([0, 0, 0, seed]))
        self.free.zero_()

    @property
    def available(self) -> int:
        return self.rows - int(self.clock[1]) + int(self.clock[2])

    def prune(self) -> list[Begun]:
        """Give the rows to the elements of the largest utilities, of all ids seen so far. Returns the rows of elements
        that had none."""
        counts = np.zeros(MOST_CODE + 1, np.int64)
        held = [(of, of.address.numpy(), of.utility.numpy()) for of in self.members]
        judged = [count_codes(address, codes, counts) for _, address, codes in held]
        there = sum(ids * of.chunks for ids, of in zip(judged, self.members, strict=True))
        unseen = sum(of.virtual * of.chunks for of in self.members) - there
        most = self.rows - min(self.headroom, unseen)
        least, ties = -1, 0  # all of them
        if there > most:
            at_least = counts[::-1].cumsum()[::-1]
            least = int(np.flatnonzero(at_least >= most)[-1])
            ties = most - int(at_least[least] - counts[least])
        gained, lost = np.empty(self.rows, np.int64), np.empty(self.rows, np.int64)
        G, L, ends = 0, 0, list[int]()
        for _, address, codes in held:
            g, lose, ties = prune(address, codes, least, ties, self._less(), gained[G:], lost[L:])
            G, L = G + g, L + lose
            ends.append(G)
        ever, stacked = self.clock[1:3].tolist()
        free = self.free.numpy()
        back = np.sort(np.concatenate([free[:stacked], lost[:L]]))
        reused = min(G, len(back))
        rows = np.concatenate([back[:reused], np.arange(ever, ever + G - reused)])
        left = back[reused:][::-1]  # fits: at most `headroom` rows are free once a chunk was lost
        free[: len(left)] = left
        self.clock[1], self.clock[2] = ever + G - reused, len(left)
        begun = list[Begun]()
        for (of, address, _), first, end in zip(held, [0, *ends], ends, strict=False):
            address.reshape(-1)[gained[first:end]] = rows[first:end]
            begun.append(of.begun(gained[first:end], rows[first:end]))
        return begun

    def take(self, count: int) -> np.ndarray:
        """Free rows: of earlier owners, the lowest first, and then such as never had one."""
        ever, stacked = self.clock[1:3].tolist()
        reused = min(count, stacked)
        rows = np.concatenate(
            [self.free.numpy()[stacked - reused : stacked][::-1], np.arange(ever, ever + count - reused)]
        )
        self.clock[1], self.clock[2] = ever + count - reused, stacked - reused
        return rows

    def as_served(self) -> ChunkPool:
        """A pool of nothing, whose tables are looked up only."""
        own = copy.copy(self)
        own.free, own.clock, own.members = self.free.new_empty(0), self.clock.new_empty(0), []
        return own

    def _less(self) -> int:
        """Steps that a code falls by at each pruning, at least one; those of a coin stay."""
        if self.settings.rule == "random" or self.settings.decay == 1:
            return 0
        return min(MOST_CODE, max(1, round(-PER_OCTAVE * math.log2(self.settings.decay))))


class FiitedTable(Composed):
    """Vectors of `virtual` rows, which ids are taken modulo, in chunks of a pool of rows.

    >>> import torch
    >>> from exfm.features.sparse import SparseFeature
    >>> table = Fiited(kind="fiited", chunks=2, keep=0.5, headroom=0).table(SparseFeature(name="ad", rows=10), 8)
    >>> table.tables
    (Table(name='ad', rows=10, width=4, keys=('ad~0', 'ad~1'), hashed=False, bound=0.31622776601683794),)
    >>> table.read(torch.tensor([3]))
    [tensor([-2]), tensor([-2])]
    >>> begun = table.learn(Seen(torch.tensor([3]), torch.tensor([1]), lambda C: torch.ones(1, C).double(), None))
    >>> table.read(torch.tensor([3, 13]))
    [tensor([0, 0]), tensor([1, 1])]
    """

    served = ("address",)

    def __init__(
        self, name: str, keys: tuple[str, ...], width: int, settings: Fiited, virtual: int, pool: ChunkPool
    ) -> None:
        self.settings, self.virtual, self.pool, self.chunks = settings, virtual, pool, width // pool.width
        of_chunks = tuple(f"{key}~{c}" for key in keys for c in range(self.chunks))
        super().__init__(name, keys, width, [Table(pool.name, pool.rows, pool.width, of_chunks, bound=pool.bound)])
        shape = (self.virtual, self.chunks)
        self.address = torch.empty(shape, dtype=torch.int32)  # row of the pool, or below 0
        self.utility = torch.zeros(shape, dtype=torch.int16)  # codes: 0 is none
        self.pool.members.append(self)
        self.draw(0)

    def read(self, ids_N: Tensor) -> list[Tensor]:
        rows_CN = torch.empty(self.chunks, len(ids_N), dtype=torch.int64)
        read_addresses(ids_N.contiguous().numpy(), self.address.numpy(), rows_CN.numpy())
        return list(rows_CN)

    def tensors(self) -> dict[str, Tensor]:
        own = {"address": self.address, "utility": self.utility}
        return own | ({"free": self.pool.free, "clock": self.pool.clock} if self.pool.name == self.name else {})

    def draw(self, seed: int) -> None:
        if self.pool.name == self.name:
            self.pool.draw(seed)
        self.utility.zero_()
        if self.learns:
            self.address.fill_(UNSEEN)
        else:
            torch.arange(self.address.numel(), out=self.address.view(-1))

    @property
    def learns(self) -> bool:
        return self.pool.learns

    def learn(self, seen: Seen) -> list[Begun]:
        pool, steps, begun = self.pool, int(self.pool.clock[0]), list[Begun]()
        if self is pool.members[0] and steps and steps % self.settings.every == 0:
            begun = pool.prune()
        if len(seen.ids):
            begun.append(self.begun(*self._welcome(self._note(seen, int(pool.clock[3])))))
        if self is pool.members[-1]:
            pool.clock[0] += 1
        return [of for of in begun if len(of.rows)]

    def begun(self, elements: np.ndarray, rows: np.ndarray) -> Begun:
        """Rows of elements, as these begin."""
        values = initial_rows(
            self.name, torch.from_numpy(elements), self.pool.width, int(self.pool.clock[3]), self.virtual**-0.5
        )
        return Begun(self.pool.name, torch.from_numpy(rows.astype(np.int64)), values)

    def forget(self, ids: Tensor) -> list[Begun]:
        """Drop ids, as far as they have rows: these begin anew, and so do their utilities."""
        virtual = np.unique(ids.numpy() % self.virtual)
        self.utility[torch.from_numpy(virtual)] = 0
        elements = (virtual[:, None] * self.chunks + np.arange(self.chunks)).ravel()
        rows = self.address.numpy().reshape(-1)[elements]
        return [self.begun(elements[rows >= 0], rows[rows >= 0])]

    def figures(self) -> dict[str, int]:
        """Rows of the pool, and those that chunks have, of all tables that share it."""
        return {"rows": self.pool.rows, "taken": self.pool.rows - self.pool.available} if self.learns else {}

    def as_served(self: F) -> F:
        own = copy.copy(self)
        own.address, own.utility, own.pool = self.address.clone(), self.utility.new_empty(0), self.pool.as_served()
        return own

    def _note(self, seen: Seen, seed: int) -> np.ndarray:
        """Add to the utilities of ids. Returns their virtual rows, distinct."""
        ids, codes = seen.ids.numpy(), self.utility.numpy()
        at = None
        if not 0 <= ids.min() <= ids.max() < self.virtual:
            ids, at = np.unique(ids % self.virtual, return_inverse=True)
        if self.settings.rule == "random":
            codes[ids] = _coins(self.name, ids[:, None] * self.chunks + np.arange(self.chunks), seed)
            return ids
        by_count = self.settings.rule == "frequency"
        gained = (seen.counts.double()[:, None].repeat(1, self.chunks) if by_count else seen.norms(self.chunks)).numpy()
        if at is not None:
            of_seen, gained = gained, np.zeros((len(ids), self.chunks))
            np.add.at(gained, at, of_seen)
        earn(ids, gained, UTILITIES, codes)
        return ids

    def _welcome(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows for all chunks of ids that are new, lower ids first, as long as there are any. Returns elements and
        rows."""
        address = self.address.numpy()
        new = np.sort(ids[address[ids, 0] == UNSEEN])
        new = new[: self.pool.available // self.chunks]
        rows = self.pool.take(len(new) * self.chunks)
        address[new] = rows.reshape(-1, self.chunks)
        return (new[:, None] * self.chunks + np.arange(self.chunks)).ravel(), rows


F = TypeVar("F", bound=FiitedTable)


def encoded(utilities: np.ndarray) -> np.ndarray:
    """Codes, int16, of utilities of any shape: monotone, and 0 for 0.

    >>> encoded(np.array([0, 1, 2, 1e-30, 1e30])).tolist()
    [0, 16384, 16896, 1, 32767]
    """
    with np.errstate(divide="ignore"):
        codes = np.rint((np.log2(utilities) + OCTAVES) * PER_OCTAVE)
    return np.where(utilities > 0, np.clip(codes, 1, MOST_CODE), 0).astype(np.int16)


def decoded(codes: np.ndarray) -> np.ndarray:
    """Utilities of codes, float64."""
    return np.where(codes > 0, np.exp2(codes / PER_OCTAVE - OCTAVES), 0.0)


def bytes_of(sizes: Sequence[tuple[int, int]], width: int, rows: int, free: int) -> int:
    """Bytes in training of tables with so many virtual rows and chunks: weights and row-wise accumulators of `rows`
    chunks, each `width` wide; addresses and utilities of all ids; so many places for free rows, and the clock.

    >>> bytes_of([(1000, 4)], 4, 1000, 100) == 16_000 + 4_000 + 16_000 + 8_000 + 400 + 32
    True
    """
    return (4 * width + 4) * rows + 6 * _elements(sizes) + 4 * free + 32


def keep_within(budget_bytes: int, sizes: Sequence[tuple[int, int]], width: int, headroom: float = 0.1) -> float:
    """The largest share of chunks that tables can keep within so many bytes; 0 where there is none.

    >>> keep_within(44_432, [(1000, 4)], 4), keep_within(20_000, [(1000, 4)], 4)
    (0.25025, 0.0)
    """

    def total(millionths: int) -> int:
        rows, free = pool_of(sizes, millionths / 1e6, headroom)
        return bytes_of(sizes, width, rows, max(1, free))

    return max(0, bisect_right(range(1_000_001), budget_bytes, key=total) - 1) / 1e6


def pool_of(sizes: Sequence[tuple[int, int]], keep: float, headroom: float) -> tuple[int, int]:
    """Rows of a pool, and how many of them a pruning leaves free at most: whole ids', and an id of each table keeps
    its own.

    >>> pool_of([(1000, 4)], 0.25, 0.1), pool_of([(1000, 4)], 1.0, 0.1), pool_of([(3, 4)], 0.5, 0.1)
    ((1000, 100), (4000, 0), (6, 2))
    """
    rows = int(sum(keep * virtual * of_each for virtual, of_each in sizes))
    chunks = max(of_each for _, of_each in sizes)
    whole = math.ceil(headroom * rows / chunks) * chunks
    return rows, 0 if rows >= _elements(sizes) else max(0, min(whole, rows - sum(of_each for _, of_each in sizes)))


def _elements(sizes: Sequence[tuple[int, int]]) -> int:
    return sum(virtual * chunks for virtual, chunks in sizes)


def _pool(name: str, width: int, settings: Fiited, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    keep, asked = settings.keep, f"keeps {settings.keep:g} of the chunks"
    if settings.budget_bytes is not None:
        keep = keep_within(settings.budget_bytes, sizes, width, settings.headroom)
        asked = f"is to fit in {settings.budget_bytes:,} bytes"
    rows, free = pool_of(sizes, keep, settings.headroom)
    if rows < (least := sum(chunks for _, chunks in sizes)):
        ids, bytes_ = sum(virtual for virtual, _ in sizes), bytes_of(sizes, width, least, 1)
        have = f"one id has {least}" if len(sizes) == 1 else f"one id of each of {len(sizes)} tables has {least}"
        raise ConfigError(
            f"embeddings.{name} {asked} of {ids:,} ids, which leaves {rows} rows for chunks, and {have}; "
            f"give it at least {_at_least(least / _elements(sizes)):g} (`keep`) or {bytes_:,} bytes (`budget_bytes`), "
            "or fewer `rows`"
        )
    if len(sizes) > 1 and rows >= _elements(sizes):
        raise ConfigError(
            f"embeddings.{name} keeps every chunk, and tables that share its pool would share nothing; leave `shares` "
            "out, or keep less"
        )
    return rows, free


def _at_least(share: float) -> float:
    """A share in two digits, rounded up.

    >>> _at_least(2 / 60)
    0.034
    """
    digits = 10.0 ** (1 - math.floor(math.log10(share)))
    return math.ceil(share * digits) / digits


def _coins(name: str, elements: np.ndarray, seed: int) -> np.ndarray:
    """Codes of a coin for every element, drawn once: a function of the seed, the table's name and the element."""
    key = np.uint64(named_generator(seed, f"coins/{name}").initial_seed() & (2**64 - 1))
    return np.maximum(mixed(elements.astype(np.uint64) ^ key) >> np.uint64(49), 1).astype(np.int16)


UTILITIES = decoded(np.arange(MOST_CODE + 1))
