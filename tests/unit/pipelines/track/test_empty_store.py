"""An empty store of MLflow's is copied, not made again."""

import shutil
import sqlite3
from contextlib import closing
from functools import partial

import mlflow
import pytest
from mlflow import MlflowClient

from pipelines.track.mlflow import SCHEME, begin_store, kept_store
from tests.support.pipelines.mlflow_stores import make

begin = partial(begin_store, version=mlflow.__version__, make=make)


def unneeded(uri):
    raise AssertionError(f"made anew at {uri}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where a store is kept that MLflow has made, and that one's URI."""
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root))
        begin(uri := f"{SCHEME}{root / 'first.db'}")
    return root, uri


@pytest.fixture
def uri_of(cache, tmp_path, monkeypatch):
    """Of stores that are not there, in a folder each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache[0]))

    def uri(name):
        (tmp_path / name).mkdir()
        return f"{SCHEME}{tmp_path / name / 'mlflow.db'}"

    return uri


def tables(uri):
    """What each table and index is made of, by its name; MLflow's own constraints come in any order."""
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as store:
        found = store.execute("SELECT name, sql FROM sqlite_master").fetchall()
    return {name: sorted(part.strip() for part in (sql or "").replace("\n", ",").split(",")) for name, sql in found}


def test_it_is_made_once_and_then_copied_and_is_the_one_that_mlflow_makes(cache, uri_of, tmp_path):
    root, first = cache
    begin(copied := uri_of("copied"), make=unneeded)
    make(mlflows := uri_of("mlflows"))
    assert tables(first) == tables(copied) == tables(mlflows)
    assert [path.name for path in (tmp_path / "copied").iterdir()] == ["mlflow.db"]
    assert kept_store(mlflow.__version__).parent == root / "exfm"


def test_mlflow_goes_on_with_a_copy_as_with_its_own(uri_of, tmp_path, monkeypatch):
    begin(uri := uri_of("copied"), make=unneeded)
    monkeypatch.chdir(tmp_path / "copied")
    client = MlflowClient(uri)
    (default,) = client.search_experiments()
    assert default.artifact_location == str(tmp_path / "copied" / "mlruns" / "0")
    run = client.create_run(client.create_experiment("a run"))
    client.log_metric(run.info.run_id, "ne", 0.9)
    assert client.get_run(run.info.run_id).data.metrics == {"ne": 0.9}


def test_a_store_that_is_there_stays_and_others_are_mlflows_own(uri_of, tmp_path):
    there = tmp_path / "there.db"
    there.write_text("mine")
    for uri in (f"{SCHEME}{there}", "http://localhost:5000", uri_of("no").replace("no/", "no/such/")):
        begin(uri, make=unneeded)
    assert there.read_text() == "mine"
    assert list((tmp_path / "no").iterdir()) == []


def test_another_version_of_mlflow_makes_its_own(uri_of):
    with pytest.raises(AssertionError, match="made anew"):
        begin(uri_of("copied"), version="0.1", make=unneeded)


def test_a_cache_that_takes_no_file_costs_time_alone(cache, uri_of, tmp_path, monkeypatch):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    begin(uri := uri_of("copied"), make=lambda to: shutil.copy(cache[1].removeprefix(SCHEME), to.removeprefix(SCHEME)))
    assert tables(uri) == tables(cache[1])
