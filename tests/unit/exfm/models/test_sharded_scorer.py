"""A scorer of sharded tables is a replica, to the bit, where one rank holds them all."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50),
        SparseFeature(name="user", rows=81),
        SparseFeature(name="words", rows=64, width=8),
    ],
    dense=[DenseFeature(name="bid")],
)
CFG = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))
TASKS = ["ctr", "cvr"]
TYPES = (
    "table_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
    "row_wise",
)
ROWS = 64


def rows(words: int) -> pa.Table:
    """`words` ids in every bag of the feature of that name."""
    drawn = np.random.default_rng(7)
    return pa.table(
        {
            "ad": drawn.integers(0, 99, ROWS),
            "user": drawn.integers(0, 999, ROWS),
            "words": drawn.integers(0, 999, (ROWS, words)).tolist(),
            "bid": drawn.random(ROWS),
        }
    )


def snapshot() -> dict[str, torch.Tensor]:
    """A teacher that says something of everything."""
    with RankGroup() as group:
        tensors = Teacher(CFG, FEATURES, TASKS, 0, group=group).snapshot()
    drawn = torch.Generator().manual_seed(1)
    for name in sorted(tensors):
        tensors[name].normal_(0, 0.5, generator=drawn)
        if name.startswith("prior/"):  # counts
            tensors[name].abs_()
    return tensors


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("words", [1, 3])
def test_a_group_of_one_is_a_replica(kind, words):
    tensors = snapshot()
    replica = TeacherScorer(CFG, FEATURES, TASKS)
    replica.load(tensors)
    batch = BatchBuilder(FEATURES, TASKS)(rows(words))
    with RankGroup() as group:
        scorer = TeacherScorer(CFG, FEATURES, TASKS, group=group, sharding=Sharding(types=(kind,)))
        scorer.load(tensors)
        assert np.ptp(scorer.score(batch)) > 0.5
        assert (scorer.score(batch) == replica.score(batch)).all()
