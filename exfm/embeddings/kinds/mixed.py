"""Narrow rows and a trainable map to the model's width (mixed dimensions, Ginart et al. 2019, arXiv 1909.11810).

    e = Pᵀ w_i,  P (d, D), without a bias          d < D columns a row; bags are summed, and then mapped
    d = D · (200 / n)^α,  down to a power of 2     the power rule over n ids: wide where there are few

Inside a table, blocks of popular ids are wider. All ids have the columns of the narrowest block; an id of a wider one
has a row of more columns beside it, in a plain table with rows for that block:

    w_i = [base_i; more_1[a_1(i)]; more_2[a_2(a_1(i))]; …]        nothing, as if zeros, from where an id has no row

An id begins narrow. Every `every` steps the ids seen most often so far get the wider rows: nothing is known of the
future, a stream needs no past, and who is where is a function of the steps. Equal counts: who has the wider row, then
the lower id. A row that changes its owner begins at zero, so an id that moves up reads what it read before; one that
moves down loses the columns. The authors' blocks are fixed, and each has a map of its own: these share columns of one.

FBGEMM's rows are multiples of 4 wide, so d is at least 4. P learns by AdaGrad, an accumulator per weight; it begins in
±√(3 / d) of the narrowest d, so that an embedding begins as large as its row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from torch import Tensor

from exfm.embeddings.composed import Composed, Seen
from exfm.embeddings.kinds.settings import EmbeddingSettings, Tabled
from exfm.embeddings.table import Begun, Table, keys_of
from exfm.errors import ConfigError
from exfm.randomness import named_generator

FEW = 200
"""Ids up to which a table keeps the model's width under the power rule, as in the authors' code."""
NARROWEST = 4
TEMPERATURES = [t / 20 for t in range(41)]
MOST_COUNT = 2**31 - 1
"""Where counts stop."""


class PopularBlock(BaseModel):
    """A share of a table's ids, and the columns of their rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(gt=0, lt=1, description="Share of the table's ids.")
    width: int | None = Field(
        default=None, ge=NARROWEST, multiple_of=NARROWEST, description="Columns of a row; else by the power rule."
    )


