"""Tables of int8 and int4: what they are off by, what that costs in NE, and that they are refused beyond a bound."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.models.served import load_served
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.roster.listing import listed_students
from pipelines.live.workers.student.tables import stated_tables
from pipelines.serve.app import Server
from pipelines.serve.model_store import model_store_of, open_model_store
from pipelines.serve.sources import DesiredVersion, model_sources
from pipelines.serve.tables import TableSettings, refuse_stated
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import HAND, Ledger
from tests.support.models.collections import fused
from tests.support.pipelines.served_runs import ROWS, ask, promote, run_with_versions
from tests.support.pipelines.written_lakes import write_lake

V1, V2 = "v00000100", "v00000200"
STEPS = {"int8": 255, "int4": 15}
FEATURES = FeatureSet(
    sparse=[SparseFeature(name="ad", rows=50), SparseFeature(name="tags", rows=30, width=16)],
    sequence=[SequenceFeature(name="seen", rows=40, length=3, units=1)],
)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("lists", [False, True])
def test_a_row_is_off_by_half_a_step_of_its_own_range_and_bags_add_up(kind, lists):
    random = np.random.default_rng(0)
    features = FEATURES if lists else FeatureSet(sparse=FEATURES.sparse)
    tables = fused(features, 8, seed=1).export()
    for weight in tables.tensors().values():
        weight *= torch.arange(1.0, len(weight) + 1).unsqueeze(1)  # rows of other ranges
    many = [random.integers(0, 99, random.integers(0, 4) if lists else 1).tolist() for _ in range(200)]
    rows = {"ad": pa.array(random.integers(0, 99, 200)), "tags": pa.array(many, pa.list_(pa.int64())), "seen": many}
    sparse = BatchBuilder(features, ["ctr"])(pa.table(rows)).sparse
    exact, found = (held.lookup(sparse).pooled for held in (tables, tables.export(kind)))
    widest = max((w.amax(1) - w.amin(1)).max().item() for w in tables.tensors().values())
    assert found.shape == exact.shape
    assert 0 < (found - exact).abs().max() <= 3 * widest * (0.5 / STEPS[kind] + 2**-10)  # a bag of three; fp16 at int4


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run with a lake, whose student has two versions."""
    root = tmp_path_factory.mktemp("served")
    run_with_versions(root, V1, V2)
    write_lake(RunDir(root).lake, config_of(RunDir(root)), 3000)
    return root


def model_store(root, kind, bound):
    return open_model_store(model_sources(["feed"], root), TableSettings(kind, bound))


def test_what_smaller_tables_cost_is_said_of_the_model_and_fp32_keeps_its_bits(root):
    said = {}
    for kind in ("fp32", "int8", "int4"):
        served = model_store(root, kind, 1.0)
        (model,) = json.loads(ask(Server(served).app, "GET", "/v1/models").body)["models"]
        answer = ask(Server(served).app, "POST", "/v1/models/feed:predict", json.dumps({"rows": ROWS}).encode())
        said[kind] = model["tables"], [row["ctr"] for row in json.loads(answer.body)["predictions"]]
    plain = model_store_of(RunDir(root), ["feed"], "champion")
    own = ask(Server(plain).app, "POST", "/v1/models/feed:predict", json.dumps({"rows": ROWS}).encode())
    assert said["fp32"][1] == [row["ctr"] for row in json.loads(own.body)["predictions"]]
    tables = load_served(RunDir(root).versions("feed") / V1).table_bytes
    assert said["fp32"][0] == {"kind": "fp32", "bytes": tables}
    for kind in ("int8", "int4"):
        about, predictions = said[kind]
        assert about["bytes_fp32"] == tables > about["bytes"]
        assert about["judged_rows"] > 300
        assert 0 < abs(about["ne_change"]["ctr"]) < 0.01
        assert predictions != said["fp32"][1]
    assert said["int4"][0]["bytes"] < said["int8"][0]["bytes"]


def test_tables_that_cost_more_than_they_may_are_refused_and_what_answers_stays(root):
    with_loss = {}
    for version in (V1, V2):
        promote_in(root, version)
        with_loss[version] = model_store(root, "int4", 1.0).version("feed").as_json()["tables"]["ne_change"]["ctr"]
    better, worse = sorted(with_loss, key=with_loss.__getitem__)
    promote_in(root, better)
    served = model_store(
        root, "int4", bound := sum(with_loss.values()) / 2
    )  # which may be below 0: these models know nothing
    assert with_loss[better] < bound < with_loss[worse]
    promote_in(root, worse)
    served.look()
    assert served.version("feed").name == better
    assert "raise the NE of `ctr` by" in served.refused("feed")
    assert "--max-ne-loss" in served.refused("feed")


def promote_in(root, version):
    promote(Ledger(RunDir(root), "feed"), version)


def test_without_labelled_rows_smaller_tables_are_not_served(tmp_path):
    run_with_versions(tmp_path, V1)
    refused = model_store(tmp_path, "int8", 1.0)
    assert refused.version("feed") is None
    assert "no lake at" in refused.refused("feed")


def test_a_registered_model_has_no_rows_to_judge_them_on(root):
    class Registered:
        model = "feed"
        asof = None

        def wanted(self):
            return DesiredVersion("3", RunDir(root).versions("feed") / V1, config_of(RunDir(root)).rows, {})

        def close(self):
            pass

    refused = open_model_store([Registered()], TableSettings("int8", 1.0))
    assert "nor was it stated what they cost when the version was published" in refused.refused("feed")


def test_a_version_says_what_smaller_tables_cost_it_and_one_that_cost_too_much_is_refused_unread(root):
    run_dir, config = RunDir(root), config_of(RunDir(root))
    ledger = Ledger(run_dir, "feed")
    before = load_served(ledger.folder(V1)).tables.tensors()
    served = load_served(ledger.folder(V1))
    stated = stated_tables(config, config.student("feed"), run_dir.lake, served)
    assert stated is not None
    assert stated["fp32"]["bytes"] > stated["int8"]["bytes"] > stated["int4"]["bytes"]
    assert abs(stated["int8"]["ne_change"]["ctr"]) < abs(stated["int4"]["ne_change"]["ctr"]) + 1e-6
    assert all(torch.equal(weight, before[name]) for name, weight in served.tables.tensors().items())
    half = stated_tables(config, config.student("feed"), run_dir.lake, served, upto=1000)
    assert half is not None
    assert half["rows"] < stated["rows"]
    with ledger.writing() as writing:
        bad = stated | {"int4": {"bytes": 1, "ne_change": {"ctr": 0.02}}}
        writing.add(Action.PUBLISHED, V2, by=HAND, reason="again", tables=bad)
        writing.add(Action.PROMOTED, V2, by=HAND, reason="tried")
    try:
        (listed,) = [student for student in listed_students(run_dir) if student.name == "feed"]
        assert listed.tables is not None
        with pytest.raises(ModelError, match=r"by 2\.000% when this version was published"):
            refuse_stated(TableSettings("int4", 0.001), listed.tables)
        refuse_stated(TableSettings("int8", 0.001), listed.tables)
    finally:
        promote(ledger, V1)
