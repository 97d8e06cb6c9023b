"""A served student behind MLflow's interface: raw columns in, a probability per task out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from exfm.data import BatchBuilder, DenseFeature, FeatureSet, SparseFeature
from exfm.layers import Trunk
from exfm.metrics import sigmoid
from exfm.models import ServedStudent, load_served, save_served
from pipelines.tracking.served_model import _load_pyfunc

FEATURES = FeatureSet(
    sparse=[SparseFeature(name="user_id", rows=50), SparseFeature(name="ad_id", rows=20)],
    dense=[DenseFeature(name="bid", transform="log1p")],
)
TASKS = ("ctr", "cvr")
ROWS = pd.DataFrame({"user_id": [1, 2, 99], "ad_id": [5, 6, 7], "bid": np.float32([0.1, 2.0, 30.0])})


def save_student(root, name, seed=3):
    """Where a tiny student with weights of its own is served from."""
    served = ServedStudent(Trunk(mlp=(8,), bottom=(4,)), width=4, features=FEATURES, tasks=TASKS, seed=seed)
    return save_served(served, root / "served", name)


def batch_of(rows):
    return BatchBuilder(FEATURES, TASKS)(pa.Table.from_pandas(rows, preserve_index=False))


@pytest.fixture
def served(tmp_path):
    return save_student(tmp_path, "v1")


def test_raw_columns_go_in_and_a_probability_per_task_comes_out(served):
    predicted = _load_pyfunc(str(served)).predict(ROWS)
    assert list(predicted.columns) == ["ctr", "cvr"]
    assert np.array_equal(predicted.to_numpy(), sigmoid(load_served(served).score(batch_of(ROWS))))
    assert ((predicted > 0) & (predicted < 1)).all(axis=None)


def test_rows_keep_their_index_whatever_columns_come_with_them(served):
    rows = ROWS.assign(impression_id=[7, 8, 9], label_ctr=[0, 1, 0]).set_index("impression_id")[::-1]
    predicted = _load_pyfunc(str(served)).predict(rows)
    assert list(predicted.index) == [9, 8, 7]
    assert np.allclose(predicted[::-1].to_numpy(), _load_pyfunc(str(served)).predict(ROWS).to_numpy(), atol=1e-6)


def test_a_row_without_a_value_is_predicted_too(served):
    rows = ROWS.astype({"user_id": "Int64"})
    rows.loc[0, "user_id"] = pd.NA
    assert np.isfinite(_load_pyfunc(str(served)).predict(rows).to_numpy()).all()
