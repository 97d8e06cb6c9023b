"""What MLflow has of a run, in a real SQLite store; and what happens to training when there is no store: nothing."""

from __future__ import annotations

import json
import threading

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from exfm.metrics.classification import sigmoid
from exfm.models.served import load_served
from pipelines.track.mlflow import Tracker
from tests.support.models.served_students import ROWS, batch_of, registration, save_student
from tests.support.pipelines.mlflow_stores import empty_store
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One SQLite store for all tests."""
    return empty_store(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def client(store):
    return MlflowClient(store)


@pytest.fixture
def open_tracker(store, tmp_path, request):
    """A tracker of this test's own experiment; the same one again when called again, as after a restart."""

    def make(uri=store, interval_s=0.1, **options):
        options = {"settings_wait_s": 0, **options}
        return Tracker(uri, tmp_path / "artifacts", request.node.name, tmp_path / "runs.json", interval_s, **options)

    return make


def runs_of(client, request):
    experiment = client.get_experiment_by_name(request.node.name)
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def test_every_worker_has_a_run_with_its_params_metrics_and_end(open_tracker, client, request):
    tracker = open_tracker()
    tracker.params("teacher", {"width": 16, "mlp": [64, 32], "long": "x" * 900})
    tracker.params("student-feed", {"width": 8})
    for step in (1000, 2000):
        tracker.metrics("teacher", step, {"ne_ctr": 900 / step, "auc_ctr": 0.7})
    tracker.finish("teacher")
    tracker.finish("student-feed", "FAILED")
    tracker.close()
    assert (tracker.problem, tracker.dropped) == (None, 0)
    runs = runs_of(client, request)
    assert runs.keys() == {"teacher", "student-feed"}
    teacher = runs["teacher"]
    assert teacher.data.params == {"width": "16", "mlp": "[64, 32]", "long": "x" * 500}
    history = client.get_metric_history(teacher.info.run_id, "ne_ctr")
    assert [(m.step, m.value) for m in history] == [(1000, 0.9), (2000, 0.45)]
    assert [teacher.info.status, runs["student-feed"].info.status] == ["FINISHED", "FAILED"]


def test_metrics_are_written_many_to_a_call(open_tracker, client, request, monkeypatch):
    sizes = []
    plain = MlflowClient.log_batch

    def counted(self, run_id, metrics=(), **rest):
        sizes.append(len(metrics))
        return plain(self, run_id, metrics=metrics, **rest)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    tracker = open_tracker(interval_s=60)
    for step in range(400):
        tracker.metrics("teacher", step, {"a": 1.0, "b": 2.0, "c": 3.0})
    tracker.close()
    assert sizes == [500, 500, 200]
    assert len(client.get_metric_history(runs_of(client, request)["teacher"].info.run_id, "b")) == 400


def test_a_resumed_run_goes_on_in_the_same_mlflow_runs(open_tracker, client, request):
    first = open_tracker()
    first.params("teacher", {"width": 16})
    first.metrics("teacher", 1, {"ne": 0.9})
    first.finish("teacher")
    first.close()
    again = open_tracker()
    again.params("teacher", {"width": 16, "depth": 2})  # known ones are not said twice: MLflow refuses changes
    again.metrics("teacher", 2, {"ne": 0.8})
    again.close()
    assert (again.problem, again.dropped) == (None, 0)
    teacher = runs_of(client, request)["teacher"]
    assert len(runs_of(client, request)) == 1
    assert teacher.data.params == {"width": "16", "depth": "2"}
    assert [m.value for m in client.get_metric_history(teacher.info.run_id, "ne")] == [0.9, 0.8]
    assert teacher.info.status == "RUNNING"  # until it is finished again


def test_a_run_that_the_store_has_lost_is_begun_anew(open_tracker, client, request, tmp_path):
    first = open_tracker()
    first.metrics("teacher", 1, {"ne": 0.9})
    first.metrics("student", 1, {"ne": 0.9})
    first.close()
    before = runs_of(client, request)
    client.delete_run(before["teacher"].info.run_id)
    runs = tmp_path / "runs.json"
    runs.write_text(runs.read_text().replace(before["student"].info.run_id, "0" * 32))
    again = open_tracker()
    again.metrics("teacher", 2, {"ne": 0.8})
    again.metrics("student", 2, {"ne": 0.7})
    again.close()
    assert (again.problem, again.dropped) == (None, 0)
    experiment = client.get_experiment_by_name(request.node.name)
    found = [(run.info.run_name, run.data.metrics["ne"]) for run in client.search_runs([experiment.experiment_id])]
    assert sorted(found) == [("student", 0.7), ("student", 0.9), ("teacher", 0.8)]