class Mixed(EmbeddingSettings):
    """Narrow rows with a trainable map to the model's width. Give `width`, or for the power rule `temperature` or
    `budget_bytes`."""

    kind: Literal["mixed"] = Field(description="Narrow rows, and a trainable map to the model's width.")
    width: int | None = Field(default=None, ge=NARROWEST, multiple_of=NARROWEST, description="Columns of a row.")
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="α of the power rule instead: 0 is the model's width for every table."
    )
    budget_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes instead of a temperature, never exceeded: of all tensors, with row-wise accumulators.",
    )
    blocks: tuple[Annotated[PopularBlock, WithJsonSchema(PopularBlock.model_json_schema())], ...] = Field(
        default=(),
        description="Wider blocks for the ids seen most often so far, the most popular first; all others have `width`.",
    )
    every: int = Field(default=40, gt=0, description="Steps from one choice of the blocks' ids to the next.")

    @property
    def grows(self) -> bool:  # type: ignore[override]  # by the power rule, the width depends on the number of ids
        return self.width is not None and not self.blocks

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return bool(self.blocks)

    def table(self, feature: Tabled, width: int) -> Composed:
        of = f"embeddings.{feature.name}"
        if sum(given is not None for given in (self.width, self.temperature, self.budget_bytes)) != 1:
            raise ConfigError(
                f"{of} is `mixed`, which has a `width`, or a `temperature` or `budget_bytes` that gives it; give one "
                "of them"
            )
        self._check_blocks(of)
        if self.budget_bytes is None:
            return self._table(feature, width, self.temperature or 0.0)
        for temperature in TEMPERATURES:
            with torch.device("meta"):
                least = _bytes_of(self._table(feature, width, temperature))
            if least <= self.budget_bytes:
                return self._table(feature, width, temperature)
        raise ConfigError(
            f"{of} is to fit in {self.budget_bytes:,} bytes, and takes {least:,} with {feature.rows:,} rows of "
            f"{NARROWEST} columns, the narrowest that FBGEMM has; give it these, or another kind: hash, qr or managed"
        )

    def linear_rows(self, feature: Tabled) -> int:
        return feature.rows

    def _check_blocks(self, of: str) -> None:
        if (shares := sum(block.share for block in self.blocks)) >= 1:
            raise ConfigError(
                f"{of}.blocks hold {shares:.4g} of the ids, and the others have `width`; leave a share to them"
            )
        widths = [block.width for block in self.blocks]
        if self.width is None:
            if any(width is not None for width in widths):
                raise ConfigError(f"{of}.blocks have widths, and the power rule gives them; leave them out")
        elif None in widths or any(more <= less for more, less in pairwise([*widths, self.width])):  # type: ignore[operator]
            raise ConfigError(
                f"{of}.blocks are {', '.join(map(str, widths))} wide, and the others {self.width}; give each a "
                "`width`, the most popular block the largest"
            )

    def _table(self, feature: Tabled, width: int, temperature: float) -> MixedTable:
        """Base and wider blocks, each with the columns that it has beyond the one before."""
        shares = [1.0, *list(accumulate(block.share for block in self.blocks))[::-1]]
        rows = [feature.rows, *(max(1, int(share * feature.rows)) for share in shares[1:])]
        widths = [self.width, *(block.width for block in self.blocks[::-1])]
        own = [d or power_rule(n, width, temperature) for d, n in zip(widths, rows, strict=True)]
        if own[-1] > width:
            raise ConfigError(
                f"embeddings.{feature.name} has rows {own[-1]} wide for embeddings of {width}; take a width of at most "
                f"{width}, or leave the table `full`"
            )
        if len(rows) > 1 and rows[1] >= 2**31:
            raise ConfigError(f"embeddings.{feature.name}.blocks hold {rows[1]:,} ids, of at most {2**31 - 1:,}")
        keys, tables = keys_of(feature), [Table.of(feature, own[0])]
        for n, (less, more) in enumerate(pairwise(own), start=1):
            if more > less:
                tables.append(Table(f"{feature.name}~{n}", rows[n], more - less, tuple(f"{key}~{n}" for key in keys)))
        return MixedTable(feature.name, keys, width, tables, self.every)


