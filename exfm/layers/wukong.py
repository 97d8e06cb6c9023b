"""Wukong (arXiv 2403.02545), the teacher: stacked factorisation machines.

    X_{i+1} = LN( concat(FMB_i(X_i), LCB_i(X_i)) + R_i(X_i) )

    LCB(X) = W_L X                                  linear compression, W_L (n_L × n)
    FMB(X) = reshape(MLP(LN(flatten(FM(X)))))       factorisation machine block, to n_F × d
    FM(X)  = X (Xᵀ Y)                               all pairwise products XXᵀ, projected by Y (n × k): O(nkd)
    R(X)   = X, or W_R X where n_F + n_L ≠ n

Layer i covers interactions of orders 1 to 2^i. Y is a parameter, or attentive: an MLP of the linearly compressed input.

B examples, N embeddings into a layer (n), M out (n_F + n_L), D width (d), K rank of the FM (k), C dense features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from exfm.errors import ConfigError
from exfm.layers.dense import seeded_linear, seeded_mlp


class AttentiveProjection(nn.Module):
    """Y(X) = reshape(MLP(flatten(W_C X))), to n × k; W_C compresses the N embeddings to K.

    Shapes: (B, N, D) -> (B, N, K).
    """

    def __init__(self, n: int, d: int, k: int, hidden: Sequence[int], generator: torch.Generator):
        super().__init__()
        self.compress = seeded_linear(n, k, generator, bias=False)
        self.mlp = seeded_mlp(k * d, (*hidden, n * k), generator, last_relu=False)
        self.n, self.k = n, k

    def forward(self, X: Tensor) -> Tensor:
        return self.mlp(over_embeddings(self.compress.weight, X).flatten(1)).unflatten(1, (self.n, self.k))


class WukongLayer(nn.Module):
    """One interaction layer: LN( concat(FMB(X), LCB(X)) + R(X) ).

    Shapes: (B, N, D) -> (B, M, D) with M = num_fmb + num_lcb. R is the identity when M == N, else linear over
    embeddings. `hidden` are the sizes between the FM and its num_fmb · D outputs, with ReLU; none: a single linear map.
    Without `layer_norm` every LN, that inside the factorisation machine block too, is the identity.

    Raises ConfigError if num_fmb, num_lcb or rank is below 1.

    >>> layer = WukongLayer(6, 4, num_fmb=3, num_lcb=2, rank=2, hidden=(8,), generator=torch.Generator())
    >>> layer(torch.zeros(7, 6, 4)).shape
    torch.Size([7, 5, 4])
    """

    def __init__(
        self,
        n: int,
        d: int,
        *,
        num_fmb: int,
        num_lcb: int,
        rank: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        attentive: bool = False,
        layer_norm: bool = True,
    ):
        super().__init__()
        if min(num_fmb, num_lcb, rank) < 1:
            raise ConfigError(
                f"a Wukong layer needs num_fmb, num_lcb and rank of 1 or more; they are {num_fmb}, {num_lcb} and {rank}"
            )
        m, k = num_fmb + num_lcb, rank
        self.num_fmb, self.d = num_fmb, d
        self.W_L = seeded_linear(n, num_lcb, generator, bias=False).weight  # (n_L, n)
        self.W_R = None if m == n else seeded_linear(n, m, generator, bias=False).weight  # (m, n)
        self.Y_T: Tensor | None = None if attentive else seeded_linear(n, k, generator, bias=False).weight  # (k, n)
        self.attend = AttentiveProjection(n, d, k, hidden, generator) if attentive else None
        self.fm_norm = nn.LayerNorm(n * k) if layer_norm else nn.Identity()
        self.fm_mlp = seeded_mlp(n * k, (*hidden, num_fmb * d), generator, last_relu=False)
        self.norm = nn.LayerNorm(d) if layer_norm else nn.Identity()

    def forward(self, X: Tensor) -> Tensor:
        mixed = torch.cat([self.fmb(X), over_embeddings(self.W_L, X)], dim=1)
        return self.norm(mixed + (X if self.W_R is None else over_embeddings(self.W_R, X)))

    def fm(self, X: Tensor) -> Tensor:
        """X (Xᵀ Y): (B, N, D) -> (B, N, K). XᵀY is computed as (Yᵀ X)ᵀ."""
        if self.attend is not None:
            return torch.bmm(X, torch.bmm(X.transpose(1, 2), self.attend(X)))
        assert self.Y_T is not None
        return torch.bmm(X, over_embeddings(self.Y_T, X).transpose(1, 2))

    def fmb(self, X: Tensor) -> Tensor:
        """reshape(MLP(LN(flatten(FM(X))))): (B, N, D) -> (B, n_F, D)."""
        return self.fm_mlp(self.fm_norm(self.fm(X).flatten(1))).unflatten(1, (self.num_fmb, self.d))


class Wukong(nn.Module):
    """Embeddings and dense features to a representation: X_0, then `layers` Wukong layers, then flatten.

    X_0 is the embeddings and, where there are dense features, `dense_units` embeddings made from them by an MLP.
    Shapes: (B, N, D), (B, C) -> (B, M · D) (`self.out_width`).

    >>> rng = torch.Generator()
    >>> trunk = Wukong(6, 4, num_dense=2, layers=2, num_fmb=3, num_lcb=2, rank=2, hidden=(8,), generator=rng)
    >>> trunk(torch.zeros(7, 6, 4), torch.zeros(7, 2)).shape
    torch.Size([7, 20])
    """

    def __init__(
        self,
        num_embeddings: int,
        width: int,
        num_dense: int,
        *,
        layers: int,
        num_fmb: int,
        num_lcb: int,
        rank: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        dense_units: int = 1,
        attentive: bool = False,
        layer_norm: bool = True,
    ):
        super().__init__()
        self.width = width
        self.dense = (
            seeded_mlp(num_dense, (*hidden, dense_units * width), generator, last_relu=False) if num_dense else None
        )
        n = num_embeddings + (dense_units if num_dense else 0)
        self.layers = nn.Sequential()
        for _ in range(layers):
            self.layers.append(
                WukongLayer(
                    n,
                    width,
                    num_fmb=num_fmb,
                    num_lcb=num_lcb,
                    rank=rank,
                    hidden=hidden,
                    generator=generator,
                    attentive=attentive,
                    layer_norm=layer_norm,
                )
            )
            n = num_fmb + num_lcb
        self.out_width = n * width

    def forward(self, e_BND: Tensor, dense_BC: Tensor) -> Tensor:
        X = e_BND
        if self.dense is not None:
            X = torch.cat([self.dense(dense_BC).unflatten(1, (-1, self.width)), X], dim=1)
        return self.layers(X).flatten(1)


def over_embeddings(W: Tensor, X: Tensor) -> Tensor:
    """W X for every example, linear over embeddings: (M, N), (B, N, D) -> (B, M, D)."""
    return torch.einsum("mn,bnd->bmd", W, X)
