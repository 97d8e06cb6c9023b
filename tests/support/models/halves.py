"""A kind of table of our own, in one file: an id is two halves, both of one table that has a quarter of the rows.

e(id) = [w[id mod R]; w[mix(id) mod R]]        ids that share one half differ in the other, as a rule
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from exfm.embeddings.table import Table
from exfm.errors import ModelError
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.snapshots.windows import TensorSource


class Halves(Table):
    parts: ClassVar[int] = 2

    @classmethod
    def of(cls, feature: SparseFeature | SequenceFeature, width: int) -> Table:
        return cls(feature.name, max(2, feature.rows // 4), width // 2, (feature.name,))

    def read(self, ids_N: Tensor) -> Tensor:
        mixed = (ids_N * 2654435761) >> 16
        return torch.stack([ids_N % self.rows, mixed % self.rows], dim=1).unsqueeze(2)

    def grow(self, stored: TensorSource, initial: TensorSource) -> TensorSource:
        raise ModelError(f"the halves of `{self.name}` belong to {stored.shape[0]} rows; begin another table")