class MixedTable(Composed):
    """A row per id, mapped to `width` columns: of the first table; popular ids have more columns in further ones.

    >>> from exfm.features.sparse import SparseFeature
    >>> made = Mixed(kind="mixed", width=4, blocks=[{"share": 0.1, "width": 8}], every=1)
    >>> table = made.table(SparseFeature(name="ad", rows=20), 8)
    >>> table.tables[1]
    Table(name='ad~1', rows=2, width=4, keys=('ad~1',), hashed=False, bound=None)
    >>> [begun] = table.learn(Seen(torch.tensor([7, 9]), torch.tensor([1, 5]), norms=None, time_ms=None))
    >>> table.read(torch.tensor([3, 9]))
    [tensor([3, 9]), tensor([-1,  1])]
    """

    def __init__(self, name: str, keys: tuple[str, ...], width: int, tables: Sequence[Table], every: int) -> None:
        super().__init__(name, keys, width, tables)
        columns = sum(table.width for table in tables)
        self._every = every
        self._projection, self._accumulator = torch.zeros(columns, width), torch.zeros(columns, width)
        self._addresses = {  # of every row of the table before: the row of this one, or below 0
            f"address_{n}": torch.full((less.rows,), -1, dtype=torch.int32)
            for n, (less, _) in enumerate(pairwise(tables), start=1)
        }
        self._counts = torch.zeros(tables[0].rows if self.learns else 0, dtype=torch.int32)
        self._clock = torch.zeros(2, dtype=torch.int64)  # steps, the seed
        self.served = ("projection", *self._addresses)

    @property
    def learns(self) -> bool:
        return len(self.tables) > 1

    def read(self, ids_N: Tensor) -> list[Tensor]:
        found = [ids_N]
        for address in self._addresses.values():
            at = found[-1]
            found.append(address.index_select(0, at.clamp(min=0)).long().masked_fill_(at < 0, -1))
        return found

    def compose(self, parts: list[Tensor], weights: Mapping[str, Tensor]) -> Tensor:
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)) @ weights["projection"]

    def tensors(self) -> dict[str, Tensor]:
        found = {"projection": self._projection, "projection_accumulator": self._accumulator}
        return found | ({**self._addresses, "counts": self._counts, "clock": self._clock} if self.learns else {})

    def learned(self) -> dict[str, Tensor]:
        return {"projection": self._projection}

    def draw(self, seed: int) -> None:
        bound, generator = math.sqrt(3 / self.tables[0].width), named_generator(seed, f"projection/{self.name}")
        self._projection.uniform_(-bound, bound, generator=generator)
        self._accumulator.zero_()
        for address in self._addresses.values():
            address.fill_(-1)
        self._counts.zero_()
        self._clock.copy_(torch.tensor([0, seed]))

    def learn(self, seen: Seen) -> list[Begun]:
        counts, ids = self._counts.numpy(), seen.ids.numpy()
        counts[ids] = np.minimum(counts[ids] + seen.counts.numpy(), MOST_COUNT)
        self._clock[0] += 1
        return [] if int(self._clock[0]) % self._every else self._choose()

    def forget(self, ids: Tensor) -> list[Begun]:
        """Drop ids: counts and wider rows, which are cleared; their narrow rows begin anew."""
        ids = ids.unique()
        before, *wider = self.read(ids)
        self._counts[ids] = 0
        begun = [self.tables[0].begun(ids, int(self._clock[1]))]
        for rows, address, table in zip(wider, self._addresses.values(), self.tables[1:], strict=True):
            address[before[before >= 0]] = -1
            begun.append(table.begun(rows[rows >= 0], None))
            before = rows
        return begun

    def figures(self) -> dict[str, int]:
        """Rows of the wider blocks, and those that are taken."""
        if not self.learns:
            return {}
        taken = sum(int((address >= 0).sum()) for address in self._addresses.values())
        return {"rows": sum(table.rows for table in self.tables[1:]), "taken": taken}

    def _choose(self) -> list[Begun]:
        """Give the wider rows to the ids seen most often so far. Returns the rows that change their owner."""
        base = torch.arange(self.tables[0].rows)
        was = [rows.numpy() for rows in self.read(base)[1:]]
        candidates = np.flatnonzero((self._counts.numpy() > 0) | (was[0] >= 0))
        level = np.sum([rows[candidates] >= 0 for rows in was], axis=0)
        counts = self._counts.numpy()[candidates]
        order = candidates[np.lexsort((candidates, -level, -counts))[: self.tables[1].rows]]
        begun, before = list[Begun](), base.numpy()
        for table, address, rows in zip(self.tables[1:], self._addresses.values(), was, strict=True):
            ids = np.sort(order[: table.rows])
            new = ids[rows[ids] < 0]
            now = np.full(len(rows), -1)
            now[ids] = rows[ids]
            now[new] = np.setdiff1d(np.arange(table.rows), now[ids])[: len(new)]
            address.fill_(-1)
            address.numpy()[before[ids]] = now[ids]
            begun.append(table.begun(torch.from_numpy(now[new]), None))
            before = now
        return begun


def power_rule(ids: int, width: int, temperature: float) -> int:
    """Columns of a row of a table of so many ids: a power of 2, from 4 to `width`.

    >>> [power_rule(ids, 16, 0.3) for ids in (100, 1_000, 10_000, 1_000_000)]
    [16, 8, 4, 4]
    """
    wanted = width * min(1.0, (FEW / ids) ** temperature)
    return width if wanted >= width else max(NARROWEST, 2 ** int(math.log2(wanted)))


def _bytes_of(table: MixedTable) -> int:
    """Bytes of a table in training, with row-wise accumulators."""
    rows = sum(4 * of.rows * (of.width + 1) for of in table.tables)
    return rows + sum(tensor.nbytes for tensor in table.tensors().values())
