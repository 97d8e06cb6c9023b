"""A served student behind MLflow's interface: raw columns in, a probability per task out."""

from __future__ import annotations

import mlflow
import numpy as np
import pandas as pd
import pytest

from exfm.metrics.classification import sigmoid
from exfm.models.served import load_served
from pipelines.served_model import _load_pyfunc
from pipelines.track.mlflow import LOADER
from tests.support.models.served_students import ROWS, batch_of, save_student

MLMODEL_OF_0_1 = """\
flavors:
  python_function:
    code: null
    data: {data}
    loader_module: pipelines.served_model
    python_version: 3.11.7
    streamable: false
mlflow_version: 3.17.2
model_uuid: m-0448e0900849417999191fad29098579
"""


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


def test_a_model_that_an_earlier_release_registered_is_loaded_by_the_name_it_stores(tmp_path):
    """MLflow imports the module that the stored `MLmodel` names."""
    served = save_student(tmp_path / "data", "v1")
    (tmp_path / "MLmodel").write_text(MLMODEL_OF_0_1.format(data=served.relative_to(tmp_path)))
    predicted = mlflow.pyfunc.load_model(str(tmp_path)).predict(ROWS)
    assert np.array_equal(predicted.to_numpy(), sigmoid(load_served(served).score(batch_of(ROWS))))
    assert LOADER == "pipelines.served_model"
