"""AdaGrad that forgets, for models that run for months.

    w_r ← w_r − lr · g_r / (√m_r + ε)        m_r ← φ · m_r    each time the rows learned pass a multiple of I

m_r adds up squared gradients over a row's whole life, so its steps shrink as 1/√t: after months it follows no drift.

    half_life_rows: H       I = H / 16, φ = 2^(−1/16): m forgets smoothly, a row's steps stop shrinking
    reset_every_rows: N     I = N, φ = 0: every row starts over, its next step as large as its first
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from exfm.errors import ConfigError

PER_HALF_LIFE = 16  # each scaling costs one pass over all accumulators, and changes steps by 2 %
SMALLEST = 1e-30  # below, zero: denormal numbers cost CPUs a hundred times more

SparseOptimizer = Literal["row_wise_adagrad", "adagrad"]
"""A table's AdaGrad: one accumulator per row, or one per weight."""


class AccumulatorConfig(BaseModel):
    """Settings of how accumulators forget as rows are learned. By default they never do; the two settings exclude each
    other.

    >>> AccumulatorConfig(reset_every_rows=1000).factor(900, 1100)
    0.0
    >>> halving = AccumulatorConfig(half_life_rows=1600)
    >>> halving.factor(0, 99), halving.factor(0, 1600), halving.factor(0, 99) * halving.factor(99, 1600)
    (1.0, 0.5, 0.5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    half_life_rows: int | None = Field(
        default=None, gt=0, description="After this many learned rows, an accumulator counts half."
    )
    reset_every_rows: int | None = Field(
        default=None, gt=0, description="Accumulators are set to 0 each time this many rows have been learned."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> AccumulatorConfig:
        if self.half_life_rows and self.reset_every_rows:
            raise ConfigError(
                f"accumulators can halve every {self.half_life_rows:,} rows or be reset every "
                f"{self.reset_every_rows:,}, not both; drop one of half_life_rows and reset_every_rows"
            )
        return self

    @property
    def only_grow(self) -> bool:
        return not (self.half_life_rows or self.reset_every_rows)

    def factor(self, before: int, after: int) -> float:
        """The factor to scale accumulators by once the rows learned went from `before` to `after`; 1 for most steps."""
        if self.reset_every_rows:
            return float(before // self.reset_every_rows == after // self.reset_every_rows)
        if self.half_life_rows:
            passed = [PER_HALF_LIFE * rows // self.half_life_rows for rows in (before, after)]
            return 2.0 ** ((passed[0] - passed[1]) / PER_HALF_LIFE)
        return 1.0


def scale_accumulator(accumulator: Tensor, factor: float) -> None:
    """Multiply in place, any shape; tiny results become zero. Each element's result depends on it alone."""
    torch.threshold_(accumulator.mul_(factor), SMALLEST, 0.0)
