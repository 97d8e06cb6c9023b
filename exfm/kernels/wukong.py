"""Wukong (exfm/interactions/wukong.py) as a compiler is given it: the same function of the same parameters, embeddings
last.

X is (B, D, N) here. So every linear map over embeddings is one product of matrices, forwards and backwards, and no
operand of a product has to be transposed first:

    X Wᵀ                    (B·D × N)(N × M)
    FM(X) = Xᵀ (X Y)        (N × D)(D × K), and backwards (D × K)(K × N) and (D × N)(N × K)

Rounds otherwise than the twin does, in the last digits. Compilers fuse what lies between products; `stored` says what
they are to write to memory once instead of working it out again wherever it is read.

B examples, N embeddings into a layer (n), M out, D width (d), K rank of the FM (k), S values of a norm.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn


def embeddings_last(trunk: Any, e_BND: Tensor, dense_BC: Tensor) -> Tensor:
    """`trunk(e_BND, dense_BC)` of a `Wukong`: (B, M · D)."""
    X = _as_multiplied(e_BND) if trunk.layers[0].W_R is not None else e_BND
    X = X.transpose(1, 2)
    if trunk.dense is not None:
        made = _mlp(_maps(trunk.dense), dense_BC).unflatten(1, (-1, trunk.width)).transpose(1, 2)
        X = torch.cat([made, X], dim=2)
    X = X.contiguous()
    for layer in trunk.layers:
        X = _layer(layer, X)
    return X.transpose(1, 2).flatten(1)


def _layer(layer: Any, X: Tensor) -> Tensor:
    """(B, D, N) -> (B, D, M)"""
    x = _as_multiplied(X)
    Y = layer.attend(x.transpose(1, 2)) if layer.attend is not None else None
    P = _over_embeddings(layer.Y_T, x) if layer.Y_T is not None else torch.bmm(x, Y)  # type: ignore[arg-type]
    products, maps = _Products.apply(x, P).flatten(1), _maps(layer.fm_mlp)
    if isinstance(layer.fm_norm, nn.LayerNorm) and products.dtype == torch.bfloat16:
        products = _Standard.apply(products, layer.fm_norm.eps)
        maps[0] = _of_standard(layer.fm_norm, *maps[0])
    else:
        products = _norm(layer.fm_norm, products.unsqueeze(2)).squeeze(2)
    maps[-1] = _width_first(*maps[-1], layer.d)
    F = _mlp(maps, products).unflatten(1, (layer.d, layer.num_fmb))
    residual = X if layer.W_R is None else _over_embeddings(layer.W_R, x)
    return _norm(layer.norm, _Mixed.apply(F, _over_embeddings(layer.W_L, x), residual))


def _as_multiplied(X: Tensor) -> Tensor:
    """In the precision that products of matrices are computed in."""
    return X.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else X


def _over_embeddings(W: Tensor, X: Tensor) -> Tensor:
    """(M, N), (B, D, N) -> (B, D, M)"""
    return nnf.linear(X.flatten(0, 1), W).unflatten(0, X.shape[:2])


Map = tuple[Tensor, Tensor]
"""Weight (m, n) and bias (m,)."""


def _maps(mlp: nn.Module) -> list[Map]:
    return [(part.weight, part.bias) for part in mlp.children() if isinstance(part, nn.Linear)]


def _mlp(maps: list[Map], x: Tensor) -> Tensor:
    """Maps with ReLU between them."""
    for i, (W, b) in enumerate(maps):
        x = _linear(W, b, nnf.relu(x) if i else x)
    return x


def _linear(W: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """x Wᵀ + b, (B, n) -> (B, m)."""
    x = _as_multiplied(x)
    return _Linear.apply(x, W.bfloat16(), b) if x.dtype == torch.bfloat16 else nnf.linear(x, W, b)


def _width_first(weight: Tensor, bias: Tensor, d: int) -> Map:
    """Reorder a map to (n_F × d) outputs, so that its outputs are (d × n_F)."""
    weight, bias = (p.unflatten(0, (-1, d)).transpose(0, 1).flatten(0, 1) for p in (weight, bias))
    return weight, bias


def _of_standard(norm: nn.LayerNorm, W: Tensor, b: Tensor) -> Map:
    """Fold a norm's affine part into the linear map behind it: W (h w + b_norm) + b = (W w) h + (W b_norm + b), for an
    h of mean 0 and variance 1."""
    return W * norm.weight, b + (W * norm.bias).sum(1)


def _norm(norm: nn.Module, x_BSM: Tensor) -> Tensor:
    """A layer's norm, over the second dimension."""
    if not isinstance(norm, nn.LayerNorm):
        return norm(x_BSM)
    return _Norm.apply(x_BSM, norm.weight.unsqueeze(1), norm.bias.unsqueeze(1), norm.eps)


