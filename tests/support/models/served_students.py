"""A tiny student that is served, and raw rows for it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from exfm.data import BatchBuilder, DenseFeature, FeatureSet, SparseFeature
from exfm.layers import TrunkConfig
from exfm.models import ServedStudent, save_served

FEATURES = FeatureSet(
    sparse=[SparseFeature(name="user_id", rows=50), SparseFeature(name="ad_id", rows=20)],
    dense=[DenseFeature(name="bid", transform="log1p")],
)


TASKS = ("ctr", "cvr")


ROWS = pd.DataFrame({"user_id": [1, 2, 99], "ad_id": [5, 6, 7], "bid": np.float32([0.1, 2.0, 30.0])})


def save_student(root, name, seed=3):
    """Where a tiny student with weights of its own is served from."""
    served = ServedStudent(TrunkConfig(mlp=(8,), bottom=(4,)), width=4, features=FEATURES, tasks=TASKS, seed=seed)
    return save_served(served, root / "served", name)


def batch_of(rows):
    return BatchBuilder(FEATURES, TASKS)(pa.Table.from_pandas(rows, preserve_index=False))
