"""A small world, students of every arm that learn it, and comparisons of their states."""

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from exfm.distillation.arm import Arm
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user", rows=200, transform="index"),
        SparseFeature(name="ad", rows=50, transform="index"),
        SparseFeature(name="topic", rows=10, transform="index"),
    ],
    dense=[DenseFeature(name="hour"), DenseFeature(name="age")],
)


TASKS = ("ctr", "cvr")


SMALL = StudentConfig(trunk=TrunkConfig(mlp=(16, 8), bottom=(8,)), width=4)


ARMS = {
    "none": Arm(kind="none"),
    "single_head": Arm(kind="single_head"),
    "auxiliary_head": Arm(kind="auxiliary_head", weight=1.5, gradient_scale=2, label_scale=1.2),
    "adapter": Arm(kind="auxiliary_head", adapter=True),
}


build = BatchBuilder(FEATURES, TASKS)


def stream(rows, seed=0, batch_rows=256, bias=0.0):
    """Impressions of a small world: users and ads with tastes; a teacher that knows the truth, plus `bias`."""
    world, rng = np.random.default_rng(99), np.random.default_rng(seed)
    of_user, of_ad = world.normal(0, 0.7, 200), world.normal(0, 0.7, 50)
    user, ad = rng.integers(0, 200, rows), rng.integers(0, 50, rows)
    truth = of_user[user] + of_ad[ad] - 1
    click = rng.random(rows) < 1 / (1 + np.exp(-truth))
    bought = rng.random(rows) < 0.3
    table = pa.table(
        {
            "user": user,
            "ad": ad,
            "topic": ad % 10,
            "hour": rng.random(rows).astype(np.float32),
            "age": rng.normal(0, 1, rows).astype(np.float32),
            "label_ctr": click.astype(np.int8),
            "label_cvr": pa.array(bought.astype(np.int8), mask=~click),
            "teacher_logit_ctr": (truth + bias).astype(np.float32),
            "teacher_logit_cvr": pa.array(np.full(rows, -0.85, np.float32), mask=rng.random(rows) < 0.1),
        }
    )
    return [build(table.slice(start, batch_rows)) for start in range(0, rows, batch_rows)]


def student(arm="adapter", seed=5, *, arm_of=None, **changes):
    return Student(SMALL.model_copy(update={"arm": arm_of or ARMS[arm], **changes}), FEATURES, TASKS, seed)


def served(tensors):
    own = ("adapter/", "platt/", "advantage/", "progress/")
    heads = ("dense/auxiliary", "dense/adapted", "adam/auxiliary", "adam/adapted", *own)
    return {key: value for key, value in tensors.items() if not key.startswith(heads)}


class WideAndShort(nn.Module):
    """A trunk of one's own, whose weights come from the global generator."""

    def __init__(self, num_sparse, width, num_dense, *, generator, hidden=4):
        super().__init__()
        self.layer = nn.Linear(num_sparse * width + num_dense, hidden)
        self.out_width = hidden

    def forward(self, e_BFD, dense_BN):
        return self.layer(torch.cat([e_BFD.flatten(1), dense_BN], dim=1)).tanh()


class Forgetful(WideAndShort):
    """A trunk whose every step draws random numbers."""

    def forward(self, e_BFD, dense_BN):
        return nn.functional.dropout(super().forward(e_BFD, dense_BN), 0.4, training=self.training)


FORGETFUL = TrunkConfig(name=f"{__name__}:Forgetful", options={"hidden": 8})