def stored(x: Tensor) -> Tensor:
    """`x`, contiguous, which Inductor writes to memory here: it has what is to be seen with given strides be there."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


class _Linear(torch.autograd.Function):
    """x Wᵀ + b of bf16, with b of float32: (B, n), (m, n), (m,) -> (B, m). torch's own first copies b into every row of
    the result; this adds it in the loop that reads the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, W)
        return (stored(torch.mm(x, W.t())) + stored(b)).bfloat16()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        x, W = ctx.saved_tensors
        g = stored(*upstream)
        return torch.mm(g, W), torch.mm(g.t(), x), g.float().sum(0)


class _Products(torch.autograd.Function):
    """Xᵀ P: (B, D, N), (B, D, K) -> (B, N, K). Autograd's gradient of X would come transposed."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, P: Tensor) -> Tensor:
        ctx.save_for_backward(X, P)
        return torch.bmm(X.transpose(1, 2), P)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        X, P = ctx.saved_tensors
        (g,) = upstream
        return torch.bmm(P, g.transpose(1, 2)), torch.bmm(X, g)


class _Mixed(torch.autograd.Function):
    """[F; L] + R over embeddings: (B, D, M₁), (B, D, M₂), (B, D, M₁ + M₂) -> (B, D, M₁ + M₂). Gradients are
    contiguous."""

    @staticmethod
    def forward(ctx: Any, F: Tensor, L: Tensor, R: Tensor) -> Tensor:
        ctx.at = F.shape[2]
        if R.dtype == torch.bfloat16:
            return torch.cat([F + R[:, :, : ctx.at], L + R[:, :, ctx.at :]], dim=2)
        return torch.cat([F, L], dim=2) + R

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (g,) = upstream
        return stored(g[:, :, : ctx.at]), stored(g[:, :, ctx.at :]), g


class _Standard(torch.autograd.Function):
    """bf16 with mean 0 and variance 1, (B, S) -> (B, S); the moments are float32, from one pass.

    h = (x − mean(x)) r,  r = 1 / √(mean(x²) − mean(x)² + ε)
    ∂x = r (g − mean(g) − h mean(g h))
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        x_ = stored(x).float()
        mean, r = _moments(x_, eps)
        h = stored(((x_ - mean) * r).bfloat16())
        ctx.save_for_backward(h, r)
        return h

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        h, r = ctx.saved_tensors
        each = 1 / h.shape[1]
        g, h = stored(*upstream).float(), h.float()
        of_mean = stored(g.sum(1, keepdim=True) * each)
        of_size = stored((g * h).sum(1, keepdim=True) * each)
        return stored((r * (g - of_mean - h * of_size)).bfloat16()), None


def _moments(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """mean(x) and 1 / √(var(x) + ε) over the second dimension, of float32 that was bf16. Squares of bf16 are exact in
    float32, so one pass over x finds both."""
    each = 1 / x.shape[1]
    mean, square = (stored(t.sum(1, keepdim=True) * each) for t in (x, x.square()))
    return mean, stored(torch.rsqrt((square - mean.square()).clamp(min=0) + eps))


class _Norm(torch.autograd.Function):
    """Layer norm over S, in float32 where x is of bf16: x (B, S, M), weight and bias (S, 1) -> (B, S, M).

    h = (x − mean(x)) r,  r = 1 / √(var(x) + ε),  y = h w + b
    ∂x = r (g w − mean(g w) − h mean(g w h))
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
        x = stored(x)
        x_, each = _precise(x), 1 / x.shape[1]
        if x.dtype == torch.bfloat16:
            mean, r = _moments(x_, eps)
        else:
            mean = stored(x_.sum(1, keepdim=True) * each)
            r = stored(torch.rsqrt((x_ - mean).square().sum(1, keepdim=True) * each + eps))
        ctx.save_for_backward(x, mean, r, w)
        return ((x_ - mean) * r * w + b).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        x, mean, r, w = ctx.saved_tensors
        each = 1 / x.shape[1]
        g = _precise(stored(*upstream))
        h = (_precise(x) - mean) * r
        gw = g * w
        of_mean = stored(gw.sum(1, keepdim=True) * each)
        of_size = stored((gw * h).sum(1, keepdim=True) * each)
        to_w, to_b = ((t.sum(0).sum(1, keepdim=True)) for t in (g * h, g))
        return stored((r * (gw - of_mean - h * of_size)).to(x.dtype)), to_w, to_b, None


def _precise(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x
