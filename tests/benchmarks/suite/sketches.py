"""Bare-torch sketches of the same work, as a reference without everything else. No checks, no state to resume from.

Every bag holds one id. The linear part of a model, its prior and what a run keeps count of are not in a sketch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from exfm.features.batch import Batch
from tests.benchmarks.suite.shape import FLOATS, TABLE_ROWS, TABLES, WIDTH


class TablesSketch:
    """One (F · rows, D) table and row-wise AdaGrad, for bags of one id."""

    def __init__(self) -> None:
        self.weight = torch.zeros(TABLES * TABLE_ROWS, WIDTH)
        self.m = torch.zeros(TABLES * TABLE_ROWS)
        self._first = (torch.arange(TABLES) * TABLE_ROWS).unsqueeze(1)

    def look_up(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rows (B·F,) of the table, and embeddings (B, F, D)."""
        ids = (batch.sparse.values().view(TABLES, -1) + self._first).T.reshape(-1)
        return ids, self.weight.index_select(0, ids).view(-1, TABLES, WIDTH)

    def learn(self, ids: Tensor, gradient: Tensor) -> None:
        """`gradient`: (B, F, D)"""
        rows, place = torch.unique(ids, return_inverse=True)
        g = torch.zeros(len(rows), WIDTH).index_add_(0, place, gradient.view(-1, WIDTH))
        m = self.m.index_select(0, rows) + g.square().mean(1)
        self.m.index_copy_(0, rows, m)
        self.weight.index_add_(0, rows, g.mul_((-0.1 / (m.sqrt() + 1e-8)).unsqueeze(1)))


def mlp(*sizes: int) -> nn.Sequential:
    layers = (part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU()))
    return nn.Sequential(*layers)


class DLRMSketch(nn.Module):
    """(B, F, D), (B, N) -> (B,)"""

    def __init__(self, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        vectors = TABLES + 1
        self.bottom = mlp(FLOATS, *bottom, WIDTH)
        self.top = mlp(vectors * (vectors - 1) // 2 + WIDTH, *top)
        self.head = nn.Linear(top[-1], 1)
        i, j = torch.tril_indices(vectors, vectors, offset=-1)
        self.lower = i * vectors + j

    def forward(self, e_BFD: Tensor, dense: Tensor) -> Tensor:
        x = self.bottom(dense)
        T = torch.cat([x.unsqueeze(1), e_BFD], dim=1)
        Z = torch.bmm(T, T.transpose(1, 2)).flatten(1).index_select(1, self.lower)
        return self.head(self.top(torch.cat([x, Z], dim=1)))[:, 0]


class WukongSketch(nn.Module):
    """(B, F, D), (B, N) -> (B,)"""

    def __init__(self, layers: int, fmb: int, lcb: int, rank: int, hidden: int, head: Sequence[int]) -> None:
        super().__init__()
        self.dense = nn.Sequential(*mlp(FLOATS, hidden), nn.Linear(hidden, WIDTH))
        self.layers = nn.ModuleList()
        n = TABLES + 1
        for _ in range(layers):
            self.layers.append(_WukongSketchLayer(n, fmb, lcb, rank, hidden))
            n = fmb + lcb
        self.head = nn.Sequential(*mlp(n * WIDTH, *head), nn.Linear(head[-1], 1))

    def forward(self, e_BFD: Tensor, dense: Tensor) -> Tensor:
        X = torch.cat([self.dense(dense).unsqueeze(1), e_BFD], dim=1)
        for layer in self.layers:
            X = layer(X)
        return self.head(X.flatten(1))[:, 0]


class _WukongSketchLayer(nn.Module):
    def __init__(self, n: int, fmb: int, lcb: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.Y, self.L = (nn.Parameter(torch.randn(out, n) / n**0.5) for out in (rank, lcb))
        self.R = nn.Parameter(torch.randn(fmb + lcb, n) / n**0.5) if n != fmb + lcb else None
        self.fm_norm, self.norm = nn.LayerNorm(n * rank), nn.LayerNorm(WIDTH)
        self.fm = nn.Sequential(*mlp(n * rank, hidden), nn.Linear(hidden, fmb * WIDTH))

    def forward(self, X: Tensor) -> Tensor:
        products = torch.bmm(X, torch.matmul(self.Y, X).transpose(1, 2)).flatten(1)
        F = self.fm(self.fm_norm(products)).unflatten(1, (-1, WIDTH))
        residual = X if self.R is None else torch.matmul(self.R, X)
        return self.norm(torch.cat([F, torch.matmul(self.L, X)], dim=1) + residual)


class SketchStep:
    """Train a network over tables on labels, with Adam. `bf16`: by torch's own autocast."""

    def __init__(self, net: nn.Module, *, bf16: bool = False) -> None:
        self._bf16 = bf16
        self.net, self.tables = net, TablesSketch()
        self.adam = torch.optim.Adam(net.parameters(), lr=4e-3, fused=True)

    def step(self, batch: Batch) -> None:
        ids, e = self.tables.look_up(batch)
        z = self._logits(e.requires_grad_(), batch)
        self.adam.zero_grad(set_to_none=True)
        nnf.binary_cross_entropy_with_logits(z, batch.labels[:, 0]).backward()
        self.adam.step()
        assert e.grad is not None
        self.tables.learn(ids, e.grad)

    def score(self, batch: Batch) -> None:
        with torch.inference_mode():
            self._logits(self.tables.look_up(batch)[1], batch)

    def _logits(self, e: Tensor, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            return self.net(e, batch.dense).float()


def flops(call: Callable[[], object]) -> int:
    """FLOPs of matrix products of a call."""
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # its import warns where triton is not
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()
