"""Looked-up embeddings to units: the embeddings of one width, (B, N, D), that a model's trunk works on.

A sparse feature of width m·D is m units, one after the other. A sequence is pooled to its own number of units.

The pooling is attention: the PMA of Set Transformer (arXiv 1810.00825, one head), with positions.

    S = E + P                                   E the ids' embeddings, P what their place adds
    Z = softmax(Q (S W_K)ᵀ / √D, over places that hold an id) S W_V

B examples, E columns that the tables give, L places of a sequence (0 the most recent), N units, U those of one
sequence, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from exfm.features.features import FeatureSet
from exfm.features.histories.recent import RecentAttention
from exfm.interactions.interaction import InputLabels
from exfm.randomness import named_generator, seeded_linear

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


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


class Units(nn.Module):
    """((B, E), ids) -> (B, N, D): sparse features in order, then sequences. Without sequences, and without
    histories that are read from a row's units (`reading`), it has no parameters.

    Raises ConfigError as `FeatureSet.unit_count` does.
    """

    def __init__(self, features: FeatureSet, width: int, seed: int):
        super().__init__()
        self.count, self.width = features.unit_count(width), width
        self._sparse = self.count - sum(feature.units for feature in features.sequence)
        self._keys = (len(features.sparse), len(features.keys))
        self.pooling = nn.ModuleDict(
            {f.name: SequencePooling(f.length, width, f.units, named_generator(seed, f"sequence/{f.name}"))
             for f in features.sequence}
        )  # fmt: skip
        self.reading = nn.ModuleDict(
            {h.name: RecentAttention(h, self.count, width)
             for h in features.history
             if h.of is not None and h.pool == "attention"}
        )  # fmt: skip
        self._lengths = [feature.length for feature in features.sequence]
        self.has_no_sequences = not self._lengths

    def forward(self, pooled_BE: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        X = pooled_BE.unflatten(1, (-1, self.width))
        if not self._lengths:
            return X
        e_BND, *sequences = X.split([self._sparse, *self._lengths], dim=1)
        first, keys = self._keys
        there_KB = sparse.lengths().view(keys, len(X))[first:] > 0
        masks = there_KB.split(self._lengths)
        pooled = [pool(S, m.T) for pool, S, m in zip(self.pooling.values(), sequences, masks, strict=True)]
        return torch.cat([e_BND, *pooled], dim=1)


def input_labels(features: FeatureSet, width: int) -> InputLabels:
    """Labels of a teacher's units and dense features, in order.

    >>> from exfm.features.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9, width=8)])
    >>> input_labels(features, 4).embeddings
    (('unit', 'ad', 0), ('unit', 'user', 0), ('unit', 'user', 1))
    """
    counts = {feature.name: (feature.width or width) // width for feature in features.sparse}
    counts |= {feature.name: feature.units for feature in features.sequence}
    counts |= {feature.name: 1 for feature in features.events}
    return InputLabels(
        embeddings=tuple(("unit", name, j) for name, count in counts.items() for j in range(count)),
        dense=tuple(("dense", label) for label in features.dense_labels),
    )
