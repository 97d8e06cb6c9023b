"""Bytes of tables under each kind: counted whole, never over a budget, with the ids of a lake."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

from exfm.embeddings.composed import tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import settings_of, tables_of
from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from pipelines.cli import console as cli
from pipelines.core.config.settings import load as load_settings
from pipelines.core.run_dir.paths import RunDir
from pipelines.teacher.plan.embeddings import MIB, settings_within, table_bytes
from streaming.lake.reader import LakeReader
from tests.support.models.kinds import KINDS
from tests.support.pipelines.raw_configs import small
from tests.support.pipelines.written_lakes import write_lake

FEATURES = FeatureSet(sparse=[SparseFeature(name="user", rows=20_000), SparseFeature(name="ad", rows=900)])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "adagrad"])
def test_bytes_are_those_of_the_tables_in_training(name, optimizer):
    kinds = {"user": settings_of(KINDS[name])}
    planned = sum(table_bytes(FEATURES, 16, kinds, table, optimizer).total for table in ("user", "ad"))
    tables = tables_of(FEATURES, 16, kinds)
    held = tables_held(tables, lambda of: FusedTables(of, lr=0.1, eps=1e-8, optimizer=optimizer), lr=0.1, eps=1e-8)
    assert planned == held.nbytes


def test_rows_of_a_pool_are_counted_once_and_the_budget_is_of_all_that_share_it():
    kinds = {
        "user": settings_of({"kind": "fiited", "budget_bytes": 900_000}),
        "ad": settings_of({"kind": "fiited", "shares": "user"}),
    }
    planned = [table_bytes(FEATURES, 16, kinds, table, "row_wise_adagrad") for table in ("user", "ad")]
    held = tables_held(tables_of(FEATURES, 16, kinds), lambda of: FusedTables(of, lr=0.1, eps=1e-8), lr=0.1, eps=1e-8)
    assert 890_000 < sum(of.total for of in planned) == held.nbytes <= 900_000
    assert (planned[1].weights, planned[1].optimizer, planned[1].state) == (0, 0, 900 * 4 * 6)


@pytest.mark.parametrize("mib", [0.41, 0.5, 0.9, 1.2, 2.0])
def test_a_budget_is_never_exceeded_and_tables_are_as_wide_as_it_allows(mib):
    budget = int(mib * MIB)
    within = settings_within(FEATURES, 16, "row_wise_adagrad", budget)
    kinds = {name: settings_of(kind) for name, kind in within.items()}
    assert sum(table_bytes(FEATURES, 16, kinds, name, "row_wise_adagrad").total for name in ("user", "ad")) <= budget
    assert (mib == 2.0) == (within == {})


def test_a_budget_below_four_columns_a_row_is_refused_with_what_they_take():
    with pytest.raises(ConfigError, match=r"with 4 they take .* of .*kind `hash`"):
        settings_within(FEATURES, 16, "row_wise_adagrad", MIB // 10)


def test_ids_that_collide_are_counted_where_they_are_known_and_expected_else():
    ids = torch.tensor([3, 20, 37, 5]).numpy()
    kinds = {"user": settings_of({"kind": "hash", "rows": 17})}
    assert table_bytes(FEATURES, 16, kinds, "user", "adagrad", ids).colliding == pytest.approx(3, abs=1e-3)
    assert table_bytes(FEATURES, 16, kinds, "user", "adagrad").colliding == pytest.approx(20_000)
    composed = {"user": settings_of({"kind": "qr"})}
    assert table_bytes(FEATURES, 16, composed, "user", "adagrad", ids).colliding == pytest.approx(0, abs=1e-3)


@pytest.fixture
def planned(capsys, tmp_path, monkeypatch):
    """Plan the small config's tables: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(small()))

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main(["plan", str(path), "--embeddings", *map(str, arguments)])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def test_ids_of_a_range_of_the_lake_are_counted(planned, tmp_path):
    config, run = load_settings(tmp_path / "run.yaml"), RunDir(tmp_path / "run")
    write_lake(run.lake, config, 600)
    code, out, _ = planned("--from", run.root, "--ids", "0..299", "--json")
    said = json.loads(out)
    rows = LakeReader(run.lake, config.rows).read(-1, upto=299).table
    sparse = BatchBuilder(config.teacher_features, [])(rows).sparse
    assert code == 0
    for name, of in said["ids"].items():
        if name in sparse.keys():  # noqa: SIM118
            assert of["distinct"] == len(sparse[name].values().unique())
            assert 0 < of["alive"] <= of["distinct"] <= of["rows"]
    code, _, err = planned("--from", run.root, "--ids", "0..600")
    assert (code, "the lake has rows 0..599" in err) == (2, True)


def test_the_largest_tables_are_shown_and_settings_that_keep_a_budget(planned):
    code, out, err = planned("--budget-mb", 100)
    assert (code, err) == (0, "")
    for word in ("full", "hash rows=", "qr", "mixed width=4", "managed rows=", "all tables full keep within"):
        assert word in out
    code, _, err = planned("--budget-mb", 1e-3)
    assert (code, "with 4 they take" in err) == (2, True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--ids", "0..9"], "name the run: --from"),
        (["--from", "nowhere"], "nowhere has no lake"),
        (["--from", ".", "--ids", "9"], "give two numbers of rows"),
    ],
)
def test_what_cannot_be_counted_says_what_to_do(planned, asked, says):
    code, _, err = planned(*asked)
    assert (code, says in " ".join(err.split())) == (2, True)


def test_ids_are_refused_without_the_plan_of_tables(capsys, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(small()))
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", str(path), "--budget-mb", "3"])
    assert (left.value.code, "belong to --embeddings" in capsys.readouterr().err) == (2, True)
