"""The teacher's network: tables, an interaction trunk and a head per task.

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from exfm.decay import Accumulators
from exfm.embeddings import bag_configs, embedding_bags, named_generator
from exfm.errors import ConfigError
from exfm.features import FeatureSet
from exfm.interactions.mlp import mlp
from exfm.interactions.wukong import Wukong


class TeacherConfig(BaseModel):
    """Size and optimizers of a teacher.

    >>> TeacherConfig(width=16).layers
    2
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=16, gt=0)
    layers: int = Field(default=2, gt=0)
    num_fmb: int = Field(default=8, gt=0)
    num_lcb: int = Field(default=8, gt=0)
    rank: int = Field(default=8, gt=0)
    mlp: tuple[int, ...] = (64,)  # hidden sizes inside every factorisation machine block, and of the dense MLP
    attentive: bool = False  # the FM's projection Y from the input, instead of a parameter
    dense_units: int = Field(default=1, gt=0)  # embeddings made of the dense features
    head: tuple[int, ...] = (64,)  # hidden sizes of every task's head
    dense_lr: float = Field(default=2e-3, gt=0)  # Adam
    sparse_lr: float = Field(default=0.1, gt=0)  # row-wise AdaGrad
    sparse_eps: float = Field(default=1e-8, gt=0)
    accumulators: Accumulators = Accumulators()  # AdaGrad's, which otherwise only grow


class TeacherNet(nn.Module):
    """Tables, Wukong trunk and a head per task: (KeyedJaggedTensor, (B, dense)) -> logits (B, T).

    A feature of width m·D counts as m embeddings. The dense part works on a copy of the pooled embeddings that is cut
    off from the tables; `cut` holds both ends, so that the tables learn only after every gradient was seen finite.

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
        for table in bag_configs(features, cfg.width):
            if table.embedding_dim % cfg.width:
                raise ConfigError(
                    f"feature `{table.name}` is {table.embedding_dim} wide, the teacher {cfg.width}; "
                    f"make it a multiple of {cfg.width}, or leave its width out"
                )
        self.width = cfg.width
        self.feature_names = list(features.sparse_names)
        self.tables = embedding_bags(features, cfg.width, seed) if tables is None else tables
        self.trunk = Wukong(
            sum(table.embedding_dim for table in self.tables.embedding_bag_configs()) // cfg.width,
            cfg.width,
            len(features.dense),
            layers=cfg.layers,
            num_fmb=cfg.num_fmb,
            num_lcb=cfg.num_lcb,
            rank=cfg.rank,
            hidden=cfg.mlp,
            dense_units=cfg.dense_units,
            attentive=cfg.attentive,
            generator=named_generator(seed, "trunk"),
        )
        self.heads = nn.ModuleDict()
        for task in tasks:
            head = mlp(self.trunk.out_width, (*cfg.head, 1), named_generator(seed, f"head/{task}"), last_relu=False)
            # An untrained teacher says the same of every row, instead of something random that students would learn.
            nn.init.zeros_(head[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(head[-1].bias)  # type: ignore[arg-type]
            self.heads[task] = head
        self.cut: tuple[Tensor, Tensor]

    def forward(self, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        pooled = self._in_order(self.tables(sparse))
        e = pooled.detach().requires_grad_(self.training)
        self.cut = (pooled, e)
        h = self.trunk(e.unflatten(1, (-1, self.width)), dense)
        return torch.cat([head(h) for head in self.heads.values()], dim=1)

    def _in_order(self, pooled: KeyedTensor) -> Tensor:
        """(B, sum of widths) in the order of the features; sharded over ranks, they come in order of rank."""
        if pooled.keys() == self.feature_names:
            return pooled.values()
        return KeyedTensor.regroup([pooled], [self.feature_names])[0]
