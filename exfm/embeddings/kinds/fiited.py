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

The exact utility of FIITED is not published; this one is ours. It is kept in 16 bits, 512 log₂ u: a step adds nothing
to a utility 1,477 times as large. Equal utilities: the lower id, then the lower chunk.

V virtual rows, C chunks, w = D / C columns of a chunk, P rows of the pool, U ids of a step. An element is a chunk of an
id: number i · C + c.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from exfm.embeddings.composed import Composed, Seen
from exfm.embeddings.kinds.settings import MOST, EmbeddingSettings, Tabled
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

    def table(self, feature: Tabled, width: int) -> Composed:
        if width % (4 * self.chunks):
            raise ConfigError(
                f"embeddings.{feature.name} cuts {width} columns in {self.chunks} chunks, and each must be a multiple "
                f"of 4 wide (FBGEMM's rows are); take a multiple of {4 * self.chunks} as width, or other `chunks`"
            )
        if (self.rows or feature.rows) * self.chunks > MOST:
            raise ConfigError(
                f"embeddings.{feature.name} keeps an address for each of {self.chunks} chunks of "
                f"{self.rows or feature.rows:,} ids; give it `rows`, which ids are taken modulo"
            )
        return FiitedTable(feature.name, keys_of(feature), width, self, feature.rows)

    def linear_rows(self, feature: Tabled) -> int:
        return self.rows or feature.rows


