"""DCN-V2 (arXiv 2008.13535): explicit crosses of bounded degree, and a deep network.

    x_0 = [e_1; …; e_N; dense]
    x_{l+1} = x_0 ⊙ (W x_l + b) + x_l                                       full rank
    x_{l+1} = x_0 ⊙ (U Vᵀ x_l + b) + x_l                                    low rank
    x_{l+1} = x_0 ⊙ (Σ_i G_i(x_l) U_i g(C_i g(V_iᵀ x_l)) + b) + x_l         mixture of low-rank experts

W is d × d; U and V are d × r, C is r × r; g is tanh, the gates G are a softmax over experts of a linear map (they sum
to 1, so b stands outside of the sum). Layer l covers orders up to l + 1. `stacked`: h = deep(x_L), `parallel`:
h = [x_L; deep(x_0)].

B examples, N embeddings of width D, C dense features, d = N·D + C, K experts, R rank, H width of the representation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from exfm.errors import ConfigError
from exfm.interactions.interaction import Axes, InputLabels, Interaction, InteractionOptions, Labels, widen
from exfm.randomness import seeded_linear, seeded_mlp


class CrossConfig(BaseModel):
    """The explicit part of a DCN-V2: full rank, low `rank`, or a mixture of `experts` of that rank.

    >>> CrossConfig(experts=4)
    Traceback (most recent call last):
    ...
    pydantic_core._pydantic_core.ValidationError: 1 validation error for CrossConfig
      Value error, 4 experts of a cross need a `rank`, and it has none; give one, like a quarter of the input ...
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int = Field(default=2, gt=0, description="Cross layers; layer l covers orders up to l + 1.")
    rank: int | None = Field(default=None, gt=0, description="Rank of the cross weights; null: full rank.")
    experts: int = Field(
        default=1, gt=0, description="Low-rank experts whose sum is weighted by gates; more than one needs a `rank`."
    )
    structure: Literal["stacked", "parallel"] = Field(
        default="stacked",
        description="Whether the deep network follows the crosses (`stacked`) or runs next to them (`parallel`).",
    )

    @model_validator(mode="after")
    def _consistent(self) -> CrossConfig:
        if self.experts > 1 and self.rank is None:
            raise ConfigError(
                f"{self.experts} experts of a cross need a `rank`, and it has none; "
                "give one, like a quarter of the input"
            )
        return self


class FullCross(nn.Module):
    """x_0, x_l -> x_0 ⊙ (W x_l + b) + x_l. Shapes: (B, d), (B, d) -> (B, d)."""

    def __init__(self, d: int, generator: torch.Generator):
        super().__init__()
        self.W = seeded_linear(d, d, generator)

    def forward(self, x_0: Tensor, x: Tensor) -> Tensor:
        return x_0 * self.W(x) + x

    def axes(self, x: Labels) -> dict[str, Axes]:
        return {"W.weight": (x, x), "W.bias": (x,)}


class LowRankCross(nn.Module):
    """x_0, x_l -> x_0 ⊙ (U Vᵀ x_l + b) + x_l. Shapes: (B, d), (B, d) -> (B, d)."""

    def __init__(self, d: int, rank: int, generator: torch.Generator):
        super().__init__()
        self.V_T = seeded_linear(d, rank, generator, bias=False)
        self.U = seeded_linear(rank, d, generator)

    def forward(self, x_0: Tensor, x: Tensor) -> Tensor:
        return x_0 * self.U(self.V_T(x)) + x

    def axes(self, x: Labels) -> dict[str, Axes]:
        return {"V_T.weight": (None, x), "U.weight": (x, None), "U.bias": (x,)}


class MixtureCross(nn.Module):
    """x_0, x_l -> x_0 ⊙ (Σ_i G_i(x_l) U_i g(C_i g(V_iᵀ x_l)) + b) + x_l. Shapes: (B, d), (B, d) -> (B, d).

    The experts' V_i, and their U_i, lie side by side in one matrix each: the sum over experts is that of the product.
    """

    def __init__(self, d: int, rank: int, experts: int, generator: torch.Generator):
        super().__init__()
        self.experts = experts
        self.V_T = seeded_linear(d, experts * rank, generator, bias=False)
        C = [seeded_linear(rank, rank, generator, bias=False).weight.detach() for _ in range(experts)]
        self.C = nn.Parameter(torch.stack(C))  # (K, R, R)
        self.U = seeded_linear(experts * rank, d, generator)
        self.G = seeded_linear(d, experts, generator, bias=False)

    def forward(self, x_0: Tensor, x: Tensor) -> Tensor:
        v_KBR = torch.tanh(self.V_T(x)).unflatten(1, (self.experts, -1)).transpose(0, 1)
        c_BKR = torch.tanh(torch.bmm(v_KBR, self.C.transpose(1, 2))).transpose(0, 1)
        gates_BK = torch.softmax(self.G(x), dim=1)
        return x_0 * self.U((gates_BK.unsqueeze(2) * c_BKR).flatten(1)) + x

    def axes(self, x: Labels) -> dict[str, Axes]:
        return {"V_T.weight": (None, x), "U.weight": (x, None), "U.bias": (x,), "G.weight": (None, x)}


