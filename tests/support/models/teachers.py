"""A small teacher's config and features, and rows that it learns."""

import numpy as np
import pyarrow as pa

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.teacher_config import TeacherConfig

CFG = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))


FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50),
        SparseFeature(name="user", rows=80, width=8),
        SparseFeature(name="history", rows=20),
    ],
    dense=[DenseFeature(name="price", transform="log1p")],
)


TASKS = ("ctr", "cvr")


def rows(seed, count=64, known=0.5):
    rng = np.random.default_rng(seed)
    ad = rng.integers(0, 30, count)
    clicked = rng.random(count) < np.where(ad % 2, 0.8, 0.1)
    return pa.table(
        {
            "ad": ad,
            "user": rng.integers(0, 1000, count),
            "history": pa.array([list(range(n)) for n in rng.integers(0, 4, count)], pa.list_(pa.int64())),
            "price": pa.array(rng.random(count), pa.float32()),
            "label_ctr": clicked.astype(np.int8),
            "label_cvr": pa.array(rng.integers(0, 2, count).astype(np.int8), mask=rng.random(count) >= known),
        }
    )


def batch(seed, **options):
    return BatchBuilder(FEATURES, TASKS)(rows(seed, **options))
