"""Attention pooling of a sequence: the PMA of Set Transformer (arXiv 1810.00825, one head), with positions.

    S = E + P                                   E the ids' embeddings, P what their place adds
    Z = softmax(Q (S W_K)ᵀ / √D, over places that hold an id) S W_V

B examples, L places (0 the most recent), U embeddings out (units), D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from exfm.interactions.dense import seeded_linear


class SequencePooling(nn.Module):
    """`units` learned queries over a sequence. P makes the order of ids matter; a sequence without any id gives zeros,
    as an empty bag does.

    Shapes: (B, L, D), (B, L) bool -> (B, U, D).

    >>> pool = SequencePooling(length=3, width=4, units=2, generator=torch.Generator())
    >>> pool(torch.ones(5, 3, 4), torch.ones(5, 3, dtype=torch.bool)).shape
    torch.Size([5, 2, 4])
    """

    def __init__(self, length: int, width: int, units: int, generator: torch.Generator):
        super().__init__()
        self.Q = seeded_linear(width, units, generator, bias=False).weight  # (U, D)
        bound = length**-0.5  # a table of places, starting as tables of ids do
        self.P = nn.Parameter(torch.empty(length, width).uniform_(-bound, bound, generator=generator))
        self.W_K = seeded_linear(width, width, generator, bias=False).weight
        self.W_V = seeded_linear(width, width, generator, bias=False).weight

    def forward(self, E: Tensor, there: Tensor) -> Tensor:
        S = E + self.P
        d = S.shape[-1]
        scores_BUL = self.Q @ (S @ self.W_K).transpose(1, 2) / d**0.5
        absent = ~there.unsqueeze(1)
        # The lowest number and not −∞: where nothing is there, softmax of that only would be 0/0.
        A = torch.softmax(scores_BUL.masked_fill(absent, torch.finfo(S.dtype).min), dim=2).masked_fill(absent, 0.0)
        return A @ (S @ self.W_V)
