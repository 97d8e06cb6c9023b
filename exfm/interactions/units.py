"""Looked-up embeddings to units: the embeddings of one width, (B, N, D), that a model's trunk works on.

A sparse feature of width m·D is m units, one after the other. A sequence is pooled to its own number of units.

B examples, E columns that the tables give, L places of a sequence, N units, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.interactions.interaction import InputLabels
from exfm.interactions.pooling import SequencePooling
from exfm.randomness import named_generator

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class Units(nn.Module):
    """((B, E), ids) -> (B, N, D): sparse features in order, then sequences. Without sequences it has no parameters.

    Raises ConfigError as `unit_count` does.
    """

    def __init__(self, features: FeatureSet, width: int, seed: int):
        super().__init__()
        self.count, self.width = unit_count(features, width), width
        self._sparse = self.count - sum(feature.units for feature in features.sequence)
        self._keys = (len(features.sparse), len(features.keys))
        self.pooling = nn.ModuleDict(
            {f.name: SequencePooling(f.length, width, f.units, named_generator(seed, f"sequence/{f.name}"))
             for f in features.sequence}
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


def unit_count(features: FeatureSet, width: int) -> int:
    """Number of units of `width` that the features make. Raises ConfigError where a width is not a multiple of it.

    >>> from exfm.features.features import SparseFeature
    >>> unit_count(FeatureSet(sparse=[SparseFeature(name="ad", rows=9, width=32)]), 8)
    4
    """
    for feature in features.sparse:
        if feature.width and feature.width % width:
            raise ConfigError(
                f"feature `{feature.name}` is {feature.width} wide, the model {width}; make it a multiple of {width}, "
                "or leave its width out"
            )
    sparse = sum((feature.width or width) // width for feature in features.sparse)
    return sparse + sum(feature.units for feature in features.sequence)


def input_labels(features: FeatureSet, width: int) -> InputLabels:
    """Labels of a teacher's units and dense features, in order.

    >>> from exfm.features.features import SparseFeature
    >>> features = FeatureSet(sparse=[SparseFeature(name="ad", rows=9), SparseFeature(name="user", rows=9, width=8)])
    >>> input_labels(features, 4).embeddings
    (('unit', 'ad', 0), ('unit', 'user', 0), ('unit', 'user', 1))
    """
    counts = {feature.name: (feature.width or width) // width for feature in features.sparse}
    counts |= {feature.name: feature.units for feature in features.sequence}
    return InputLabels(
        embeddings=tuple(("unit", name, j) for name, count in counts.items() for j in range(count)),
        dense=tuple(("dense", label) for label in features.dense_labels),
    )
