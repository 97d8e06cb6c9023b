"""The strict lower triangle of square matrices, row after row, and back: what torch does by an index of every pair.

The torch twins are `index_select` by the places of the pairs, which is what GPUs and other precisions have; it looks
numbers up one by one, where a loop copies rows.

B matrices, V rows of each, P pairs (V · (V − 1) / 2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from exfm.kernels.loops import loop


def lower_triangle(G: Tensor) -> Tensor:
    """G[i, j] for j < i: (B, V, V) -> (B, P).

    >>> lower_triangle(torch.arange(9.0).view(1, 3, 3))
    tensor([[3., 6., 7.]])
    """
    B, V, _ = G.shape
    if not _has_loop(G):
        i, j = torch.tril_indices(V, V, offset=-1, device=G.device)
        return G.flatten(1).index_select(1, i * V + j)
    Z = G.new_empty(B, V * (V - 1) // 2)
    _take(G.numpy(), Z.numpy())
    return Z


def symmetric(Z: Tensor, V: int) -> Tensor:
    """The matrices that have Z in both triangles, and 0 on the diagonal: (B, P) -> (B, V, V).

    >>> symmetric(torch.tensor([[3.0, 6.0, 7.0]]), 3)
    tensor([[[0., 3., 6.],
             [3., 0., 7.],
             [6., 7., 0.]]])
    """
    if not _has_loop(Z):
        i, j = torch.tril_indices(V, V, offset=-1, device=Z.device)
        at = torch.zeros(V, V, dtype=torch.int64, device=Z.device)
        at[i, j] = at[j, i] = torch.arange(Z.shape[1], device=Z.device)
        S = Z.index_select(1, at.flatten()).unflatten(1, (V, V))
        S.diagonal(dim1=1, dim2=2).zero_()
        return S
    S = Z.new_empty(len(Z), V, V)
    _put(Z.numpy(), S.numpy())
    return S


def _has_loop(tensor: Tensor) -> bool:
    """True if there is a loop for it: float32 in a CPU's memory, not traced by a compiler."""
    return type(tensor) is Tensor and tensor.is_cpu and tensor.dtype == torch.float32


@loop("void(f4[:, :, ::1], f4[:, ::1])")
def _take(G_BVV, Z_BP):
    for b in range(len(G_BVV)):
        n = 0
        for i in range(G_BVV.shape[1]):
            for j in range(i):
                Z_BP[b, n + j] = G_BVV[b, i, j]
            n += i


@loop("void(f4[:, :], f4[:, :, ::1])")
def _put(Z_BP, S_BVV):
    for b in range(len(S_BVV)):
        n = 0
        for i in range(S_BVV.shape[1]):
            for j in range(i):
                S_BVV[b, i, j] = Z_BP[b, n + j]
                S_BVV[b, j, i] = Z_BP[b, n + j]
            S_BVV[b, i, i] = 0
            n += i
