"""What a Wukong layer (wukong.py) does between its large products of matrices, as loops over examples (exfm/loops.py).

    products   LN(flatten(F))         F = X P,  P = Xᵀ Yᵀ
               ∂P = Xᵀ ∂F             ∂X = ∂F Pᵀ + Yᵀ ∂Pᵀ       ∂Y = Σ_B ∂Pᵀ Xᵀ
    mixed      LN([V; 0] + A X)       V what the machine's MLP made of the products, A = [0; W_L] + W_R
               ∂V = [∂U]_{n_F}        ∂X = Aᵀ ∂U                ∂A = Σ_B ∂U Xᵀ           U what is normalised
    LN         y = h w + b            h = (x − mean(x)) r       r = 1 / √(var(x) + ε)
               ∂h = w ∂y              ∂x = r (∂h − mean(∂h) − h mean(∂h h))

What belongs to an example is a few kB and stays in the nearest cache. torch's operators pass a dozen times over the
batch for it, and multiply small matrices, a pair an example, at a fifth of the rate of large ones. Rows are computed
eight numbers at a time, so D and K are multiples of 8. Sums are float32, added in the same order on every processor.

B examples, N embeddings into a layer, M out, D width, K rank of the FM, S values of a norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from exfm.lanes import LANES, after, load, multiply, row, same, store, total
from exfm.loops import inlined, loop
from exfm.threads import in_parts, parts_of

if TYPE_CHECKING:
    from exfm.interactions.wukong import WukongLayer


def suit(layer: WukongLayer, X_BND: Tensor) -> bool:
    """Whether there are loops for such a layer and such embeddings: float32 in a CPU's memory, normalised, Y a
    parameter, D and K multiples of 8.

    >>> from exfm.interactions.wukong import WukongLayer
    >>> sizes = {"num_fmb": 2, "num_lcb": 2, "rank": 8, "hidden": (), "generator": torch.Generator()}
    >>> [suit(WukongLayer(3, width, **sizes), torch.zeros(7, 3, width)) for width in (16, 10)]
    [True, False]
    """
    of_layer = (
        layer.Y_T is not None and isinstance(layer.norm, nn.LayerNorm) and layer.d % LANES == layer.k % LANES == 0
    )
    return of_layer and X_BND.is_cpu and X_BND.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def by_example(layer: WukongLayer, X_BND: Tensor) -> Tensor:
    """`layer(X)`: (B, M, D)."""
    learns, X = torch.is_grad_enabled(), X_BND.contiguous()
    products: Tensor = _Products.apply(X, layer.Y_T, *_of(layer.fm_norm), learns)
    W_R = torch.eye(layer.m) if layer.W_R is None else layer.W_R
    A = torch.cat([W_R[: layer.num_fmb], W_R[layer.num_fmb :] + layer.W_L])
    y: Tensor = _Mixed.apply(layer.fm_mlp(products), X, A, *_of(layer.norm), learns)
    return y


def _of(norm: nn.Module) -> tuple[Tensor, Tensor, float]:
    assert isinstance(norm, nn.LayerNorm)
    return norm.weight, norm.bias, norm.eps


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, Y: Tensor, w: Tensor, b: Tensor, eps: float, learns: bool) -> Tensor:
        (B, N, _), K = X.shape, len(Y)
        Y_NK = Y.T.contiguous()
        y, h, r = (X.new_empty(B, size) for size in (N * K, N * K * learns, 1))
        _run(_form_products, [X, y, h, r], [Y_NK, w, b, torch.tensor([eps])])
        ctx.save_for_backward(X, Y_NK, w, h, r)
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        X, Y_NK, w, h, r = ctx.saved_tensors
        (N, K), of_X = Y_NK.shape, torch.empty_like(X)
        given = [upstream[0].contiguous(), X, h, r, of_X], [Y_NK.T.contiguous(), Y_NK, w]
        of_Y, of_wb = _run(_form_products_back, *given, (K * N, LANES), (2, N * K))
        return of_X, of_Y.sum(1).view(K, N), *of_wb, None, None


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, V: Tensor, X: Tensor, A: Tensor, w: Tensor, b: Tensor, eps: float, learns: bool) -> Tensor:
        (B, _, D), M = X.shape, len(A)
        y, h, r = (X.new_empty(B, size) for size in (M * D, M * D * learns, M))
        _run(_mix, [V.contiguous(), X, y, h, r], [A.contiguous(), w, b, torch.tensor([eps])])
        ctx.save_for_backward(X, A, w, h, r)
        ctx.of_V = V.shape[1]
        return y.view(B, M, D)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        X, A, w, h, r = ctx.saved_tensors
        of_V, of_X = X.new_empty(len(X), ctx.of_V), torch.empty_like(X)
        given = [upstream[0].contiguous().flatten(1), X, h, r, of_V, of_X], [A.contiguous(), w]
        of_A, of_wb = _run(_mix_back, *given, (A.numel(), LANES), (2, len(w)))
        return of_V, of_X, of_A.sum(1).view(A.shape), *of_wb, None, None


def _run(part: Any, by_row: Sequence[Tensor], shared: Sequence[Tensor], *sums: tuple[int, ...]) -> list[Tensor]:
    """Run a loop on parts of the rows, a thread each. Returns what it adds up in tensors of these shapes, over the
    parts in their order."""
    B = len(by_row[0])
    found = [torch.zeros(parts_of(B), *shape) for shape in sums]
    of_all = [tensor.detach().numpy() for tensor in shared]

    def work(n: int, rows: slice) -> None:
        part(*(tensor.detach()[rows].numpy() for tensor in by_row), *of_all, *(each[n].numpy() for each in found))

    in_parts(B, work)
    return [each.sum(0) for each in found]


@inlined
def _gather(to, rows, a, S, b, J):
    """to[i, s] += a[i, :] b[s, :]ᵀ, in eight lanes that are to be added up."""
    for i in range(rows):
        for s in range(S):
            at = (i * S + s) * LANES
            lanes = load(to, at)
            for j in range(0, J, LANES):
                lanes = lanes + load(a, i * J + j) * load(b, s * J + j)
            store(to, at, lanes)


@inlined
def _normalise(y, h, x, w, b, S, eps, keep):
    """y, and with `keep` also h; returns r."""
    sums = squares = same(np.float32(0))
    for s in range(0, S, LANES):
        sums = sums + load(x, s)
    mean = same(total(sums) / np.float32(S))
    for s in range(0, S, LANES):
        off = load(x, s) - mean
        squares = squares + off * off
    r = np.float32(1) / np.sqrt(total(squares) / np.float32(S) + eps)
    for s in range(0, S, LANES):
        h_s = (load(x, s) - mean) * same(r)
        if keep:
            store(h, s, h_s)
        store(y, s, h_s * load(w, s) + load(b, s))
    return r


@inlined
def _normalise_back(of_x, of_w, of_b, of_y, h, r, w, S):
    """∂x; ∂w and ∂b are added to."""
    sums = products = same(np.float32(0))
    for s in range(0, S, LANES):
        g, h_s = load(of_y, s), load(h, s)
        store(of_w, s, load(of_w, s) + g * h_s)
        store(of_b, s, load(of_b, s) + g)
        of_h = g * load(w, s)
        sums, products = sums + of_h, products + of_h * h_s
    mean, size = same(total(sums) / np.float32(S)), same(total(products) / np.float32(S))
    for s in range(0, S, LANES):
        store(of_x, s, same(r) * (load(of_y, s) * load(w, s) - mean - load(h, s) * size))


@loop("void(f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1])")
def _form_products(X_BND, y_BS, h_BS, r_B1, Y_NK, w_S, b_S, eps):
    (B, N, D), K, keep = X_BND.shape, Y_NK.shape[1], h_BS.shape[1] > 0
    P_DK, F_NK = np.empty(D * K, np.float32), np.empty(N * K, np.float32)
    P, F, Y, w, b = row(P_DK, 0), row(F_NK, 0), row(Y_NK, 0), row(w_S, 0), row(b_S, 0)
    for e in range(B):
        X = row(X_BND, e)
        multiply(P, D, X, 1, D, N, Y, K, False)
        multiply(F, N, X, D, 1, D, P, K, False)
        r_B1[e, 0] = _normalise(row(y_BS, e), row(h_BS, e), F, w, b, N * K, eps[0], keep)


@loop(
    "void(f4[:, ::1], f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[::1],"
    "f4[:, ::1], f4[:, ::1])"
)
def _form_products_back(of_y_BS, X_BND, h_BS, r_B1, of_X_BND, Y_KN, Y_NK, w_S, sum_of_Y, sum_of_wb_2S):
    (B, N, D), K = X_BND.shape, len(Y_KN)
    P_KD, of_P_KD, of_F_NK = np.empty(K * D, np.float32), np.empty(K * D, np.float32), np.empty(N * K, np.float32)
    P, of_P, of_F, w = row(P_KD, 0), row(of_P_KD, 0), row(of_F_NK, 0), row(w_S, 0)
    Y, Y_T, of_Y, of_w, of_b = row(Y_KN, 0), row(Y_NK, 0), row(sum_of_Y, 0), row(sum_of_wb_2S, 0), row(sum_of_wb_2S, 1)
    for e in range(B):
        X, of_X = row(X_BND, e), row(of_X_BND, e)
        _normalise_back(of_F, of_w, of_b, row(of_y_BS, e), row(h_BS, e), r_B1[e, 0], w, N * K)
        multiply(P, K, Y, N, 1, N, X, D, False)
        multiply(of_P, K, of_F, 1, K, N, X, D, False)
        multiply(of_X, N, of_F, K, 1, K, P, D, False)
        multiply(of_X, N, Y_T, K, 1, K, of_P, D, True)
        _gather(of_Y, K, of_P, N, X, D)


@loop("void(f4[:, ::1], f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[::1], f4[::1], f4[::1])")
def _mix(V_BS, X_BND, y_BMD, h_BMD, r_BM, A_MN, w_D, b_D, eps):
    (B, N, D), M, S, keep = X_BND.shape, len(A_MN), V_BS.shape[1], h_BMD.shape[1] > 0
    U_MD = np.empty(M * D, np.float32)
    U, A, w, b = row(U_MD, 0), row(A_MN, 0), row(w_D, 0), row(b_D, 0)
    for e in range(B):
        V, y, h = row(V_BS, e), row(y_BMD, e), row(h_BMD, e)
        for s in range(0, M * D, LANES):
            store(U, s, load(V, s) if s < S else same(np.float32(0)))
        multiply(U, M, A, N, 1, N, row(X_BND, e), D, True)
        for m in range(M):
            at = m * D
            r_BM[e, m] = _normalise(after(y, at), after(h, at), after(U, at), w, b, D, eps[0], keep)


@loop(
    "void(f4[:, ::1], f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, :, ::1], f4[:, ::1], f4[::1],"
    "f4[:, ::1], f4[:, ::1])"
)
def _mix_back(of_y_BMD, X_BND, h_BMD, r_BM, of_V_BS, of_X_BND, A_MN, w_D, sum_of_A, sum_of_wb_2D):
    (B, N, D), M, S = X_BND.shape, len(A_MN), of_V_BS.shape[1]
    of_U_MD = np.empty(M * D, np.float32)
    of_U, A, w = row(of_U_MD, 0), row(A_MN, 0), row(w_D, 0)
    of_A, of_w, of_b = row(sum_of_A, 0), row(sum_of_wb_2D, 0), row(sum_of_wb_2D, 1)
    for e in range(B):
        of_y, h, of_V, X = row(of_y_BMD, e), row(h_BMD, e), row(of_V_BS, e), row(X_BND, e)
        for m in range(M):
            at = m * D
            _normalise_back(after(of_U, at), of_w, of_b, after(of_y, at), after(h, at), r_BM[e, m], w, D)
        for s in range(0, S, LANES):
            store(of_V, s, load(of_U, s))
        multiply(row(of_X_BND, e), N, A, 1, N, M, of_U, D, False)
        _gather(of_A, M, of_U, N, X, D)
