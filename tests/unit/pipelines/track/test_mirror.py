"""A ledger in MLflow's registry, in a real SQLite store: versions, aliases, decisions as tags; and what fails later."""

from __future__ import annotations

import shutil

import mlflow
import numpy as np
import pyarrow as pa
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from exfm.metrics.classification import sigmoid
from exfm.models.served import load_served
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.conclusion import conclude_versions
from pipelines.live.status.losses import Losses, LossSeverity
from pipelines.live.training.predictions import PredictionLog
from pipelines.report.results.summary import Summary
from pipelines.track.mirror import Mirror, Mirrors
from pipelines.track.mlflow import Tracker
from pipelines.track.registration import Interface
from pipelines.track.registry.aliases import Action, Aliases
from pipelines.track.registry.ledger import CONCLUSION, HAND, POLICY, Ledger
from tests.support.models.served_students import ROWS, batch_of, registration, save_student
from tests.support.pipelines.mlflow_stores import empty_store
from tests.support.pipelines.raw_configs import small
from tests.support.pipelines.summaries import HALF, gain, summary_of
from tests.support.streams.scripted import HandClock

V1, V2, END = "v00000001", "v00000002", "v00000099"
LINEAGE = {"run": "small", "config_hash": "abc", "lake_range": [0, 99], "teacher_versions": [2, 7]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return empty_store(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def ledger(tmp_path):
    """Of student `feed`: the first version is champion, the second candidate."""
    ledger = Ledger(RunDir(tmp_path), "feed")
    add(ledger, Action.PUBLISHED, V1, lineage=LINEAGE, rows=100, figures={"ne_ctr": 0.9, "auc_ctr": None})
    add(ledger, Action.PROMOTED, V1)
    add(ledger, Action.PUBLISHED, V2, lineage=LINEAGE, rows=200)
    add(ledger, Action.TRIAL, V2)
    for seed, version in enumerate((V1, V2)):
        ledger.folder(version).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(save_student(tmp_path, version, seed=seed), ledger.folder(version))
    return ledger


def add(ledger, action, version, by=POLICY, reason="as it was seen", **more):
    with ledger.writing() as writing:
        writing.add(action, version, by=by, reason=reason, **more)


def interface():
    asked = registration("any", None)
    return Interface(asked.inputs, asked.tasks, asked.example, asked.settings)


@pytest.fixture
def follow(store, tmp_path, request, ledger):
    """Bring MLflow up to the ledger in a tracker of its own; returns what it said."""
    mirror = Mirror(request.node.name, ledger, interface)

    def followed():
        tracker = Tracker(store, tmp_path / "artifacts", request.node.name, tmp_path / "runs.json", 0.1)
        tracker.mirror("student-feed", mirror)
        tracker.close(60)
        return tracker.problem

    followed.mirror = mirror
    return followed


def aliases(client, model):
    return {alias: int(version) for alias, version in client.get_registered_model(model).aliases.items()}


def test_every_version_is_registered_with_what_it_was_made_of_and_answers_as_served(follow, store, request, ledger):
    assert follow() is None
    client, model = MlflowClient(store), request.node.name
    assert aliases(client, model) == {"champion": 1, "candidate": 2}
    tags = client.get_model_version(model, "1").tags
    lineage = {"run": "small", "config_hash": "abc", "lake_range": "0 to 99", "teacher_versions": "2 to 7"}
    assert (lineage | {"position": V1, "rows": "100", "ne_ctr": "0.9", "role": "student"}).items() <= tags.items()
    assert tags["ledger/000001"].endswith("promoted by policy: as it was seen")
    mlflow.set_tracking_uri(store)
    said = mlflow.pyfunc.load_model(f"models:/{model}@candidate").predict(ROWS).to_numpy()
    assert np.array_equal(said, sigmoid(load_served(ledger.folder(V2)).score(batch_of(ROWS))))


def test_aliases_follow_promotions_and_rollbacks_and_nothing_is_registered_twice(follow, store, request, ledger):
    client, model = MlflowClient(store), request.node.name
    assert follow() is None
    add(ledger, Action.PROMOTED, V2)
    assert follow() is None
    assert aliases(client, model) == {"champion": 2, "previous": 1}
    add(ledger, Action.ROLLED_BACK, V1, by=HAND, reason="bad ads")
    assert follow() is None
    assert follow() is None
    assert aliases(client, model) == {"champion": 1}
    assert client.get_model_version(model, "1").tags["ledger/000005"].endswith("rolled back by hand: bad ads")
    assert len(client.search_model_versions(f"name = '{model}'")) == 2
    add(ledger, Action.WITHDRAWN, None, by=CONCLUSION)
    follow()
    assert aliases(client, model) == {}


def test_what_failed_half_way_is_made_good_without_a_second_version(follow, store, request, monkeypatch):
    client, model = MlflowClient(store), request.node.name
    plain = MlflowClient.set_registered_model_alias

    def gone(*args):
        raise MlflowException("the store is gone")

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", gone)
    assert "the store is gone" in follow()
    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", plain)
    assert follow() is None
    assert aliases(client, model) == {"champion": 1, "candidate": 2}
    assert len(client.search_model_versions(f"name = '{model}'")) == 2


def test_a_champion_that_was_deleted_in_mlflow_is_named_once_and_another_takes_its_place(
    follow, store, request, ledger
):
    client, model = MlflowClient(store), request.node.name
    assert follow() is None
    client.delete_model_version(model, "1")
    add(ledger, Action.TRIAL, V2)
    said = follow()
    assert f"version {V1} of `{model}` was deleted there, so @champion names none until the run has another" in said
    assert follow() is None
    assert aliases(client, model) == {"candidate": 2}
    add(ledger, Action.PROMOTED, V2)
    assert follow() is not None  # the deleted one is `previous` now
    assert aliases(client, model) == {"champion": 2}
    assert [v.version for v in client.search_model_versions(f"name = '{model}'")] in ([2], ["2"])


def test_of_a_model_that_was_deleted_and_counts_anew_no_alias_names_another_version(
    follow, store, request, ledger, tmp_path
):
    client, model = MlflowClient(store), request.node.name
    assert follow() is None
    client.delete_registered_model(model)
    shutil.copytree(save_student(tmp_path, "third", seed=3), ledger.folder("v00000003"))
    add(ledger, Action.PUBLISHED, "v00000003", lineage=LINEAGE, rows=300)
    assert f"version {V1} of `{model}` was deleted there" in follow()
    (only,) = client.search_model_versions(f"name = '{model}'")
    assert (int(only.version), only.tags["position"]) == (1, "v00000003")
    assert "champion" not in aliases(client, model)


def test_a_ledger_is_handed_on_when_it_grew_and_again_after_a_while_where_that_failed(tmp_path, ledger):
    config, clock, put = parse(small()), HandClock(), []
    mirrors = Mirrors(RunDir(tmp_path), lambda worker, mirror: put.append((worker, mirror)), clock)
    mirrors.look(config)
    mirrors.look(config)
    assert [worker for worker, _ in put] == ["student-feed"]
    clock.advance(31)
    mirrors.look(config)
    assert len(put) == 2
    put[0][1].store({"bytes": ledger.size, "entries": 4, "numbers": {}})
    clock.advance(31)
    mirrors.look(config)
    assert len(put) == 2
    add(ledger, Action.ENDED, V2)
    mirrors.look(config)
    assert len(put) == 3


# --- the end of a run ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run whose student `feed` has published two versions, and exported a last one with its twin."""
    run_dir = RunDir(tmp_path / "run")
    for folder, seed in ((run_dir.served("feed"), 5), (run_dir.served_twin("feed"), 6)):
        folder.mkdir(parents=True)
        shutil.copytree(save_student(tmp_path, f"end{seed}", seed=seed), folder / END)
    log = PredictionLog(run_dir.predictions("feed"))
    log.open(-1)
    log.append(pa.record_batch({"lake_seq": [0, 1]}))
    log.write(log.take())
    ledger = Ledger(run_dir, "feed")
    for action, version in ((Action.PUBLISHED, V1), (Action.PROMOTED, V1), (Action.PUBLISHED, V2), (Action.TRIAL, V2)):
        add(ledger, action, version)
    return run_dir


def conclude(run_dir, low, high, *, grave=None):
    """The end of the run of a student that gained between `low` and `high` % over its twin."""
    config = parse(small(students=[{"name": "feed", "tasks": ["ctr"]}]))
    summary = Summary.from_json(summary_of(feed={"ctr": HALF | {"gain": gain(low, high)}}))
    return conclude_versions(config, run_dir, summary.students, grave)


@pytest.mark.parametrize(("low", "high", "champion"), [(1.0, 3.0, END), (-1.0, 1.0, END), (-3.0, -1.0, f"{END}-twin")])
def test_at_the_end_the_last_version_is_champion_unless_its_twin_is_better(run, low, high, champion):
    for _ in range(2):  # a full disk has it called again
        assert conclude(run, low, high) == {}
    ledger = Ledger(run, "feed")
    assert ledger.aliases() == Aliases(champion=champion, previous=V1)
    assert [(e["action"], e["version"]) for e in ledger.entries()][4:] == [
        ("published", END),
        ("published", f"{END}-twin"),
        ("promoted", champion),
    ]
    assert ledger.entries()[-1]["reason"].startswith("the run has ended: the teacher leads by 5.1 %")
    twin, student = load_served(ledger.folder(f"{END}-twin")), load_served(ledger.folder(END))
    assert np.array_equal(student.score(batch_of(ROWS)), load_served(run.served("feed") / END).score(batch_of(ROWS)))
    assert np.array_equal(twin.score(batch_of(ROWS)), load_served(run.served_twin("feed") / END).score(batch_of(ROWS)))


def test_whom_a_person_made_champion_stays_it_at_the_end(run):
    ledger = Ledger(run, "feed")
    add(ledger, Action.PROMOTED, V2, by=HAND, reason="seen live")
    assert conclude(run, 1.0, 3.0) == {"feed": "seen live"}
    assert ledger.aliases() == Aliases(champion=V2, previous=V1)
    assert ledger.entries()[-1]["action"] == "published"


def test_of_a_run_that_lost_too_much_nothing_is_served(run):
    grave = Losses(LossSeverity.FAIL, (), ("60 % of the impressions were refused",))
    for _ in range(2):
        conclude(run, 1.0, 3.0, grave=grave)
    ledger = Ledger(run, "feed")
    assert ledger.aliases() == Aliases()
    assert [e["reason"] for e in ledger.entries() if e["action"] == "withdrawn"] == list(grave.words)


def test_a_student_that_learned_no_row_has_no_version(tmp_path):
    run_dir = RunDir(tmp_path)
    conclude(run_dir, 1.0, 3.0)
    assert not run_dir.registry.exists()
