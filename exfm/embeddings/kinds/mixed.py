"""Narrow rows and a trainable map to the model's width (mixed dimensions, Ginart et al. 2019, arXiv 1909.11810).

    e = Pᵀ w_i,  P (d, D), without a bias          d < D columns a row; bags are summed, and then mapped
    d = D · (200 / n)^α,  down to a power of 2     the power rule over tables of n ids: wide where there are few

FBGEMM's rows are multiples of 4 wide, so d is at least 4. P learns by AdaGrad, an accumulator per weight; it begins in
±√(3 / d), so that an embedding begins as large as its row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from exfm.embeddings.composed import Composed
from exfm.embeddings.kinds.settings import EmbeddingSettings, Tabled
from exfm.embeddings.table import Table, keys_of
from exfm.errors import ConfigError
from exfm.randomness import named_generator

FEW = 200
"""Ids up to which a table keeps the model's width under the power rule, as in the authors' code."""
NARROWEST = 4


class Mixed(EmbeddingSettings):
    """Narrow rows with a trainable map to the model's width. Give `width`, or `temperature` for the power rule."""

    kind: Literal["mixed"] = Field(description="Narrow rows, and a trainable map to the model's width.")
    width: int | None = Field(default=None, ge=NARROWEST, multiple_of=NARROWEST, description="Columns of a row.")
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="α of the power rule instead: 0 is the model's width for every table."
    )

    @property
    def grows(self) -> bool:  # type: ignore[override]  # by the power rule, the width depends on the number of ids
        return self.width is not None

    def table(self, feature: Tabled, width: int) -> Composed:
        if (self.width is None) == (self.temperature is None):
            raise ConfigError(
                f"embeddings.{feature.name} is `mixed`, which has a `width`, or a `temperature` that gives it; give "
                "one of them"
            )
        own = self.width or power_rule(feature.rows, width, self.temperature or 0.0)
        if own > width:
            raise ConfigError(
                f"embeddings.{feature.name} has rows {own} wide for embeddings of {width}; take a width of at most "
                f"{width}, or leave the table `full`"
            )
        return MixedTable(feature.name, keys_of(feature), width, Table.of(feature, own))

    def linear_rows(self, feature: Tabled) -> int:
        return feature.rows


class MixedTable(Composed):
    """A row per id, mapped to `width` columns."""

    served = ("projection",)

    def __init__(self, name: str, keys: tuple[str, ...], width: int, table: Table) -> None:
        super().__init__(name, keys, width, [table])
        self._projection = torch.zeros(table.width, width)
        self._accumulator = torch.zeros(table.width, width)

    def read(self, ids_N: Tensor) -> list[Tensor]:
        return [ids_N]

    def compose(self, parts: list[Tensor], weights: Mapping[str, Tensor]) -> Tensor:
        return parts[0] @ weights["projection"]

    def tensors(self) -> dict[str, Tensor]:
        return {"projection": self._projection, "projection_accumulator": self._accumulator}

    def learned(self) -> dict[str, Tensor]:
        return {"projection": self._projection}

    def draw(self, seed: int) -> None:
        bound, generator = math.sqrt(3 / len(self._projection)), named_generator(seed, f"projection/{self.name}")
        self._projection.uniform_(-bound, bound, generator=generator)
        self._accumulator.zero_()


def power_rule(ids: int, width: int, temperature: float) -> int:
    """Columns of a row of a table of so many ids: a power of 2, from 4 to `width`.

    >>> [power_rule(ids, 16, 0.3) for ids in (100, 1_000, 10_000, 1_000_000)]
    [16, 8, 4, 4]
    """
    wanted = width * min(1.0, (FEW / ids) ** temperature)
    return width if wanted >= width else max(NARROWEST, 2 ** int(math.log2(wanted)))
