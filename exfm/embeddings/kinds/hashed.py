"""Ids modulo a number of rows: ids of one row share it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from exfm.embeddings.composed import Composed
from exfm.embeddings.kinds.settings import EmbeddingSettings, Tabled
from exfm.embeddings.table import Table, keys_of


class Hashed(EmbeddingSettings):
    """A row per hash: id i reads row i mod `rows`."""

    kind: Literal["hash"] = Field(description="A row for many ids.")
    rows: int = Field(gt=0, description="Rows of the table.")

    def table(self, feature: Tabled, width: int) -> Composed:
        return HashedTable(feature.name, keys_of(feature), width, self.rows)

    def linear_rows(self, feature: Tabled) -> int:
        return self.rows


class HashedTable(Composed):
    """Id i reads row i mod `rows` of one table.

    >>> import torch
    >>> HashedTable("ad", ("ad",), 4, rows=10).read(torch.tensor([3, 13]))
    [tensor([3, 3])]
    """

    def __init__(self, name: str, keys: tuple[str, ...], width: int, rows: int) -> None:
        super().__init__(name, keys, width, [Table(name, rows, width, keys, hashed=True)])

    def read(self, ids_N: Tensor) -> list[Tensor]:
        return [ids_N % self.tables[0].rows]
