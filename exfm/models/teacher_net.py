"""The teacher's network: tables, units, an interaction trunk and a head per task.

B examples, F sparse features, N embeddings (F, more where a feature is several units wide), D width, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.data import FeatureSet
from exfm.embeddings import embedding_bags
from exfm.layers import (
    Axes,
    Prior,
    Units,
    input_labels,
    seeded_mlp,
)
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel import in_order
from exfm.randomness import named_generator


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
        return self.predict(in_order(self.tables(sparse), self.keys), sparse, dense)

    def predict(self, pooled: Tensor, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
        """Logits from what was looked up, (B, sum of widths) in the order of the keys."""
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
