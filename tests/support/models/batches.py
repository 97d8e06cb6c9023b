"""Batches of which only the labels matter."""

from __future__ import annotations

import pyarrow as pa
from torch import Tensor

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

BUILD = BatchBuilder(FeatureSet(sparse=(SparseFeature(name="ad", rows=2),)), ["ctr"])


def batch_of_labels(labels: Tensor, known: Tensor | None = None) -> Batch:
    """Rows with these labels (B, 1); `known` (B, 1) bool, None: all of them."""
    y = labels[:, 0].int().numpy()
    mask = None if known is None else ~known[:, 0].numpy()
    return BUILD(pa.table({"ad": [0] * len(y), "label_ctr": pa.array(y, pa.int8(), mask=mask)}))