def test_a_run_that_is_deleted_in_the_middle_is_begun_anew_with_its_params(open_tracker, client, request):
    tracker = open_tracker()
    tracker.params("teacher", {"width": 16})
    tracker.metrics("teacher", 1, {"ne": 0.9})
    experiment = eventually(lambda: client.get_experiment_by_name(request.node.name))
    find = lambda: [r for r in client.search_runs([experiment.experiment_id]) if "ne" in r.data.metrics]  # noqa: E731
    (before,) = eventually(find)
    client.delete_run(before.info.run_id)
    tracker.metrics("teacher", 2, {"ne": 0.8})
    tracker.close()
    assert (tracker.problem, tracker.dropped) == (None, 0)
    anew = runs_of(client, request)["teacher"]
    assert anew.info.run_id != before.info.run_id
    assert (anew.data.params, anew.data.metrics) == ({"width": "16"}, {"ne": 0.8})


def test_an_experiment_that_is_deleted_in_the_middle_costs_what_follows_until_it_is_restored(
    open_tracker, client, request
):
    tracker = open_tracker()
    tracker.metrics("teacher", 1, {"ne": 0.9})
    experiment = eventually(lambda: client.get_experiment_by_name(request.node.name))
    eventually(lambda: [r for r in client.search_runs([experiment.experiment_id]) if "ne" in r.data.metrics])
    client.delete_experiment(experiment.experiment_id)
    tracker.metrics("teacher", 2, {"ne": 0.8})
    eventually(lambda: tracker.problem)
    words = (
        f"MLflow at {tracker.uri}: its experiment `{request.node.name}` was deleted, and takes nothing; to go on in it"
    )
    assert str(tracker.problem).startswith(words)
    assert f"mlflow experiments restore --experiment-id {experiment.experiment_id}" in str(tracker.problem)
    assert tracker.dropped == 1
    again = open_tracker()  # as after a restart, while it is deleted
    again.metrics("student", 3, {"ne": 0.7})
    eventually(lambda: str(again.problem).startswith(words))
    client.restore_experiment(experiment.experiment_id)
    tracker.metrics("teacher", 4, {"ne": 0.6})
    for each in (tracker, again):
        each.close()
    assert (tracker.dropped, again.dropped, again.problem) == (1, 0, None)
    assert [m.step for m in client.get_metric_history(runs_of(client, request)["teacher"].info.run_id, "ne")] == [1, 4]
    assert runs_of(client, request)["student"].data.metrics == {"ne": 0.7}


def test_a_registered_student_is_loaded_by_its_alias_and_predicts_as_served(open_tracker, client, request, tmp_path):
    served = save_student(tmp_path, "v1")
    tracker = open_tracker()
    tracker.register("student-feed", registration("small-feed", served, tags={"config_hash": "abc", "position": "7"}))
    tracker.close()
    assert (tracker.problem, tracker.dropped) == (None, 0)
    mlflow.set_tracking_uri(tracker.uri)
    model = mlflow.pyfunc.load_model("models:/small-feed@champion")
    predicted = model.predict(ROWS)
    assert isinstance(predicted, pd.DataFrame)
    expected = sigmoid(load_served(served).score(batch_of(ROWS)))
    assert np.array_equal(predicted.to_numpy(), expected)
    assert list(predicted.columns) == ["ctr", "cvr"]
    version = client.get_model_version_by_alias("small-feed", "champion")
    assert version.tags == {"config_hash": "abc", "position": "7", "role": "student"}
    assert version.run_id == runs_of(client, request)["student-feed"].info.run_id

    better = save_student(tmp_path, "v2", seed=9)
    tracker = open_tracker()
    tracker.register("student-feed", registration("small-feed", better))
    tracker.close()
    assert client.get_model_version_by_alias("small-feed", "champion").version == 2
    now = mlflow.pyfunc.load_model("models:/small-feed@champion").predict(ROWS)
    assert not np.array_equal(now, predicted)


def test_an_artifact_lies_where_the_run_keeps_its_own(open_tracker, client, request, tmp_path):
    (tmp_path / "ne.png").write_bytes(b"picture")
    tracker = open_tracker()
    tracker.artifact("student-feed", tmp_path / "ne.png")
    tracker.close()
    run = runs_of(client, request)["student-feed"]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["ne.png"]
    assert len(list((tmp_path / "artifacts").rglob("ne.png"))) == 1


# --- no store -------------------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_made_costs_metrics_and_says_so(open_tracker, tmp_path):
    (tmp_path / "file").touch()
    tracker = open_tracker(uri=f"sqlite:///{tmp_path / 'file' / 'below' / 'mlflow.db'}")
    tracker.params("teacher", {"width": 16})
    tracker.metrics("teacher", 1, {"ne": 0.9, "auc": 0.7})
    tracker.close(PATIENCE_S)
    assert tracker.dropped == 3  # the params and two values
    assert str(tmp_path / "file") in str(tracker.problem)
    assert "did not take" not in str(tracker.problem)  # nobody waited in vain