class DCN(Interaction):
    """Embeddings and dense features to a representation.

    Shapes: (B, N, D), (B, C) -> (B, H), H = `out_width`: deep[-1] stacked (d without a deep network), d + deep[-1]
    parallel.

    Raises ConfigError for `parallel` without a deep network.

    >>> rng = torch.Generator()
    >>> trunk = DCN(3, 4, 2, cross=CrossConfig(structure="parallel"), deep=(8,), generator=rng)
    >>> trunk(torch.zeros(5, 3, 4), torch.zeros(5, 2)).shape
    torch.Size([5, 22])
    """

    def __init__(
        self,
        num_sparse: int,
        width: int,
        num_dense: int,
        *,
        cross: CrossConfig,
        deep: Sequence[int],
        generator: torch.Generator,
    ):
        super().__init__()
        d = num_sparse * width + num_dense
        self.width, self.deep_width = width, deep[-1] if deep else 0
        self.parallel = cross.structure == "parallel"
        if self.parallel and not deep:
            raise ConfigError("a parallel DCN needs a deep network, and it has 0 layers; give one, or make it stacked")
        self.crosses = nn.ModuleList([_cross(cross, d, generator) for _ in range(cross.layers)])
        self.deep = seeded_mlp(d, deep, generator)
        self.out_width = d + self.deep_width if self.parallel else self.deep_width or d

    def forward(self, e_BND: Tensor, dense_BC: Tensor) -> Tensor:
        x_0 = torch.cat([e_BND.flatten(1), dense_BC], dim=1)
        x = x_0
        for cross in self.crosses:
            x = cross(x_0, x)
        return torch.cat([x, self.deep(x_0)], dim=1) if self.parallel else self.deep(x)

    def feature_axes(self, inputs: InputLabels) -> dict[str, Axes]:
        x = self._x_labels(inputs)
        axes: dict[str, Axes] = {"deep.0.weight": (None, x)}
        for layer, cross in enumerate(self.crosses):
            axes |= {f"crosses.{layer}.{name}": of for name, of in cross.axes(x).items()}  # type: ignore[operator]
        return axes

    def output_labels(self, inputs: InputLabels) -> Labels | None:
        deep: Labels = tuple(("deep", h) for h in range(self.deep_width))
        if self.parallel:
            return (*self._x_labels(inputs), *deep)
        return None if deep else self._x_labels(inputs)

    def _x_labels(self, inputs: InputLabels) -> Labels:
        return (*product(inputs.embeddings, range(self.width)), *inputs.dense)


class DCNOptions(InteractionOptions):
    """Settings of a DCN-V2."""

    cross: CrossConfig = Field(default=CrossConfig(), description="The explicit crosses.")
    deep: tuple[int, ...] = Field(default=(256, 128), description="Sizes of the deep network's layers.")

    def build(self, embeddings: int, width: int, dense: int, generator: torch.Generator) -> DCN:
        return DCN(embeddings, width, dense, cross=self.cross, deep=self.deep, generator=generator)

    def widened(self, times: float, inputs: int) -> DCNOptions:
        """Crosses of a quarter of the first deep layer's width in rank; full where that would cost more."""
        deep = widen(DCNOptions().deep, times)
        rank = max(1, deep[0] // 4)
        return DCNOptions(cross=CrossConfig(rank=rank if rank < inputs / 2 else None), deep=deep)


def _cross(cross: CrossConfig, d: int, generator: torch.Generator) -> nn.Module:
    if cross.rank is None:
        return FullCross(d, generator)
    if cross.experts == 1:
        return LowRankCross(d, cross.rank, generator)
    return MixtureCross(d, cross.rank, cross.experts, generator)
