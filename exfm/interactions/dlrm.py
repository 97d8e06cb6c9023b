"""DLRM (arXiv 1906.00091): pairwise dot products of embeddings.

    x = MLP_bottom(dense)
    T = [x; e_1; …; e_F]            one vector of width D per row
    Z = strict lower triangle of T Tᵀ             ∂T = S T, S the symmetric matrix that has ∂Z in both triangles
    h = MLP_top([x, Z])

B examples, F sparse features, D embedding width, N dense features, H width of the representation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from exfm.errors import ConfigError
from exfm.interactions.dense import gradients, outputs, seeded_mlp
from exfm.interactions.interaction import Axes, InputLabels, Interaction, InteractionOptions, Labels, Pass, widen
from exfm.lanes import after, dot, multiply, row
from exfm.loops import loop


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
        self.lower: Tensor  # index of the strict lower triangle in a flattened square matrix
        self.pairs: Tensor  # there the place of each pair in that triangle, on the diagonal the one behind the last
        self.bottom = seeded_mlp(num_dense, bottom, generator) if num_dense else None
        self.top = seeded_mlp(vectors * (vectors - 1) // 2 + (width if num_dense else 0), top, generator)
        self.out_width = top[-1]
        i, j = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("lower", i * vectors + j, persistent=False)
        pairs = torch.full((vectors, vectors), len(i))
        pairs[i, j] = pairs[j, i] = torch.arange(len(i))
        self.register_buffer("pairs", pairs.flatten(), persistent=False)

    def forward(self, e_BFD: Tensor, dense_BN: Tensor) -> Tensor:
        return self._represent(e_BFD, dense_BN, self._dots)

    def as_code(self, e_BFD: Tensor, dense_BN: Tensor) -> Tensor:
        """Code has no tensors but its arguments, so it works out where the pairs are."""
        i, j = torch.tril_indices(self.vectors, self.vectors, offset=-1)
        return self._represent(e_BFD, dense_BN, lambda T: torch.bmm(T, T.transpose(1, 2))[:, i, j])

    def _represent(self, e_BFD: Tensor, dense_BN: Tensor, dots: Callable[[Tensor], Tensor]) -> Tensor:
        if self.bottom is None:
            return self.top(dots(e_BFD))
        x_BD = self.bottom(dense_BN)
        T = torch.cat([x_BD.unsqueeze(1), e_BFD], dim=1)
        return self.top(torch.cat([x_BD, dots(T)], dim=1))

    @torch.no_grad()
    def by_hand(self, e_BFD: Tensor, dense_BN: Tensor) -> Pass:
        x, T = [], e_BFD
        if self.bottom is not None:
            x = outputs(self.bottom, dense_BN)
            T = torch.cat([x[-1].unsqueeze(1), e_BFD], dim=1)
        V, D = T.shape[1], self.width if x else 0
        xZ = T.new_empty(len(T), D + V * (V - 1) // 2)
        _form_pairs(T.numpy(), D, xZ.numpy())
        y = outputs(self.top, xZ)

        @torch.no_grad()
        def back(of_h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            *of_top, of_xZ = gradients(self.top, y, of_h, of_input=True)
            of_T = torch.empty_like(T)
            _form_pairs_back(of_xZ.numpy(), D, T.numpy(), of_T.numpy())
            if self.bottom is None:
                return of_T, dict(zip(self._names, of_top, strict=True))
            of_x = of_xZ[:, :D] + of_T[:, 0]
            of_bottom = gradients(self.bottom, x, of_x, of_input=False)
            return of_T[:, 1:], dict(zip(self._names, (*of_top, *of_bottom), strict=True))

        return Pass(y[-1], back)

    @cached_property
    def _names(self) -> list[str]:
        """Of the parameters, in the order of their gradients."""
        parts = {"top": self.top, "bottom": self.bottom}
        return [
            f"{part}.{n}.{kind}"
            for part, mlp in parts.items()
            for n in reversed(range(0, len(mlp or ()), 2))
            for kind in ("weight", "bias")
        ]

    def feature_axes(self, inputs: InputLabels) -> dict[str, Axes]:
        x: Labels = tuple(("x", d) for d in range(self.width)) if inputs.dense else ()
        vectors: Labels = ((("dense unit", 0),) if inputs.dense else ()) + inputs.embeddings
        pairs = tuple(frozenset((vectors[i], vectors[j])) for i in range(len(vectors)) for j in range(i))
        return {"bottom.0.weight": (None, inputs.dense), "top.0.weight": (None, (*x, *pairs))}

    def _dots(self, T: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return _lower_triangle(T, self.lower)
        Z: Tensor = _LowerTriangle.apply(T, self.lower, self.pairs)
        return Z


def _lower_triangle(T: Tensor, lower: Tensor) -> Tensor:
    if _is_single(T):
        Z = T.new_empty(len(T), len(lower))
        _form_pairs(T.detach().numpy(), 0, Z.numpy())
        return Z
    return torch.bmm(T, T.transpose(1, 2)).flatten(1).index_select(1, lower)


def _is_single(T: Tensor) -> bool:
    """Whether there are loops for it: float32 in a CPU's memory."""
    return T.is_cpu and T.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _LowerTriangle(torch.autograd.Function):
    """Z of T. By itself autograd would multiply twice, by both triangles."""

    @staticmethod
    def forward(ctx: Any, T: Tensor, lower: Tensor, pairs: Tensor) -> Tensor:
        ctx.save_for_backward(T, pairs)
        return _lower_triangle(T, lower)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        T, pairs = ctx.saved_tensors
        (of_Z,) = gradients
        if _is_single(T) and of_Z.dtype == T.dtype:
            of_T = torch.empty_like(T)
            _form_pairs_back(of_Z.contiguous().numpy(), 0, T.detach().numpy(), of_T.numpy())
            return of_T, None, None
        S = torch.cat([of_Z, of_Z.new_zeros(len(of_Z), 1)], dim=1).index_select(1, pairs)
        of_T = torch.bmm(S.unflatten(1, (T.shape[1], -1)), T.to(S.dtype))  # under autocast T is not of Z's precision
        return of_T.to(T.dtype), None, None


@loop("void(f4[:, :, ::1], i8, f4[:, ::1])")
def _form_pairs(T_BVD, first, xZ):
    """[x, Z]: the `first` numbers of T, then the strict lower triangle of T Tᵀ, row after row."""
    B, V, D = T_BVD.shape
    for b in range(B):
        T, of_b, n = row(T_BVD, b), row(xZ, b), first
        for d in range(first):
            of_b[d] = T[d]
        for i in range(1, V):
            for j in range(i):
                of_b[n] = dot(D, after(T, i * D), after(T, j * D))
                n += 1


@loop("void(f4[:, ::1], i8, f4[:, :, ::1], f4[:, :, ::1])")
def _form_pairs_back(of_xZ, first, T_BVD, of_T_BVD):
    """S T, S of ∂[x, Z]."""
    B, V, D = T_BVD.shape
    S_VV = np.zeros((V, V), np.float32)
    S = row(S_VV, 0)
    for b in range(B):
        of_b, n = row(of_xZ, b), first
        for i in range(1, V):
            for j in range(i):
                S[i * V + j] = S[j * V + i] = of_b[n]
                n += 1
        multiply(row(of_T_BVD, b), V, S, V, 1, V, row(T_BVD, b), D, False)


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
