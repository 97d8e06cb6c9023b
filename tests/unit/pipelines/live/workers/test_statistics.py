"""Statistics of dense features in a run: a student's worker keeps, stores and serves them."""

from __future__ import annotations

import numpy as np
import pytest

from exfm.models.served import load_served
from pipelines.core.config.settings import load
from pipelines.served_model import _load_pyfunc
from tests.support.models.states import same
from tests.support.pipelines.raw_configs import refusal, small
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.pipelines.student_at_work import learn, starting

SCALED = {"name": "bid", "transform": "log1p", "statistics": "online"}
CUT = {"name": "depth", "column": "bid", "transform": "quantiles"}


@pytest.fixture
def started(tmp_path):
    """Starts a worker of a student, with a twin, in one run directory."""
    config = load(SMALL_RUN, [f"features.dense={[SCALED, CUT]}", "students.0.features=[]"])
    with starting(config, tmp_path) as start:
        yield start


def test_a_students_worker_that_was_stopped_goes_on_with_its_statistics(started):
    first = started()
    learn(first, 0, 1)
    first.abandon()
    second = started()
    assert second.position == 63
    learn(second, 2)
    for name, one in first.state.engine.models.items():
        one.train_step(first.build(rows_of(2)))  # as if it had never been stopped
        assert same(one.state(), second.state.engine.models[name].state())
    kept = second.state.engine.state()
    assert kept["student/statistics/bid/total"][0] == kept["no_teacher/statistics/depth/counts"].sum() == 96


def test_what_is_served_answers_from_raw_columns_with_the_statistics_of_its_moment(started, tmp_path):
    worker = started()
    learn(worker, 0, 1, 2)
    probe, batch = rows_of(9), worker.build(rows_of(9))
    path = sorted((tmp_path / "snapshots" / "students" / "feed").glob("v*"))[-1]
    assert np.array_equal(load_served(path).score(batch), worker.state.engine.student.score(batch))
    asked = probe.select(["user_id", "ad_id", "bid"]).to_pandas()
    answered = _load_pyfunc(str(path)).predict(asked)["ctr"].to_numpy()
    assert np.allclose(answered, 1 / (1 + np.exp(-worker.state.engine.student.score(batch)[:, 0])), atol=1e-6)


def test_statistics_of_a_transform_that_has_none_are_refused():
    raw = small()
    raw["features"]["dense"] = [{"name": "bid", "statistics": "online"}]
    assert "`statistics: online` belongs to transform `standardise`, `log1p` or" in refusal(raw)


def test_a_served_model_does_not_ask_for_what_is_known_in_training_only(tmp_path):
    place = {"name": "ad_id", "rows": 1000, "serve_as": 3}
    config = load(SMALL_RUN, [f"features.sparse={[{'name': 'user_id', 'rows': 1000}, place]}",
                                             "students.0.features=[]"])  # fmt: skip
    with starting(config, tmp_path) as start:
        worker = start()
        learn(worker, 0, 1, 2)
        path = sorted((tmp_path / "snapshots" / "students" / "feed").glob("v*"))[-1]
        asked = rows_of(9).select(["user_id", "bid"]).to_pandas()
        answered = _load_pyfunc(str(path), {"rows": config.rows.model_dump(mode="json")}).predict(asked)["ctr"]
        said = worker.state.engine.student.score(worker.build(rows_of(9)))
        assert np.allclose(answered, 1 / (1 + np.exp(-said[:, 0])), atol=1e-6)


def test_a_constant_of_another_type_than_its_column_is_refused():
    raw = small()
    raw["features"]["sparse"][0]["serve_as"] = "first"
    assert "feature `user_id` has serve_as `first`, and its column `user_id` is int64" in refusal(raw)


def test_lists_of_another_length_than_a_feature_reads_are_refused():
    raw = small()
    raw["rows"]["columns"].append({"name": "v", "type": "list<float32>", "length": 3})
    raw["features"]["dense"].append({"name": "v", "length": 4})
    assert "feature `v` reads lists of 4 floats, and column `v` is list<float32> of length 3; declare it" in refusal(
        raw
    )
