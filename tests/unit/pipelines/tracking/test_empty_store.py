"""An empty store of MLflow's is copied, not made again."""

import sqlite3
from contextlib import closing
from functools import partial

import mlflow
import pytest
from mlflow import MlflowClient

from pipelines.tracking.empty_store import begin_store, kept_store


def make(uri):
    MlflowClient(uri).search_experiments()


begin = partial(begin_store, version=mlflow.__version__, make=make)


def unneeded(uri):
    raise AssertionError(f"made anew at {uri}")


@pytest.fixture
def uris(tmp_path, monkeypatch):
    """Of stores that are not there, in a folder each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def uri_of(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return f"sqlite:///{tmp_path / name / 'mlflow.db'}"

    return uri_of


def tables(uri):
    """What each table and index is made of, by its name; MLflow's own constraints come in any order."""
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as store:
        found = store.execute("SELECT name, sql FROM sqlite_master").fetchall()
    return {name: sorted(part.strip() for part in (sql or "").replace("\n", ",").split(",")) for name, sql in found}


def test_it_is_made_once_and_then_copied_and_is_the_one_that_mlflow_makes(uris, tmp_path):
    begin(uris("first"))
    begin(uris("second"), make=unneeded)
    make(uris("mlflows"))
    assert tables(uris("first")) == tables(uris("second")) == tables(uris("mlflows"))
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == ["mlflow.db"]
    assert kept_store(mlflow.__version__).parent == tmp_path / "cache" / "exfm"


def test_mlflow_goes_on_with_a_copy_as_with_its_own(uris, tmp_path, monkeypatch):
    begin(uris("made"))
    monkeypatch.chdir(tmp_path / "made")
    begin(uris("copied"), make=unneeded)
    client = MlflowClient(uris("copied"))
    (default,) = client.search_experiments()
    assert default.artifact_location == str(tmp_path / "made" / "mlruns" / "0")
    run = client.create_run(client.create_experiment("a run"))
    client.log_metric(run.info.run_id, "ne", 0.9)
    assert client.get_run(run.info.run_id).data.metrics == {"ne": 0.9}


def test_a_store_that_is_there_stays_and_others_are_mlflows_own(uris, tmp_path):
    there = tmp_path / "there.db"
    there.write_text("mine")
    for uri in (f"sqlite:///{there}", "http://localhost:5000", uris("no").replace("no/", "no/such/")):
        begin(uri, make=unneeded)
    assert there.read_text() == "mine"
    assert list((tmp_path / "no").iterdir()) == []


def test_another_version_of_mlflow_makes_its_own(uris):
    begin(uris("first"))
    with pytest.raises(AssertionError, match="made anew"):
        begin(uris("second"), version="0.1", make=unneeded)


def test_a_cache_that_takes_no_file_costs_time_alone(uris, tmp_path):
    (tmp_path / "cache").touch()
    begin(uris("first"))
    assert tables(uris("first"))
