"""The teacher's network: tables, units, an interaction trunk and a head per task.

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from exfm.data import FeatureSet
from exfm.embeddings import AccumulatorConfig, SparseOptimizer, embedding_bags
from exfm.errors import ConfigError
from exfm.layers import DCN, DLRM, CrossConfig, Units, Wukong, seeded_mlp
from exfm.randomness import named_generator

Interaction = Literal["wukong", "dlrm", "dcn"]


class DLRMOptions(BaseModel):
    """Of a DLRM teacher; the bottom MLP, there if there are dense features, ends in the embedding width."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bottom: tuple[int, ...] = (64,)
    top: tuple[int, ...] = (256, 128)


class DCNOptions(BaseModel):
    """Of a DCN-V2 teacher."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cross: CrossConfig = CrossConfig()
    deep: tuple[int, ...] = (256, 128)


class TeacherConfig(BaseModel):
    """Interaction, size and optimizers of a teacher.

    >>> TeacherConfig(width=16).layers
    2
    >>> TeacherConfig(interaction="dlrm", layers=4)
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for TeacherConfig
      Value error, `layers` belongs to a teacher whose interaction is `wukong`, and this one's is `dlrm`; ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    interaction: Interaction = "wukong"
    width: int = Field(default=16, gt=0)
    # of `wukong`
    layers: int = Field(default=2, gt=0)
    num_fmb: int = Field(default=8, gt=0)
    num_lcb: int = Field(default=8, gt=0)
    rank: int = Field(default=8, gt=0)
    mlp: tuple[int, ...] = (64,)  # hidden sizes inside every factorisation machine block, and of the dense MLP
    attentive: bool = False  # the FM's projection Y from the input, instead of a parameter
    layer_norm: bool = True
    dense_units: int = Field(default=1, gt=0)  # embeddings made of the dense features
    # of the others
    dlrm: DLRMOptions = DLRMOptions()
    dcn: DCNOptions = DCNOptions()
    # of all
    head: tuple[int, ...] = (64,)  # hidden sizes of every task's head
    dense_lr: float = Field(default=2e-3, gt=0)  # Adam
    sparse_optimizer: SparseOptimizer = "row_wise_adagrad"  # of the tables; "adagrad" is element-wise
    sparse_lr: float = Field(default=0.1, gt=0)
    sparse_eps: float = Field(default=1e-8, gt=0)
    accumulators: AccumulatorConfig = AccumulatorConfig()  # AdaGrad's, which otherwise only grow
    dense_dtype: Literal["float32", "float64"] = "float32"  # of all but the tables; double is for comparing plans

    @model_validator(mode="after")
    def _options_of_this_interaction(self) -> TeacherConfig:
        # Other than the default, not just given: a resolved configuration has all of them in it.
        for owner, names in OPTIONS.items():
            for name in names:
                if owner != self.interaction and getattr(self, name) != type(self).model_fields[name].default:
                    raise ConfigError(
                        f"`{name}` belongs to a teacher whose interaction is `{owner}`, and this one's is "
                        f"`{self.interaction}`; leave it out, or set interaction to `{owner}`"
                    )
        return self


OPTIONS: dict[Interaction, tuple[str, ...]] = {
    "wukong": ("layers", "num_fmb", "num_lcb", "rank", "mlp", "attentive", "layer_norm", "dense_units"),
    "dlrm": ("dlrm",),
    "dcn": ("dcn",),
}


def build_interaction(cfg: TeacherConfig, units: int, num_dense: int, seed: int) -> Wukong | DLRM | DCN:
    """What lies between a teacher's units and its heads: (B, N, D), (B, dense) -> (B, `out_width`)."""
    generator = named_generator(seed, "trunk")
    if cfg.interaction == "dlrm":
        bottom = (*cfg.dlrm.bottom, cfg.width) if num_dense else ()
        return DLRM(units, cfg.width, num_dense, bottom=bottom, top=cfg.dlrm.top, generator=generator)
    if cfg.interaction == "dcn":
        return DCN(units, cfg.width, num_dense, cross=cfg.dcn.cross, deep=cfg.dcn.deep, generator=generator)
    return Wukong(
        units,
        cfg.width,
        num_dense,
        layers=cfg.layers,
        num_fmb=cfg.num_fmb,
        num_lcb=cfg.num_lcb,
        rank=cfg.rank,
        hidden=cfg.mlp,
        dense_units=cfg.dense_units,
        attentive=cfg.attentive,
        layer_norm=cfg.layer_norm,
        generator=generator,
    )


class TeacherNet(nn.Module):
    """Tables, units, interaction and a head per task: (KeyedJaggedTensor, (B, dense)) -> logits (B, T).

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
        self.trunk = build_interaction(cfg, self.units.count, len(features.dense), seed)
        self.heads = nn.ModuleDict()
        for task in tasks:
            head = seeded_mlp(
                self.trunk.out_width, (*cfg.head, 1), named_generator(seed, f"head/{task}"), last_relu=False
            )
            # An untrained teacher says the same of every row, instead of something random that students would learn.
            nn.init.zeros_(head[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(head[-1].bias)  # type: ignore[arg-type]
            self.heads[task] = head
        self.dtype = getattr(torch, cfg.dense_dtype)
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
        h = self.trunk(self.units(e, sparse), dense.to(self.dtype))
        return torch.cat([head(h) for head in self.heads.values()], dim=1)

    def _in_order(self, pooled: KeyedTensor) -> Tensor:
        """(B, sum of widths) in the order of the keys; sharded over ranks, they come in order of rank."""
        if pooled.keys() == self.keys:
            return pooled.values()
        return KeyedTensor.regroup([pooled], [self.keys])[0]