class FiitedTable(Composed):
    """Vectors of `ids` ids, or of as many virtual rows as `settings` say, in chunks of one pool of rows.

    >>> import torch
    >>> table = FiitedTable("ad", ("ad",), 8, Fiited(kind="fiited", chunks=2, keep=0.5, headroom=0), ids=10)
    >>> table.tables
    (Table(name='ad', rows=10, width=4, keys=('ad~0', 'ad~1'), hashed=False, bound=0.31622776601683794),)
    >>> table.read(torch.tensor([3]))
    [tensor([-2]), tensor([-2])]
    >>> begun = table.learn(Seen(torch.tensor([3]), torch.tensor([1]), lambda C: torch.ones(1, C).double(), None))
    >>> table.read(torch.tensor([3, 13]))
    [tensor([0, 0]), tensor([1, 1])]
    """

    served = ("address",)

    def __init__(self, name: str, keys: tuple[str, ...], width: int, settings: Fiited, ids: int) -> None:
        self.settings, self.virtual, self.chunks = settings, settings.rows or ids, settings.chunks
        self.rows, self.headroom = _pool(name, self.virtual, width, settings)
        of_chunks = tuple(f"{key}~{c}" for key in keys for c in range(self.chunks))
        pool = Table(name, self.rows, width // self.chunks, of_chunks, bound=self.virtual**-0.5)
        super().__init__(name, keys, width, [pool])
        shape = (self.virtual, self.chunks)
        self.address = torch.empty(shape, dtype=torch.int32)  # row of the pool, or below 0
        self.utility = torch.zeros(shape, dtype=torch.int16)  # codes: 0 is none
        self.free = torch.zeros(max(1, self.headroom), dtype=torch.int32)  # a stack of rows that had owners
        self.clock = torch.zeros(4, dtype=torch.int64)  # steps, rows that ever had owners, rows in `free`, the seed
        self.draw(0)

    def read(self, ids_N: Tensor) -> list[Tensor]:
        rows_CN = torch.empty(self.chunks, len(ids_N), dtype=torch.int64)
        read_addresses(ids_N.contiguous().numpy(), self.address.numpy(), rows_CN.numpy())
        return list(rows_CN)

    def tensors(self) -> dict[str, Tensor]:
        return {"address": self.address, "utility": self.utility, "free": self.free, "clock": self.clock}

    def draw(self, seed: int) -> None:
        self.clock.copy_(torch.tensor([0, 0, 0, seed]))
        self.utility.zero_()
        self.free.zero_()
        if self.learns:
            self.address.fill_(UNSEEN)
        else:
            torch.arange(self.rows, out=self.address.view(-1))

    @property
    def learns(self) -> bool:
        return self.rows < self.virtual * self.chunks

    def learn(self, seen: Seen) -> list[Begun]:
        steps, seed = int(self.clock[0]), int(self.clock[3])
        pruned = self._prune() if steps and steps % self.settings.every == 0 else _NONE
        welcome = _NONE
        if len(seen.ids):
            welcome = self._welcome(self._note(seen, seed))
        self.clock[0] += 1
        elements, rows = (torch.from_numpy(np.concatenate(both)) for both in zip(pruned, welcome, strict=True))
        if not len(rows):
            return []
        w = self.tables[0].width
        return [Begun(self.name, rows, initial_rows(self.name, elements, w, seed, self.virtual**-0.5))]

    def forget(self, ids: Tensor) -> list[Begun]:
        """Drop ids, as far as they have rows: these begin anew, and so do their utilities."""
        virtual = np.unique(ids.numpy() % self.virtual)
        self.utility[torch.from_numpy(virtual)] = 0
        elements = (virtual[:, None] * self.chunks + np.arange(self.chunks)).ravel()
        rows = self.address.numpy().reshape(-1)[elements]
        held, seed, w = rows >= 0, int(self.clock[3]), self.tables[0].width
        values = initial_rows(self.name, torch.from_numpy(elements[held]), w, seed, self.virtual**-0.5)
        return [Begun(self.name, torch.from_numpy(rows[held].astype(np.int64)), values)]

    @property
    def live(self) -> int:
        """Chunks that have rows."""
        return int(self.clock[1] - self.clock[2]) if self.learns else self.rows

    def figures(self) -> dict[str, int]:
        return {"rows": self.rows, "taken": self.live} if self.learns else {}

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
        available = self.rows - int(self.clock[1]) + int(self.clock[2])
        new = new[: available // self.chunks]
        rows = self._taken(len(new) * self.chunks)
        address[new] = rows.reshape(-1, self.chunks)
        return (new[:, None] * self.chunks + np.arange(self.chunks)).ravel(), rows

    def _prune(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the rows to the elements of the largest utilities, of all ids seen so far. Returns the elements that had
        no row, and their rows."""
        address, codes, counts = self.address.numpy(), self.utility.numpy(), np.zeros(MOST_CODE + 1, np.int64)
        judged = count_codes(address, codes, counts)
        most = self.rows - min(self.headroom, (self.virtual - judged) * self.chunks)
        least, ties = -1, 0  # all of them
        if judged * self.chunks > most:
            at_least = counts[::-1].cumsum()[::-1]
            least = int(np.flatnonzero(at_least >= most)[-1])
            ties = most - int(at_least[least] - counts[least])
        gained, lost = np.empty(self.rows, np.int64), np.empty(self.rows, np.int64)
        G, L = prune(address, codes, least, ties, self._less(), gained, lost)
        gained = gained[:G]
        ever, stacked = self.clock[1:3].tolist()
        free = self.free.numpy()
        back = np.sort(np.concatenate([free[:stacked], lost[:L]]))
        reused = min(G, len(back))
        rows = np.concatenate([back[:reused], np.arange(ever, ever + G - reused)])
        left = back[reused:][::-1]  # fits: at most `headroom` rows are free once a chunk was lost
        free[: len(left)] = left
        self.clock[1], self.clock[2] = ever + G - reused, len(left)
        address.reshape(-1)[gained] = rows
        return gained, rows

    def _taken(self, count: int) -> np.ndarray:
        """Free rows: of earlier owners, the lowest first, and then such as never had one."""
        ever, stacked = self.clock[1:3].tolist()
        reused = min(count, stacked)
        rows = np.concatenate(
            [self.free.numpy()[stacked - reused : stacked][::-1], np.arange(ever, ever + count - reused)]
        )
        self.clock[1], self.clock[2] = ever + count - reused, stacked - reused
        return rows

    def _less(self) -> int:
        """Steps that a code falls by at each pruning, at least one; those of a coin stay."""
        if self.settings.rule == "random" or self.settings.decay == 1:
            return 0
        return min(MOST_CODE, max(1, round(-PER_OCTAVE * math.log2(self.settings.decay))))


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


def bytes_of(virtual: int, width: int, chunks: int, rows: int, free: int) -> int:
    """Bytes of a table in training: weights and row-wise accumulators of `rows` chunks; of `virtual` ids addresses and
    utilities; so many places for free rows, and the clock.

    >>> bytes_of(1000, 16, 4, 1000, 100) == 16_000 + 4_000 + 16_000 + 8_000 + 400 + 32
    True
    """
    return (4 * (width // chunks) + 4) * rows + 6 * virtual * chunks + 4 * free + 32


def keep_within(budget_bytes: int, virtual: int, width: int, chunks: int, headroom: float = 0.1) -> float:
    """The largest share of chunks that a table can keep within so many bytes; 0 where there is none.

    >>> keep_within(44_432, 1000, 16, 4), keep_within(20_000, 1000, 16, 4)
    (0.25025, 0.0)
    """

    def total(millionths: int) -> int:
        return bytes_of(virtual, width, chunks, *pool_of(virtual, chunks, millionths / 1e6, headroom))

    return max(0, bisect_right(range(1_000_001), budget_bytes, key=total) - 1) / 1e6


def pool_of(virtual: int, chunks: int, keep: float, headroom: float) -> tuple[int, int]:
    """Rows of a pool, and how many of them a pruning leaves free at most: whole ids', and never all of them.

    >>> pool_of(1000, 4, 0.25, 0.1), pool_of(1000, 4, 1.0, 0.1), pool_of(3, 4, 0.5, 0.1)
    ((1000, 100), (4000, 0), (6, 2))
    """
    rows = int(keep * virtual * chunks)
    whole = math.ceil(headroom * rows / chunks) * chunks
    return rows, 0 if rows == virtual * chunks else max(0, min(whole, rows - chunks))


def _pool(name: str, virtual: int, width: int, settings: Fiited) -> tuple[int, int]:
    C, keep, asked = settings.chunks, settings.keep, f"keeps {settings.keep:g} of the chunks"
    if settings.budget_bytes is not None:
        keep = keep_within(settings.budget_bytes, virtual, width, C, settings.headroom)
        asked = f"is to fit in {settings.budget_bytes:,} bytes"
    rows, free = pool_of(virtual, C, keep, settings.headroom)
    if rows < C:
        least = bytes_of(virtual, width, C, C, 1)
        raise ConfigError(
            f"embeddings.{name} {asked} of {virtual:,} ids, which leaves {rows} rows for chunks, and one id has {C}; "
            f"give it at least {C / (virtual * C):.2g} (`keep`) or {least:,} bytes (`budget_bytes`), or fewer `rows`"
        )
    return rows, free


def _coins(name: str, elements: np.ndarray, seed: int) -> np.ndarray:
    """Codes of a coin for every element, drawn once: a function of the seed, the table's name and the element."""
    key = np.uint64(named_generator(seed, f"coins/{name}").initial_seed() & (2**64 - 1))
    return np.maximum(mixed(elements.astype(np.uint64) ^ key) >> np.uint64(49), 1).astype(np.int16)


UTILITIES = decoded(np.arange(MOST_CODE + 1))
_NONE = (np.zeros(0, np.int64), np.zeros(0, np.int64))
