"""Wukong (arXiv 2403.02545), the default interaction of teachers: stacked factorisation machines.

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
from itertools import product

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from exfm.errors import ConfigError, ModelError
from exfm.interactions.interaction import Axes, InputLabels, Interaction, InteractionOptions, Labels
from exfm.kernels.wukong import embeddings_last
from exfm.randomness import seeded_linear, seeded_mlp


class Norm(nn.LayerNorm):
    """LN over the last dimension, (…, size) -> (…, size). Of bf16 it is computed in float32: torch sums the gradients
    of its weights over rows in the input's own precision, where some thousand rows lose half of them."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.float()).bfloat16() if input.dtype == torch.bfloat16 else super().forward(input)


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
        self.num_fmb, self.d, self.k, self.m = num_fmb, d, k, m
        self.W_L = seeded_linear(n, num_lcb, generator, bias=False).weight  # (n_L, n)
        self.W_R = None if m == n else seeded_linear(n, m, generator, bias=False).weight  # (m, n)
        self.Y_T: Tensor | None = None if attentive else seeded_linear(n, k, generator, bias=False).weight  # (k, n)
        self.attend = AttentiveProjection(n, d, k, hidden, generator) if attentive else None
        self.fm_norm = Norm(n * k) if layer_norm else nn.Identity()
        self.fm_mlp = seeded_mlp(n * k, (*hidden, num_fmb * d), generator, last_relu=False)
        self.norm = Norm(d) if layer_norm else nn.Identity()

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

    def axes(self, X: Labels) -> dict[str, Axes]:
        """Feature axes by parameter, with `X` the labels of the embeddings; W_R is listed even if the layer uses the
        identity."""
        products = tuple(product(X, range(self.k)))  # the FM's outputs
        axes: dict[str, Axes] = {"W_L": (None, X), "W_R": (None, X), "Y_T": (None, X)}
        if self.attend is not None:
            last = len(self.attend.mlp) - 1
            axes |= {
                "attend.compress.weight": (None, X),
                f"attend.mlp.{last}.weight": (products, None),
                f"attend.mlp.{last}.bias": (products,),
            }
        norm: dict[str, Axes] = {"fm_norm.weight": (products,), "fm_norm.bias": (products,)}
        return axes | norm | {"fm_mlp.0.weight": (None, products)}


class Wukong(Interaction):
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
        self.width, self.dense_units = width, dense_units
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

    def exportable(self, e_BND: Tensor, dense_BC: Tensor) -> Tensor:
        return embeddings_last(self, e_BND, dense_BC)

    def feature_axes(self, inputs: InputLabels) -> dict[str, Axes]:
        """Only the first layer sees the features."""
        first = self._first.axes(self._x_0(inputs))
        return {f"layers.0.{name}": of for name, of in first.items()} | {"dense.0.weight": (None, inputs.dense)}

    def grown_parameters(self, was: InputLabels, now: InputLabels) -> dict[str, Tensor]:
        """The first residual, when the identity turns into a map that selects the former embeddings.

        Raises ModelError where the first layer's residual would change: a learned map would be lost, or an embedding
        that passes through the identity would come out at another place.
        """
        before, after, out = self._x_0(was), self._x_0(now), self._first.m
        if len(after) == out:
            _keep_identity(before, after)
        elif len(before) == out:
            W_R = torch.zeros(out, len(after))
            for i, label in enumerate(before):
                if label in after:
                    W_R[i, after.index(label)] = 1.0
            return {"layers.0.W_R": W_R}
        return {}

    @property
    def _first(self) -> WukongLayer:
        first = self.layers[0]
        assert isinstance(first, WukongLayer)
        return first

    def _x_0(self, inputs: InputLabels) -> Labels:
        made = self.dense_units if inputs.dense else 0
        return (*(("dense unit", j) for j in range(made)), *inputs.embeddings)


def _keep_identity(before: Labels, after: Labels) -> None:
    """Raises ModelError unless a residual that is the identity over `after` does what the one over `before` did."""
    out = len(after)
    if len(before) != out:
        raise ModelError(
            f"the teacher's first layer has {len(before)} units and puts out {out}, so it learned a map for its "
            f"residual; with {out} units its residual is the identity, and what the map learned would be lost: add or "
            "drop another feature too"
        )
    if moved := [label for at, label in enumerate(before) if label in after and after.index(label) != at]:
        raise ModelError(
            f"the teacher's first layer has {out} units and passes each on at its place, and {moved[0]} would come to "
            f"another place ({before.index(moved[0])}, now {after.index(moved[0])}): put new features where dropped "
            "ones stood, or last"
        )


def over_embeddings(W: Tensor, X: Tensor) -> Tensor:
    """W X for every example, linear over embeddings: (M, N), (B, N, D) -> (B, M, D)."""
    return torch.einsum("mn,bnd->bmd", W, X)


class WukongSizes(BaseModel):
    """The settings of a Wukong. They stand flat among those of a teacher, whose interaction it is by default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int = Field(default=2, gt=0, description="Interaction layers; layer i covers orders up to 2^i.")
    num_fmb: int = Field(default=8, gt=0, description="Embeddings that a layer makes by factorisation machines (n_F).")
    num_lcb: int = Field(default=8, gt=0, description="Embeddings that a layer makes by linear compression (n_L).")
    rank: int = Field(
        default=8,
        gt=0,
        description="Rank of the factorisation machine's projection (k).",
    )
    mlp: tuple[int, ...] = Field(
        default=(64,),
        description="Hidden sizes inside every factorisation machine block, and of the MLP over dense features.",
    )
    attentive: bool = Field(
        default=False, description="Make the projection Y from the input, instead of learning it as a parameter."
    )
    layer_norm: bool = Field(default=True, description="Normalise inside and after every layer.")
    dense_units: int = Field(default=1, gt=0, description="Embeddings that are made of the dense features.")


class WukongOptions(WukongSizes, InteractionOptions):
    """Settings of a Wukong, as an interaction."""

    def build(self, embeddings: int, width: int, dense: int, generator: torch.Generator) -> Wukong:
        sizes = self.model_dump()
        return Wukong(embeddings, width, dense, hidden=sizes.pop("mlp"), generator=generator, **sizes)
