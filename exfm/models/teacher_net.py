"""The teacher's network: tables, units, an interaction trunk and a head per task.

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from exfm.data import FeatureSet
from exfm.embeddings import AccumulatorConfig, SparseOptimizer, embedding_bags
from exfm.errors import ConfigError
from exfm.layers import (
    Axes,
    DCNOptions,
    DLRMOptions,
    InteractionOptions,
    Prior,
    Units,
    WukongOptions,
    WukongSizes,
    input_labels,
    interaction_options,
    seeded_mlp,
    with_complete_options,
)
from exfm.randomness import named_generator


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
    dlrm: DLRMOptions = Field(default=DLRMOptions(), description="Settings of the interaction `dlrm`.")
    dcn: DCNOptions = Field(default=DCNOptions(), description="Settings of the interaction `dcn`.")
    options: dict[str, Any] = Field(
        default={}, description="Settings of any other interaction.", exclude_if=lambda options: not options
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
        exclude_if=lambda wide: wide,
        description="Stack the network on a linear model of the same ids (FTRL-proximal): a teacher that has seen few "
        "rows is then as good as that. It takes a weight and an accumulator per row and task, four at least.",
    )
    prior: bool = Field(
        default=True,
        description="Whether the log-odds of the label rate so far is part of every logit.",
        exclude_if=lambda on: on,
    )
    dense_dtype: Literal["float32", "float64"] = Field(
        default="float32", description="Precision of all but the tables; float64 is for comparing plans."
    )

    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        exclude_if=lambda precision: precision == "fp32",
        description="What products of matrices are computed in. `bf16` is faster where the hardware has it and the "
        "teacher is wide; weights, optimizers, embeddings, pooling of sequences and logits stay fp32.",
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


class TeacherNet(nn.Module):
    """Tables, units, interaction, a head per task and the prior: (KeyedJaggedTensor, (B, dense)) -> logits (B, T).

    All but the tables are of `dense_dtype`, and so are the logits.

    The dense part works on a copy of the pooled embeddings that is cut off from the tables; `cut` holds both ends, so
    that the tables learn only after every gradient was seen finite.

    Raises ConfigError for a feature whose width is not a multiple of the teacher's.
    """

    def __init__(
        self,
        cfg: TeacherConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        seed: int,
        *,
        tables: EmbeddingBagCollection | None = None,
    ):
        """`tables`: made elsewhere, on the meta device where they are to be sharded before anything is in them."""
        super().__init__()
        self.units = Units(features, cfg.width, seed)
        self.keys = list(features.keys)
        self.tables = embedding_bags(features, cfg.width, seed) if tables is None else tables
        self.trunk = cfg.interaction_settings().build(
            self.units.count, cfg.width, len(features.dense_labels), named_generator(seed, "trunk")
        )
        self.heads = nn.ModuleDict()
        for task in tasks:
            head = seeded_mlp(
                self.trunk.out_width, (*cfg.head, 1), named_generator(seed, f"head/{task}"), last_relu=False
            )
            # An untrained teacher says the same of every row, instead of something random that students would learn.
            nn.init.zeros_(head[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(head[-1].bias)  # type: ignore[arg-type]
            self.heads[task] = head
        self.prior = Prior(len(tasks), on=cfg.prior)
        self.dtype = getattr(torch, cfg.dense_dtype)
        self._bf16 = cfg.precision == "bf16"
        for part in (self.units, self.trunk, self.heads):
            part.to(self.dtype)
        self.cut: tuple[Tensor, Tensor]

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        return self.predict(self.tables(sparse), sparse, dense)

    def predict(self, embeddings: KeyedTensor, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        """Logits from what was looked up."""
        pooled = self._in_order(embeddings)
        e = pooled.detach().to(self.dtype).requires_grad_(self.training)
        self.cut = (pooled, e)
        units = self.units(e, sparse)
        with torch.autocast(e.device.type, torch.bfloat16, enabled=self._bf16):
            h = self.trunk(units, dense.to(self.dtype))
            z = torch.cat([head(h) for head in self.heads.values()], dim=1)
        return self.prior(z.to(self.dtype))

    def feature_axes(self, features: FeatureSet) -> dict[str, Axes]:
        """The axes of the dense part that depend on the features, by parameter, for a net like this over `features`.

        Raises ModelError where the interaction does not declare its own.
        """
        inputs = input_labels(features, self.units.width)
        axes = {f"trunk.{name}": of for name, of in self.trunk.feature_axes(inputs).items()}
        if (h := self.trunk.output_labels(inputs)) is not None:
            axes |= {f"heads.{task}.0.weight": (None, h) for task in self.heads}
        return axes

    def _in_order(self, pooled: KeyedTensor) -> Tensor:
        """(B, sum of widths) in the order of the keys; sharded over ranks, they come in order of rank."""
        if pooled.keys() == self.keys:
            return pooled.values()
        return KeyedTensor.regroup([pooled], [self.keys])[0]
