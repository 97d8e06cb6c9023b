"""A multi-layer perceptron over everything at once: the simplest interaction.

    h = MLP([e_1; …; e_N; dense])

B examples, N embeddings of width D, C dense features, H width of the representation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from pydantic import Field
from torch import Tensor

from exfm.errors import ConfigError
from exfm.interactions.interaction import Axes, InputLabels, Interaction, InteractionOptions, widen
from exfm.randomness import seeded_mlp


class ConcatMLP(Interaction):
    """Shapes: (B, N, D), (B, C) -> (B, H). Raises ConfigError without any layer.

    >>> trunk = ConcatMLP(3, 4, 2, sizes=(8,), generator=torch.Generator())
    >>> trunk(torch.zeros(5, 3, 4), torch.zeros(5, 2)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self, num_sparse: int, width: int, num_dense: int, *, sizes: Sequence[int], generator: torch.Generator
    ):
        super().__init__()
        if not sizes:
            raise ConfigError("the trunk `mlp` has 0 layers; give `mlp` at least one size")
        self.width = width
        self.layers = seeded_mlp(num_sparse * width + num_dense, sizes, generator)
        self.out_width = sizes[-1]

    def forward(self, e_BND: Tensor, dense_BC: Tensor) -> Tensor:
        return self.layers(torch.cat([e_BND.flatten(1), dense_BC], dim=1))

    def feature_axes(self, inputs: InputLabels) -> dict[str, Axes]:
        return {"layers.0.weight": (None, (*product(inputs.embeddings, range(self.width)), *inputs.dense))}


class MLPOptions(InteractionOptions):
    """Settings of a multi-layer perceptron."""

    sizes: tuple[int, ...] = Field(default=(256, 128), description="Sizes of its layers.")

    def build(self, embeddings: int, width: int, dense: int, generator: torch.Generator) -> ConcatMLP:
        return ConcatMLP(embeddings, width, dense, sizes=self.sizes, generator=generator)

    def widened(self, times: float, inputs: int) -> MLPOptions:
        return MLPOptions(sizes=widen(MLPOptions().sizes, times))
