"""Linear layers and multi-layer perceptrons, initialised as in DLRM (arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def seeded_linear(n: int, m: int, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    """A map from n to m values with W ~ N(0, √(2/(m+n))) and b ~ N(0, √(1/m)), drawn from `generator` only."""
    layer = nn.Linear(n, m, bias=bias, device="meta")  # or it would draw weights of its own first
    layer.weight = nn.Parameter(torch.empty(m, n).normal_(0.0, (2 / (m + n)) ** 0.5, generator=generator))
    if bias:
        layer.bias = nn.Parameter(torch.empty(m).normal_(0.0, (1 / m) ** 0.5, generator=generator))
    return layer


def seeded_mlp(n: int, sizes: Sequence[int], generator: torch.Generator, last_relu: bool = True) -> nn.Sequential:
    """Linear layers of the given output sizes with a ReLU after each; with `last_relu` also after the last one.

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
