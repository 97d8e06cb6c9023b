"""A shelf follows the registry: another champion answers, a damaged version does not, and nothing is served unasked."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from exfm.models.compiled import Packages
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import Server
from pipelines.serve.model_store import model_store_of, open_model_store
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.processes import ServerSettings, serve
from pipelines.serve.sources import model_sources
from pipelines.serve.tables import TableSettings
from pipelines.serve.version import ServedVersion
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import HAND, Ledger
from streaming.errors import BadInput
from tests.support.pipelines.served_runs import ROWS, ask, promote, run_with_versions

V1, V2, V3 = "v00000100", "v00000200", "v00000300"


@pytest.fixture
def ledger(tmp_path):
    return run_with_versions(tmp_path, V1, V2, V3)


def damage(version):
    """Flip a bit of every file of tensors."""
    for file in version.rglob("*"):
        if file.is_file() and file.suffix != ".json":
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.chmod(0o644)
            file.write_bytes(bytes(content))


def answer(server):
    said = ask(server.app, "POST", "/v1/models/feed:predict", json.dumps({"rows": ROWS}).encode())
    return json.loads(said.body)


def test_another_champion_answers_and_a_rollback_is_as_fast(ledger, tmp_path):
    model_store = model_store_of(RunDir(tmp_path), ["feed"], "champion")
    server = Server(model_store)
    first = answer(server)
    promote(ledger, V2)
    assert answer(server) == first  # not before it has looked
    model_store.look()
    second = answer(server)
    assert (first["version"], second["version"]) == (V1, V2)
    assert second["predictions"] != first["predictions"]
    with ledger.writing() as writing:
        writing.add(Action.ROLLED_BACK, V1, by=HAND, reason="bad ads")
    model_store.look()
    assert answer(server) == first
    assert model_store.swaps == 2


def test_a_damaged_version_is_refused_and_the_old_one_stays_until_a_sound_one_comes(ledger, tmp_path):
    model_store = model_store_of(RunDir(tmp_path), ["feed"], "champion")
    server = Server(model_store)
    first = answer(server)
    damage(ledger.folder(V2))
    promote(ledger, V2)
    for _ in range(3):
        model_store.look()
    assert answer(server) == first
    assert model_store.refusals == 1  # said once
    (model,) = json.loads(ask(server.app, "GET", "/v1/models").body)["models"]
    assert model["refused"].startswith(f"{V2} is not served")
    promote(ledger, V3)
    model_store.look()
    assert answer(server)["version"] == V3
    assert model_store.refused("feed") is None


def test_a_damaged_version_of_one_student_is_no_other_students(ledger, tmp_path):
    """Students of one run have versions of the same names."""
    other = Ledger(RunDir(tmp_path), "shop")
    shutil.copytree(ledger.versions, other.versions)
    with other.writing() as writing:
        writing.add(Action.PROMOTED, V2, by=HAND, reason="tried")
    damage(ledger.folder(V2))
    promote(ledger, V2)
    model_store = model_store_of(RunDir(tmp_path), ["feed", "shop"], "champion")
    assert model_store.refused("feed") is not None
    version = model_store.version("shop")
    assert version is not None
    assert version.name == V2


def test_a_student_without_a_version_is_not_ready_and_says_why(tmp_path):
    run_with_versions(tmp_path, V1)
    server = Server(model_store_of(RunDir(tmp_path), [], "champion"))  # `shop` has published nothing
    assert ask(server.app, "GET", "/readyz").code == 503
    said = ask(server.app, "POST", "/v1/models/shop:predict", json.dumps({"rows": ROWS}).encode())
    assert (said.code, "no version of it is published yet" in said.body.decode()) == (503, True)


def test_an_unknown_student_is_named_with_those_that_there_are(tmp_path):
    run_with_versions(tmp_path, V1)
    with pytest.raises(BadInput, match="did you mean `feed`"):
        model_store_of(RunDir(tmp_path), ["feet"], "champion")


def test_trouble_of_one_student_that_nobody_foresaw_is_its_own(ledger, tmp_path, monkeypatch):
    model_store = model_store_of(RunDir(tmp_path), [], "champion")  # `feed`, and `shop` after it

    def failing(run_dir, student):
        if student == "feed":
            raise KeyError("reached")
        return Ledger(run_dir, student)

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.serve.sources.Ledger", failing)
        model_store.look()
    assert "KeyError" in (model_store.refused("feed") or "")
    assert model_store.version("feed") is not None
    assert model_store.refused("shop") is None
    promote(ledger, V2)
    model_store.look()
    assert model_store.refused("feed") is None


def test_what_could_not_be_read_for_a_moment_is_tried_again(ledger, tmp_path, monkeypatch):
    model_store = model_store_of(RunDir(tmp_path), ["feed"], "champion")
    promote(ledger, V2)
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipelines.serve.model_store.ServedVersion", lambda *_: (_ for _ in ()).throw(OSError(24, "too many"))
        )
        model_store.look()
    assert model_store.refused("feed") is not None
    model_store.look()
    version = model_store.version("feed")
    assert version is not None
    assert version.name == V2


def test_compiled_code_is_of_versions_in_fp32_alone(tmp_path):
    run_with_versions(tmp_path, V1)
    with pytest.raises(BadInput, match="--compile serves versions of fp32"):
        serve(ServerSettings(tmp_path, ("feed",), port=0, compiled=True, tables=TableSettings("int8")), 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++, which is not installed")
def test_versions_are_swapped_as_compiled_code(tmp_path):
    ledger = run_with_versions(tmp_path / "run", V1, V2)
    run_dir = RunDir(tmp_path / "run")
    eager = model_store_of(run_dir, ["feed"], "champion")
    compiled = open_model_store(model_sources(["feed"], run_dir.root), packages=Packages(tmp_path / "compiled"))
    rows = PredictionRequest({name: [row[name] for row in ROWS] for name in ROWS[0]}, {}, len(ROWS))
    for version in (V1, V2, V1):
        promote(ledger, version)
        for model_store in (eager, compiled):
            model_store.look()
        said, meant = (model_store.version("feed").answer(rows).probabilities for model_store in (compiled, eager))
        assert compiled.version("feed").about["compiled"]
        assert np.abs(said - meant).max() < 1e-6
    assert len(list((tmp_path / "compiled").glob("*.pt2"))) == 1


def test_another_version_of_a_shape_has_its_own_tensors_and_shares_the_rest(ledger, tmp_path):
    model_store = model_store_of(RunDir(tmp_path), ["feed"], "champion")
    first, rows = (
        model_store.version("feed"),
        PredictionRequest({name: [row[name] for row in ROWS] for name in ROWS[0]}, {}, len(ROWS)),
    )
    said = first.answer(rows).probabilities
    promote(ledger, V2)
    model_store.look()
    second = model_store.version("feed")
    alone = ServedVersion("feed", V2, ledger.folder(V2), second.signature.schema, {})
    assert np.array_equal(second.answer(rows).probabilities, alone.answer(rows).probabilities)
    assert np.array_equal(first.answer(rows).probabilities, said)  # a request that still holds it
    assert second.inputs is first.inputs
