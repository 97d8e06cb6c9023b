"""Models straight from MLflow's registry: the alias is followed, a number stays, what cannot be is said in words."""

from __future__ import annotations

import gc
import json

import mlflow
import numpy as np
import pytest

from exfm.errors import ModelError
from pipelines.cli import console as cli
from pipelines.serve.app import Server
from pipelines.serve.model_store import open_model_store
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.sources import model_sources
from pipelines.serve.tables import TableSettings
from pipelines.track.mlflow import RegisteredModels, Tracker
from streaming.errors import BadInput
from tests.support.hostile_pickle import unread_pickle
from tests.support.models.served_students import ROWS, registration, save_student
from tests.support.pipelines.served_runs import ask

MODEL = "small-feed"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two versions of a model, the second is champion."""
    root = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    tracker = Tracker(uri, root / "artifacts", "test", root / "runs.json", 0.1)
    for name, seed in (("v1", 3), ("v2", 9)):
        tracker.register("student-feed", registration(MODEL, save_student(root, name, seed=seed)))
    tracker.close()
    assert tracker.problem is None
    return uri


def answer(model_store):
    rows = json.loads(ROWS.to_json(orient="records", double_precision=15))
    said = ask(Server(model_store).app, "POST", f"/v1/models/{MODEL}:predict", json.dumps({"rows": rows}).encode())
    assert said.code == 200, said.body
    value = json.loads(said.body)
    return value["version"], np.array([[row["ctr"], row["cvr"]] for row in value["predictions"]])


def expected(store, number):
    mlflow.set_tracking_uri(store)
    return mlflow.pyfunc.load_model(f"models:/{MODEL}/{number}").predict(ROWS).to_numpy()


def test_an_alias_is_followed_and_a_number_is_not(store):
    model_store = open_model_store(model_sources([f"models:/{MODEL}@champion"], None, tracking_uri=store))
    pinned = open_model_store(model_sources([f"models:/{MODEL}/2"], None, tracking_uri=store))
    version, said = answer(model_store)
    assert version == "2"
    assert np.array_equal(said, expected(store, 2))
    client = mlflow.MlflowClient(store)
    client.set_registered_model_alias(MODEL, "champion", "1")
    for each in (model_store, pinned):
        each.look()
    version, said = answer(model_store)
    assert version == "1"
    assert np.array_equal(said, expected(store, 1))
    assert answer(pinned)[0] == "2"
    (model,) = json.loads(ask(Server(model_store).app, "GET", "/v1/models").body)["models"]
    assert (model["follows"], model["published"]["tags"]["role"]) == (f"models:/{MODEL}@champion", "student")
    client.delete_registered_model_alias(MODEL, "champion")
    model_store.look()
    assert answer(model_store)[0] == "1"  # nothing is wanted now: what answers goes on
    client.set_registered_model_alias(MODEL, "champion", "2")
    for each in (model_store, pinned):
        each.close()


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["models:/small-fed@champion"], {}, "did you mean `small-feed`"),
        (["models:/small-feed"], {}, "models:/NAME@ALIAS"),
        (["models:/small-feed@champion", "feed"], {}, "need a server each"),
        (["models:/small-feed@champion", "models:/small-feed/1"], {}, "named twice"),
        (["models:/small-feed@champion"], {"follow": "newest"}, "models:/NAME@newest"),
        (["feed"], {}, "--run-dir"),
    ],
)
def test_what_is_not_there_is_refused_and_leaves_no_folder(store, tmp_path, monkeypatch, names, options, words):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(BadInput, match=words):
        model_sources(names, None, tracking_uri=store, **options)
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("store", "words"), [("http://127.0.0.1:9", "cannot be read"), (None, "has no model `x`")])
def test_a_store_that_has_nothing_is_said_in_words(capsys, tmp_path, store, words):
    uri = store or f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(SystemExit) as left:
        cli.main(["serve", "models:/x@champion", "--tracking-uri", uri])
    said = capsys.readouterr().err
    assert (left.value.code, words in said, "Traceback" in said) == (2, True, False)


def test_a_file_is_scored_by_a_registered_model(store, capsys, tmp_path):
    ROWS.to_parquet(tmp_path / "ads.parquet")
    with pytest.raises(SystemExit) as left:
        cli.main(["score", f"models:/{MODEL}/1", str(tmp_path / "ads.parquet"), "--tracking-uri", store, "--json"])
    assert not left.value.code
    assert json.loads(capsys.readouterr().out)["version"] == "1"


def test_smaller_tables_are_taken_by_what_the_tags_of_the_version_state(tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(uri, tmp_path / "artifacts", "test", tmp_path / "runs.json", 0.1)
    stated = {f"tables/{kind}/ne_change/{task}": str(change) for kind, task, change in
              (("int8", "ctr", 0.0002), ("int8", "cvr", -0.0001), ("int4", "ctr", 0.004))}  # fmt: skip
    for name, tags in (("v1", stated), ("v2", {})):
        tracker.register("student-feed", registration(MODEL, save_student(tmp_path, name, seed=3), tags=tags))
    tracker.close()
    assert tracker.problem is None

    def served(number, tables):
        model_store = open_model_store(model_sources([f"models:/{MODEL}/{number}"], None, tracking_uri=uri), tables)
        model_store.close()
        return model_store.version(MODEL), model_store.refused(MODEL)

    exact, _ = served(1, TableSettings())
    small, _ = served(1, TableSettings("int8"))
    assert small.about["tables"]["kind"] == "int8"
    assert small.about["tables"]["bytes"] < exact.about["tables"]["bytes"] == small.about["tables"]["bytes_fp32"]
    assert small.about["tables"]["ne_change"] == {"ctr": 0.0002, "cvr": -0.0001}
    rows = {name: ROWS[name].tolist() for name in exact.inputs.names}
    said, meant = (each.answer(PredictionRequest(rows, {}, len(ROWS))).probabilities for each in (small, exact))
    assert 0 < np.abs(said - meant).max() < 0.01
    assert "raised the NE of `ctr` by 0.400% when this version was published" in served(1, TableSettings("int4"))[1]
    assert served(1, TableSettings("int4", max_ne_loss=0.01))[0] is not None
    assert "nor was it stated" in served(2, TableSettings("int8"))[1]


def test_a_version_with_a_loader_of_its_own_is_refused_and_nothing_of_it_is_loaded(tmp_path):
    """MLflow itself would unpickle it."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(uri, tmp_path / "artifacts", "test", tmp_path / "runs.json", 0.1)
    tracker.register("student-feed", registration(MODEL, save_student(tmp_path, "v1")))
    tracker.close()
    assert tracker.problem is None
    [model] = (tmp_path / "artifacts").rglob("MLmodel")
    text = model.read_text()
    with unread_pickle(tmp_path) as payload:
        (model.parent / "python_model.pkl").write_bytes(payload)
        model.write_text(text.replace("loader_module: pipelines.served_model", "loader_module: mlflow.pyfunc.model"))
        assert model.read_text() != text
        with pytest.raises(ModelError, match="is not a student that exfm registered"):
            RegisteredModels(uri).files(MODEL, 1, tmp_path / "copies")
