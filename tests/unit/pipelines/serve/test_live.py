"""A shelf that follows students live: increments answer, and say how fresh they are; a refused one does not."""

from __future__ import annotations

import json
import time

import pytest

from exfm.features.batch import BatchBuilder
from exfm.models.changes import Touched, changes_of
from exfm.models.student import Student
from exfm.snapshots.increments.chain import ChainWriter
from exfm.snapshots.increments.follower import ServedState
from exfm.snapshots.increments.increment import probe_of, take_full
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import Server
from pipelines.serve.model_store import KEPT, Freshness, model_store_of
from pipelines.serve.processes import ServerSettings, serve
from pipelines.serve.tables import TableSettings
from streaming.errors import BadInput
from tests.support.pipelines.served_runs import ROWS, ask, promote, run_with_versions
from tests.support.pipelines.stored_run import rows_of

V1, V2 = "v00000100", "v00000200"


class Training:
    """The student `feed` of a run, and its chain."""

    def __init__(self, root):
        config = config_of(RunDir(root))
        settings = config.student("feed")
        features, tasks = config.student_features(settings), config.student_tasks(settings)
        self.student, self._build = Student(settings.model, features, tasks, 3), BatchBuilder(features, tasks)
        self.touched, self.root, self._block = Touched(features), RunDir(root).live("feed"), 0
        self.chain = ChainWriter(self.root)

    def learn(self):
        batch = self._build(rows_of(self._block))
        self.student.train_step(batch)
        self.touched.note(batch.sparse)
        self._block += 1
        return probe_of(self.student, batch)

    def begin(self):
        return self.chain.begin("v00000032", {"rows": 32}, take_full(self.student, self.touched, self.learn()))

    def publish(self, stepped_s):
        probe = self.learn()
        about = {"rows": 32 * self._block, "stepped_s": [stepped_s, stepped_s]}
        return self.chain.add("v00000064", about, changes_of(self.student, self.touched), probe)


@pytest.fixture
def training(tmp_path):
    return run_with_versions(tmp_path, V1, V2), Training(tmp_path)


def answer(server):
    said = ask(server.app, "POST", "/v1/models/feed:predict", json.dumps({"rows": ROWS}).encode())
    return json.loads(said.body)


def test_increments_answer_whatever_is_champion_and_say_how_fresh_they_are(training, tmp_path):
    ledger, student = training
    first = student.begin()
    model_store = model_store_of(RunDir(tmp_path), ["feed"], "live")
    server = Server(model_store)
    assert answer(server)["version"] == first == "v00000032+2"
    assert (student.root / "wanted").exists()
    second = student.publish(time.time() - 0.75)
    promote(ledger, V2)
    model_store.look()
    now = answer(server)
    assert now["version"] == second == "v00000064+3"
    (model,) = json.loads(ask(server.app, "GET", "/v1/models").body)["models"]
    assert (model["follows"], model["published"]["rows"]) == ("live", 64)
    fresh = model["freshness"]["answered"]
    assert fresh["count"] == 1
    assert 0.75 <= fresh["last_s"] < 60
    text = ask(server.app, "GET", "/metrics").body.decode()
    assert 'exfm_freshness_seconds_bucket{le="0.5",model="feed",process="' in text
    assert answer(server)["predictions"] == now["predictions"]  # and counts once
    assert model_store.freshness["feed"].answers.as_json()["count"] == 1


def test_a_damaged_increment_is_refused_in_words_and_the_next_full_version_answers(training, tmp_path):
    _, student = training
    student.begin()
    model_store = model_store_of(RunDir(tmp_path), ["feed"], "live")
    server = Server(model_store)
    first = answer(server)
    student.publish(time.time())
    path = student.root / "00000003.increment"
    path.write_bytes(path.read_bytes()[:-100])
    for _ in range(3):
        model_store.look()
    assert answer(server) == first
    assert model_store.refusals == 1
    assert "00000003.increment is damaged" in (model_store.refused("feed") or "")
    again = Training(tmp_path)
    name = again.begin()
    model_store.look()
    assert answer(server)["version"] == name
    assert model_store.refused("feed") is None


def test_a_student_that_publishes_nothing_yet_is_not_ready(training, tmp_path):
    server = Server(model_store_of(RunDir(tmp_path), ["feed"], "live"))
    assert ask(server.app, "GET", "/readyz").code == 503
    assert "no version of it is published yet" in answer(server)["error"]


def test_smaller_tables_and_registered_models_are_not_followed_live(tmp_path):
    run_with_versions(tmp_path, V1)
    asked = ServerSettings(tmp_path, ("feed",), "live", port=0, tables=TableSettings("int8"))
    with pytest.raises(BadInput, match="--follow live serves fp32"):
        serve(asked, 1)
    with pytest.raises(BadInput, match="--follow live is of runs"):
        serve(asked._replace(run_dir=None, names=("models:/demo-feed@champion",), tables=TableSettings()), 1)


def test_of_a_student_that_nobody_asks_the_newest_increments_alone_wait_for_an_answer():
    freshness, values = (
        Freshness(),
        [ServedState(None, n, "", "", {}, ({"stepped_s": [n, n]},)) for n in range(KEPT + 5)],
    )
    for value in values:
        freshness.taken_up(value, value.number + 1.0)
    freshness.answered(values[-1], KEPT + 10.0)
    assert [ages.as_json()["count"] for ages in (freshness.served, freshness.answers)] == [KEPT + 5, KEPT]
