"""A tiny student that is served, raw rows for it, and what it is registered with."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.served import ServedStudent, save_served
from pipelines.report.results.champion import Champion
from pipelines.served_rows import serving_rules
from pipelines.track.registration import Registration, Version
from streaming.schema import Column, RowSchema, Task

FEATURES = FeatureSet(
    sparse=[SparseFeature(name="user_id", rows=50), SparseFeature(name="ad_id", rows=20)],
    dense=[DenseFeature(name="bid", transform="log1p")],
)


TASKS = ("ctr", "cvr")


SCHEMA = RowSchema(
    columns=(
        Column(name="user_id", minimum=0),
        Column(name="ad_id", nullable=True),
        Column(name="bid", type="float32"),
        Column(name="not_read", type="string"),
    ),
    tasks=tuple(Task(name=task, window_s=60) for task in TASKS),
)


ROWS = pd.DataFrame({"user_id": [1, 2, 99], "ad_id": [5, 6, 7], "bid": np.float32([0.1, 2.0, 30.0])})


def save_student(root, name, seed=3):
    """Where a tiny student with weights of its own is served from."""
    served = ServedStudent(TrunkConfig(mlp=(8,), bottom=(4,)), width=4, features=FEATURES, tasks=TASKS, seed=seed)
    return save_served(served, root / "served", name)


def batch_of(rows):
    return BatchBuilder(FEATURES, TASKS)(pa.Table.from_pandas(rows, preserve_index=False))


def registration(model, served, *, tags=None, twin=None, champion="student"):
    """As a run's end has it: the student, and a twin where there is one."""
    exports = {"twin": twin, "student": served}
    return Registration(
        model=model,
        versions=tuple(
            Version(role, export, dict(tags or {}, role=role), (role, "champion") if role == champion else (role,))
            for role, export in exports.items()
            if export is not None
        ),
        inputs=serving_rules(SCHEMA, FEATURES).schema,
        tasks=TASKS,
        example=ROWS.to_dict("records"),
        settings={"rows": SCHEMA.model_dump(mode="json")},
        champion=Champion(champion),
        why="",
    )
