"""Quotient and remainder, and more complementary partitions: an id is told apart by several rows of small tables
(Shi et al. 2019, arXiv 1909.02107).

    i = d_1 + d_2·b_1 + d_3·b_1·b_2 + …,  d_j < b_j        digits of the id: exact, in 64-bit integers
    e = a_k[d_k] ⊙ Π_j (1 + a_j[d_j])                      op `mult`
    e = Σ_j a_j[d_j]                                       op `add`
    e = [a_1[d_1]; …; a_k[d_k]]                            op `concat`, each D / k wide

With k = 2 and b_1 = m, d_1 is the remainder and d_2 the quotient: n ids take m + ⌈n / m⌉ rows. No two ids have all
digits alike. Products are of an id's own rows, and then pooled: the reference implementation pools first, which is
another function of a bag of several ids. The factors 1 + a_j begin with a standard deviation of .125 around 1.

Ids of an open space are hashed to a domain of n = the feature's `rows`: two of N ids then share all rows as often as
two of N hashes are equal, about N² / 2n pairs (`exfm plan --embeddings --from RUN` estimates them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from torch import Tensor

from exfm.embeddings.composed import Composed
from exfm.embeddings.kinds.settings import EmbeddingSettings, Tabled
from exfm.embeddings.table import Table, keys_of
from exfm.errors import ConfigError

AROUND_ONE = 0.125 * 3**0.5  # bound of a uniform distribution of that standard deviation


class QR(EmbeddingSettings):
    """Rows of several small tables, composed: a quotient and a remainder, or more digits of the id."""

    kind: Literal["qr"] = Field(description="Rows of small tables, composed.")
    op: Literal["mult", "add", "concat"] = Field(
        default="mult", description="Multiply the rows of an id, add them, or put them side by side."
    )
    collisions: int | None = Field(
        default=None, gt=1, description="Ids that share a quotient; by default 4, unless `partitions` is given."
    )
    partitions: int | None = Field(
        default=None, ge=2, le=8, description="So many digits of equal size instead, each its table."
    )

    def table(self, feature: Tabled, width: int) -> Composed:
        if self.collisions and self.partitions:
            raise ConfigError(
                f"embeddings.{feature.name} has collisions {self.collisions} and partitions {self.partitions}; "
                "leave one of them out"
            )
        bases = bases_of(feature.rows, self.collisions or (None if self.partitions else 4), self.partitions or 2)
        if self.op == "concat" and width % (4 * len(bases)):
            raise ConfigError(
                f"embeddings.{feature.name} puts {len(bases)} rows side by side in {width} columns, and each part must "
                f"be a multiple of 4 wide (FBGEMM's rows are); take a width that is a multiple of {4 * len(bases)}, or "
                "op `mult` or `add`"
            )
        return QRTable(feature.name, keys_of(feature), width, bases, self.op)

    def linear_rows(self, feature: Tabled) -> int:
        return max(bases_of(feature.rows, self.collisions or (None if self.partitions else 4), self.partitions or 2))


class QRTable(Composed):
    """Ids below the product of `bases`, by digits of these bases.

    >>> import torch
    >>> table = QRTable("ad", ("ad",), 4, (4, 3), "add")
    >>> table.read(torch.tensor([0, 5, 11]))
    [tensor([0, 1, 3]), tensor([0, 1, 2])]
    >>> [(plain.name, plain.rows) for plain in table.tables]
    [('ad~0', 4), ('ad~1', 3)]
    """

    def __init__(
        self,
        name: str,
        keys: tuple[str, ...],
        width: int,
        bases: tuple[int, ...],
        op: Literal["mult", "add", "concat"],
    ) -> None:
        last, n = len(bases) - 1, math.prod(bases)

        def bound(j: int) -> float | None:
            return None if op != "mult" else n**-0.5 if j == last else AROUND_ONE

        own = width // len(bases) if op == "concat" else width
        tables = [
            Table(f"{name}~{j}", base, own, tuple(f"{key}~{j}" for key in keys), bound=bound(j))
            for j, base in enumerate(bases)
        ]
        super().__init__(name, keys, width, tables)
        self.bases, self.op, self.each = bases, op, op == "mult"

    def read(self, ids_N: Tensor) -> list[Tensor]:
        digits, rest = list[Tensor](), ids_N
        for base in self.bases[:-1]:
            digits.append(rest % base)
            rest = rest // base
        return [*digits, rest]

    def compose(self, parts: list[Tensor], weights: Mapping[str, Tensor]) -> Tensor:
        if self.op == "concat":
            return super().compose(parts, weights)
        *factors, product = parts
        for factor in factors:
            product = product * (1 + factor) if self.op == "mult" else product + factor
        return product


def bases_of(ids: int, collisions: int | None, partitions: int = 2) -> tuple[int, ...]:
    """Bases whose product is at least `ids`: the number of collisions first, or `partitions` nearly equal ones.

    >>> bases_of(10, 4), bases_of(1_000_000, None, 3), bases_of(7, 100)
    ((4, 3), (100, 100, 100), (7, 1))
    """
    if collisions:
        first = min(collisions, ids)
        return first, -(-ids // first)
    base = max(1, round(ids ** (1 / partitions)))
    while base**partitions < ids:
        base += 1
    while base > 1 and (base - 1) ** partitions >= ids:
        base -= 1
    return (base,) * partitions
