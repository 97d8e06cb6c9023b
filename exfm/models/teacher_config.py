"""The settings of a teacher."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from exfm.embeddings.adagrad import AccumulatorConfig, SparseOptimizer
from exfm.embeddings.kinds.registry import Embedding
from exfm.errors import ConfigError
from exfm.interactions.dcn import DCNOptions
from exfm.interactions.dlrm import DLRMOptions
from exfm.interactions.hstu import SequenceModel
from exfm.interactions.interaction import InteractionOptions
from exfm.interactions.registry import interaction_options, with_complete_options
from exfm.interactions.wukong import WukongOptions, WukongSizes


class TeacherConfig(WukongSizes):
    """Interaction, size and optimizers of a teacher.

    The settings of `wukong` are fields of the teacher's own; `dlrm` and `dcn` have a section each; every other
    interaction takes its settings as `options`.

    >>> TeacherConfig(width=16).layers
    2
    >>> TeacherConfig(interaction="dlrm", layers=4)
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for TeacherConfig
      Value error, `layers` belongs to a teacher whose interaction is `wukong`, and this one's is `dlrm`; ...
    """

    interaction: str = Field(default="wukong", description="What lies between embeddings and heads, by name.")
    width: int = Field(default=16, gt=0, description="Width of the embeddings.")
    embeddings: dict[str, Embedding] = Field(
        default={},
        description="Kinds of embedding tables, by the table's name; others are `full`, a row per id.",
    )
    dlrm: DLRMOptions = Field(default=DLRMOptions(), description="Settings of the interaction `dlrm`.")
    dcn: DCNOptions = Field(default=DCNOptions(), description="Settings of the interaction `dcn`.")
    options: dict[str, Any] = Field(default={}, description="Settings of any other interaction.")
    sequence: SequenceModel | None = Field(
        default=None, description="A model over the earlier events of a key, such as the user; null: none."
    )
    head: tuple[int, ...] = Field(default=(64,), description="Hidden sizes of every task's head.")
    dense_lr: float = Field(default=2e-3, gt=0, description="Learning rate of Adam, for all but the tables.")
    sparse_optimizer: SparseOptimizer = Field(
        default="row_wise_adagrad", description="AdaGrad of the tables; `adagrad` is the element-wise one."
    )
    sparse_lr: float = Field(default=0.1, gt=0, description="Learning rate of the tables.")
    sparse_eps: float = Field(default=1e-8, gt=0, description="ε of the tables' AdaGrad.")
    accumulators: AccumulatorConfig = Field(
        default=AccumulatorConfig(), description="How the tables' AdaGrad forgets; by default it never does."
    )
    wide: bool = Field(
        default=True,
        description="Stack the network on a linear model of the same ids (FTRL-proximal): a teacher that has seen few "
        "rows is then as good as that. It takes a weight and an accumulator per row and task, four at least.",
    )
    prior: bool = Field(
        default=True,
        description="Whether the log-odds of the label rate so far is part of every logit.",
    )
    dense_dtype: Literal["float32", "float64"] = Field(
        default="float32", description="Precision of all but the tables; float64 is for comparing plans."
    )

    representation: int | None = Field(
        default=None,
        gt=0,
        le=256,
        description="Values of a representation that every row gets beside its logits, a projection of the layer "
        "before the heads; students may read it. null: none.",
    )

    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="What products of matrices are computed in. `bf16` is faster where the hardware has it and the "
        "teacher is wide; weights, optimizers, embeddings, pooling of sequences and logits stay fp32.",
    )

    compile: bool = Field(
        default=False,
        description="Learn and score by machine code, on CPUs. A C++ compiler makes it before the first step, in a "
        "minute or two, and it is kept in the user's cache. Sums are in another order than without.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        flat = ("wukong", "dlrm", "dcn")
        return with_complete_options(data, data.get("interaction"), flat) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options_of_this_interaction(self) -> TeacherConfig:
        interaction_options(self.interaction, {} if self.interaction in _OWN_FIELDS else self.options)
        # Other than the default, not just given: a resolved configuration has all of them in it.
        for owner, names in _OWN_FIELDS.items():
            for name in names:
                if owner != self.interaction and getattr(self, name) != type(self).model_fields[name].default:
                    raise ConfigError(
                        f"`{name}` belongs to a teacher whose interaction is `{owner}`, and this one's is "
                        f"`{self.interaction}`; leave it out, or set interaction to `{owner}`"
                    )
        if self.precision == "bf16" and self.dense_dtype != "float32":
            raise ConfigError(
                f"precision `bf16` computes products of a float32 teacher, and dense_dtype is `{self.dense_dtype}`; "
                "leave one of them out"
            )
        budgets = [name for name, kind in self.embeddings.items() if getattr(kind, "budget_bytes", None) is not None]
        if self.sparse_optimizer == "adagrad" and budgets:
            raise ConfigError(
                f"embeddings.{budgets[0]}.budget_bytes counts an accumulator a row, and sparse_optimizer `adagrad` "
                "keeps one a weight; give `keep` (fiited) or `width` (mixed), or leave `sparse_optimizer` row-wise"
            )
        if self.options and self.interaction in _OWN_FIELDS:
            raise ConfigError(
                f"a teacher whose interaction is `{self.interaction}` takes "
                f"{', '.join(f'`{name}`' for name in _OWN_FIELDS[self.interaction])}, no options, and was given "
                f"{sorted(self.options)}"
            )
        return self

    def interaction_settings(self) -> InteractionOptions:
        """The settings of this teacher's interaction."""
        if self.interaction == "wukong":
            return WukongOptions(**{name: getattr(self, name) for name in _OWN_FIELDS["wukong"]})
        if self.interaction in _OWN_FIELDS:
            return getattr(self, self.interaction)
        return interaction_options(self.interaction, self.options)

    def with_interaction(self, name: str, settings: InteractionOptions) -> TeacherConfig:
        """The same teacher with another interaction."""
        own = set().union(*_OWN_FIELDS.values()) | {"interaction", "options"}
        common = {field: getattr(self, field) for field in type(self).model_fields if field not in own}
        if name == "wukong":
            return TeacherConfig(interaction=name, **common, **settings.model_dump())
        section = {name: settings} if name in _OWN_FIELDS else {"options": settings.model_dump()}
        return TeacherConfig(interaction=name, **common, **section)


_OWN_FIELDS: dict[str, tuple[str, ...]] = {
    "wukong": tuple(WukongSizes.model_fields),
    "dlrm": ("dlrm",),
    "dcn": ("dcn",),
}
"""Interactions whose settings are fields of `TeacherConfig`, from before there were options."""


def wide_columns(tasks: int) -> int:
    """Columns of the linear part's tables: one per task, padded to a multiple of four for FBGEMM.

    >>> wide_columns(1), wide_columns(5)
    (4, 8)
    """
    return 4 * -(-tasks // 4)
