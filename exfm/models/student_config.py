"""A student's settings: size, optimizers and arm."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.distillation.arm import Arm
from exfm.embeddings.adagrad import AccumulatorConfig
from exfm.embeddings.kinds.registry import Embedding
from exfm.interactions.registry import TrunkConfig


class LearningRate(BaseModel):
    """Learning-rate schedule: a factor on both rates, a function only of the rows seen.

        factor(n) = min(1, n / warmup_rows) · min(1, √(decay_rows / n))

    >>> rate = LearningRate(warmup_rows=100, decay_rows=1000)
    >>> rate.factor(50), rate.factor(500), rate.factor(4000)
    (0.5, 1.0, 0.5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    warmup_rows: int = Field(default=0, ge=0, description="Rows over which the rates rise from 0.")
    decay_rows: int | None = Field(
        default=None,
        gt=0,
        description="Rows after which the rates fall with the square root of the rows seen; null: they do not.",
    )

    def factor(self, rows: int) -> float:
        """The factor of a step that ends `rows` rows (≥ 1) into the student's life."""
        warm = min(1.0, rows / self.warmup_rows) if self.warmup_rows else 1.0
        return warm * (min(1.0, (self.decay_rows / rows) ** 0.5) if self.decay_rows else 1.0)


class StudentConfig(BaseModel):
    """Size, optimizers and arm of a student.

    >>> StudentConfig(width=4).without_teacher().arm.kind
    'none'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trunk: TrunkConfig = Field(default=TrunkConfig(), description="What lies between embeddings and heads.")
    width: int = Field(default=8, gt=0, multiple_of=4, description="Width of the embeddings.")
    embeddings: dict[str, Embedding] = Field(
        default={},
        description="Kinds of embedding tables, by the table's name; others are `full`, a row per id.",
    )
    dense_lr: float = Field(default=4e-3, gt=0, description="Learning rate of Adam, for all but the tables.")
    sparse_lr: float = Field(default=0.24, gt=0, description="Learning rate of the tables' row-wise AdaGrad.")
    sparse_eps: float = Field(default=1e-8, gt=0, description="ε of the tables' AdaGrad.")
    accumulators: AccumulatorConfig = Field(
        default=AccumulatorConfig(), description="How the tables' AdaGrad forgets; by default it never does."
    )
    learning_rate: LearningRate = Field(
        default=LearningRate(), description="A factor on both learning rates that follows the rows seen."
    )
    prior: bool = Field(
        default=True,
        description="Whether the log-odds of the label rate so far is part of every logit.",
    )
    wide: bool = Field(
        default=True,
        description="Whether a linear model of ids and crosses (FTRL) learns with the network, and the two are "
        "stacked; it needs `prior`.",
    )
    arm: Arm = Field(
        default=Arm.model_validate("recommended"),
        description="How the student uses its teacher; `recommended`, or settings.",
    )

    @model_validator(mode="after")
    def _wide_needs_prior(self) -> StudentConfig:
        if self.wide and not self.prior:
            raise ValueError("`prior: false` needs `wide: false`: the linear part learns what differs from the prior")
        return self

    def without_teacher(self) -> StudentConfig:
        """Settings of the twin: the same, but learning from labels only."""
        return self.model_copy(update={"arm": Arm(kind="none")})