def test_a_store_that_never_answers_is_left_after_the_time_given(open_tracker, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *_: answered.wait())
    tracker = open_tracker()
    for step in range(2000):
        tracker.metrics("teacher", step, {"ne": 0.9})
    tracker.params("teacher", {"width": 16})  # nobody who trains waits: there is never an answer
    tracker.close(0.2)
    assert tracker.dropped == 2001
    assert str(tracker.problem).endswith("did not take the last 2001 entries within 0.2 s")
    answered.set()


def test_memory_stays_bounded_while_a_store_is_away(open_tracker, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *_: answered.wait())
    tracker = open_tracker(queue_entries=100)
    for step in range(150):
        tracker.metrics("teacher", step, {"ne": 0.9, "auc": 0.5})
        tracker.params("teacher", {"step": step})
    assert tracker.dropped == (300 - 100) + (150 - 100)
    tracker.close(0.1)
    assert tracker.dropped == 300 + 150
    answered.set()


@pytest.mark.parametrize("more", ["metrics", "finish", "close"])
def test_settings_alone_wait_until_there_is_more_to_write(open_tracker, monkeypatch, more):
    asked = threading.Event()
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *_: asked.set())
    tracker = open_tracker(settings_wait_s=60)
    tracker.params("teacher", {"width": 16})
    assert not asked.wait(0.3)
    {"metrics": lambda: tracker.metrics("teacher", 1, {"ne": 0.9}), "finish": lambda: tracker.finish("teacher")}.get(
        more, tracker.close
    )()
    assert asked.wait(PATIENCE_S)
    tracker.close()


def test_settings_are_written_though_nothing_follows(open_tracker, client, request):
    tracker = open_tracker(settings_wait_s=0.1)
    tracker.params("teacher", {"width": 16})
    eventually(lambda: client.get_experiment_by_name(request.node.name), look_s=0.01)
    tracker.close()


def test_a_store_that_fails_for_a_while_loses_that_while_only(open_tracker, client, request, monkeypatch):
    plain, failures = MlflowClient.log_batch, iter([True])

    def flaky(self, run_id, **rest):
        if rest.get("metrics") and next(failures, False):
            raise OSError("database is locked")
        return plain(self, run_id, **rest)

    monkeypatch.setattr(MlflowClient, "log_batch", flaky)
    tracker = open_tracker()
    tracker.metrics("teacher", 1, {"ne": 0.9, "auc": 0.7})
    eventually(lambda: tracker.dropped)
    tracker.metrics("teacher", 2, {"ne": 0.8, "auc": 0.7})
    tracker.close()
    assert tracker.dropped == 2
    assert "OSError: database is locked" in str(tracker.problem)
    run = runs_of(client, request)["teacher"]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "ne")] == [2]


def test_a_store_deleted_in_the_middle_costs_what_comes_after_and_says_so(open_tracker, tmp_path):
    file = tmp_path / "lost.db"
    tracker = open_tracker(uri=f"sqlite:///{file}")
    tracker.metrics("teacher", 1, {"ne": 0.9})
    tracker.close()
    assert tracker.dropped == 0
    (run_id,) = json.loads((tmp_path / "runs.json").read_text()).values()
    MlflowClient(tracker.uri).set_terminated(run_id)
    tracker = open_tracker(uri=f"sqlite:///{file}")
    eventually(lambda: MlflowClient(tracker.uri).get_run(run_id).info.status == "RUNNING", look_s=0.01)
    file.unlink()
    tracker.metrics("teacher", 2, {"ne": 0.8, "auc": 0.7})
    tracker.close()
    assert tracker.dropped == 2
    assert f"MLflow at sqlite:///{file}: its file is gone" in str(tracker.problem)


def test_a_run_whose_store_was_lost_begins_anew_in_another(open_tracker, client, request, tmp_path):
    (tmp_path / "runs.json").write_text('{"teacher": "of a store that is no more"}')
    tracker = open_tracker()
    tracker.metrics("teacher", 3, {"ne": 0.7})
    tracker.close()
    assert (tracker.problem, tracker.dropped) == (None, 0)
    assert runs_of(client, request)["teacher"].data.metrics == {"ne": 0.7}


def test_what_one_worker_cannot_have_written_costs_no_other(open_tracker, client, request):
    tracker = open_tracker()
    tracker.metrics("teacher", 1, {"not a ' legal \\ name": 1.0})
    tracker.metrics("student", 1, {"ne": 0.9})
    tracker.close()
    assert tracker.dropped == 1
    assert runs_of(client, request)["student"].data.metrics == {"ne": 0.9}
