"""Multi-layer perceptrons, initialised as in DLRM (arXiv 1906.00091), and their two passes by hand.

    y_l = relu(W_l y_{l−1} + b_l)        g_l = ∂L/∂y_l where y_l > 0, else 0
    ∂W_l = g_lᵀ y_{l−1}    ∂b_l = Σ_B g_l    ∂L/∂y_{l−1} = g_l W_l

The operators, and so the bits, are those of the modules and of autograd; with a few hundred rows it is the calls around
them that take the time.

B examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from exfm.loops import loop


def seeded_linear(n: int, m: int, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    """A map from n to m values with W ~ N(0, √(2/(m+n))) and b ~ N(0, √(1/m)), drawn from `generator` alone."""
    layer = nn.Linear(n, m, bias=bias, device="meta")  # or it would draw weights of its own first
    layer.weight = nn.Parameter(torch.empty(m, n).normal_(0.0, (2 / (m + n)) ** 0.5, generator=generator))
    if bias:
        layer.bias = nn.Parameter(torch.empty(m).normal_(0.0, (1 / m) ** 0.5, generator=generator))
    return layer


def seeded_mlp(n: int, sizes: Sequence[int], generator: torch.Generator, last_relu: bool = True) -> nn.Sequential:
    """Linear layers of the given output sizes with a ReLU after each; `last_relu` says whether the last one has it,
    too.

    No sizes: the identity.

    >>> seeded_mlp(13, (64, 16), torch.Generator())(torch.zeros(2, 13)).shape
    torch.Size([2, 16])
    """
    layers: list[nn.Module] = []
    for i, m in enumerate(sizes):
        layers.append(seeded_linear(n, m, generator))
        if last_relu or i < len(sizes) - 1:
            layers.append(nn.ReLU())
        n = m
    return nn.Sequential(*layers)


def outputs(mlp: nn.Module, x: Tensor) -> list[Tensor]:
    """x (B, n) and what each layer of a `seeded_mlp` makes of it, without gradient; the last is the MLP's output."""
    y = [x]
    for W, b in _linears(mlp):
        y.append(nnf.linear(y[-1], W, b).relu_())
    return y


def gradients(mlp: nn.Module, y: Sequence[Tensor], of_last: Tensor, *, of_input: bool) -> Iterator[Tensor]:
    """Of `outputs`, from that of the last, which is written over: ∂W, ∂b of each layer, the last one's first; then with
    `of_input` that of x."""
    g = of_last
    for n, (W, _) in reversed(list(enumerate(_linears(mlp)))):
        _where_positive(y[n + 1].numpy(), g.numpy())
        yield g.T @ y[n]
        yield g.sum(0)
        if n or of_input:
            g = g @ W
    if of_input:
        yield g


def _linears(mlp: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """W and b of each layer. They are looked up where modules keep them: to ask the modules takes as long again."""
    for layer in mlp._modules.values():
        if isinstance(layer, nn.Linear):
            yield layer._parameters["weight"], layer._parameters["bias"]  # type: ignore[misc]


@loop("void(f4[:, ::1], f4[:, ::1])")
def _where_positive(y_BH, g_BH):
    """0 elsewhere."""
    for b in range(len(y_BH)):
        for h in range(y_BH.shape[1]):
            g_BH[b, h] = g_BH[b, h] if y_BH[b, h] > 0 else np.float32(0)
