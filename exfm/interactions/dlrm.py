"""DLRM (arXiv 1906.00091): pairwise dot products of embeddings.

    x = MLP_bottom(dense)
    T = [x; e_1; …; e_F]            one vector of width D per row
    Z = strict lower triangle of T Tᵀ             ∂T = S T, S the symmetric matrix that has ∂Z in both triangles
    h = MLP_top([x, Z])

B examples, F sparse features, D embedding width, N dense features, H width of the representation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable

from exfm.errors import ConfigError
from exfm.interactions.interaction import Axes, InputLabels, Interaction, InteractionOptions, Labels, widen
from exfm.kernels.pairs import lower_triangle, symmetric
from exfm.randomness import seeded_mlp


class DLRM(Interaction):
    """Pooled embeddings and dense features to a representation. Heads are the caller's.

    Shapes: (B, F, D), (B, N) -> (B, H), H = top[-1] (`self.out_width`). Without dense features (num_dense = 0) there is
    no x: T holds the embeddings only, and `bottom` must be empty.

    Raises ConfigError if the bottom MLP does not end in the embedding width, or there is nothing to interact.

    >>> trunk = DLRM(3, 4, 2, bottom=(8, 4), top=(16, 8), generator=torch.Generator())
    >>> trunk(torch.zeros(5, 3, 4), torch.zeros(5, 2)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        num_sparse: int,
        width: int,
        num_dense: int,
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        generator: torch.Generator,
    ):
        super().__init__()
        if num_dense and (not bottom or bottom[-1] != width):
            raise ConfigError(
                f"the bottom MLP {list(bottom)} must end in the embedding width {width}; add {width} as its last size"
            )
        if bottom and not num_dense:
            raise ConfigError(f"a bottom MLP {list(bottom)} needs dense features, and there are 0; leave it empty")
        vectors = num_sparse + (1 if num_dense else 0)
        if vectors < 2:
            raise ConfigError(f"DLRM needs 2 or more vectors to interact, and there are {vectors}; add a feature")
        if not top:
            raise ConfigError("the top MLP has 0 layers; give it at least one size")
        self.width, self.vectors = width, vectors
        self.bottom = seeded_mlp(num_dense, bottom, generator) if num_dense else None
        self.top = seeded_mlp(vectors * (vectors - 1) // 2 + (width if num_dense else 0), top, generator)
        self.out_width = top[-1]

    def forward(self, e_BFD: Tensor, dense_BN: Tensor) -> Tensor:
        x_BD = e_BFD[:, 0, :0] if self.bottom is None else self.bottom(dense_BN)
        return self.top(_Interact.apply(x_BD, e_BFD))

    def feature_axes(self, inputs: InputLabels) -> dict[str, Axes]:
        x: Labels = tuple(("x", d) for d in range(self.width)) if inputs.dense else ()
        vectors: Labels = ((("dense unit", 0),) if inputs.dense else ()) + inputs.embeddings
        pairs = tuple(frozenset((vectors[i], vectors[j])) for i in range(len(vectors)) for j in range(i))
        return {"bottom.0.weight": (None, inputs.dense), "top.0.weight": (None, (*x, *pairs))}


class _Interact(torch.autograd.Function):
    """[x, Z]: (B, D), or without x (B, 0), and (B, F, D) -> (B, D + pairs). By itself autograd would multiply twice, by
    both triangles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, e: Tensor) -> Tensor:
        T = torch.cat([x.unsqueeze(1), e.to(x.dtype)], dim=1) if x.shape[1] else e.detach()
        ctx.save_for_backward(x, T)
        return torch.cat([x, lower_triangle(torch.bmm(T, T.transpose(1, 2)))], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, T = ctx.saved_tensors
        grad_x, grad_Z = gradients[0].split([x.shape[1], gradients[0].shape[1] - x.shape[1]], dim=1)
        S = symmetric(grad_Z, T.shape[1])
        if not x.shape[1]:
            return grad_x, torch.bmm(S, T)
        return grad_x + torch.bmm(S[:, :1], T).squeeze(1), torch.bmm(S[:, 1:], T)


class DLRMOptions(InteractionOptions):
    """Settings of a DLRM."""

    bottom: tuple[int, ...] = Field(
        default=(64,),
        description="Hidden sizes of the MLP over dense features, which ends in the embedding width.",
    )
    top: tuple[int, ...] = Field(default=(256, 128), description="Sizes of the MLP over the interactions.")

    def build(self, embeddings: int, width: int, dense: int, generator: torch.Generator) -> DLRM:
        bottom = (*self.bottom, width) if dense else ()
        return DLRM(embeddings, width, dense, bottom=bottom, top=self.top, generator=generator)

    def widened(self, times: float, inputs: int) -> DLRMOptions:
        shape = DLRMOptions()
        return DLRMOptions(bottom=widen(shape.bottom, times), top=widen(shape.top, times))
