"""`exfm lake asof` on the lake of a generated stream, and the arm of a replay that reads what it computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipelines.cli import console as cli
from pipelines.core.config.settings import Config, dump, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.replay.load import RUNS_OWN, WITH_ASOF, load_run
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.rows import rows_of
from streaming.errors import BadInput
from streaming.lake.writer import LakeTable
from tests.support.pipelines.written_lakes import write_lake
from tests.support.places import CONFIGS

FEATURES = [
    {"name": "user_rate", "by": "user_id", "rate": "ctr"},
    {"name": "sold", "by": ["ad_id", "hour"], "rate": "cvr", "half_life_s": 3600},
    {"name": "recent", "by": "user_id", "last": 4, "of": ["ad_id", "ctr", "gap_s"]},
]
ASOF = {"features": {"asof": FEATURES}, "asof": {"tick_s": 30}}


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run without as-of features whose stream is over."""
    config = load(CONFIGS / "demo.yaml", ["source.impressions=1500", "features.asof=[]"])
    where = RunDir(tmp_path / "run")
    where.root.mkdir()
    where.config.write_text(dump(config))
    write_lake(where.lake, config, 10_000)
    lake = LakeTable(where.lake, config.rows).open_writer()
    counts = {"pending": {group.name: 0 for group in config.rows.groups}}
    lake.commit(None, state=lake.state + 1, metadata={"counts": counts})
    return where


def with_them_from_its_start(run_dir: RunDir) -> Config:
    settings = yaml.safe_load(run_dir.config.read_text())
    features = settings["features"] | ASOF["features"]
    path = run_dir.root / "from_start.yaml"
    path.write_text(yaml.safe_dump(settings | {"features": features, "asof": ASOF["asof"], "rows": plain(settings)}))
    return load(path)


def plain(settings: dict) -> dict:
    return {name: value for name, value in settings["rows"].items() if name != "asof"}


def asof(run_dir: RunDir, features: object, *options: str) -> int:
    file = run_dir.root / "asof.yaml"
    file.write_text(features if isinstance(features, str) else yaml.safe_dump(features))
    with pytest.raises(SystemExit) as left:
        cli.main(["lake", "asof", str(run_dir.root), "--features", str(file), *options])
    return int(left.value.code or 0)


def test_a_replay_reads_what_a_run_with_the_features_would_have_logged(run_dir: RunDir, tmp_path: Path, capsys):
    with pytest.raises(BadInput, match="exfm lake asof"):
        load_run(run_dir, [], asof=True)
    assert asof(run_dir, ASOF, "--json") == 0
    described = json.loads(capsys.readouterr().out)
    spec, config = load_run(run_dir, [], asof=True)
    assert list(spec.arms) == [RUNS_OWN, WITH_ASOF]
    assert spec.arms[RUNS_OWN].features == {}
    assert list(spec.arms[WITH_ASOF].features) == ["user_rate", "user_rate_shown", "sold", "sold_shown"]

    columns = ["impression_id", *(column.name for column in config.rows.asof.columns)]
    replayed = Workspace(spec, config, tmp_path / "replay", run_dir).rows(1).table.select(columns)
    original = with_them_from_its_start(run_dir)
    settled = rows_of(original, tmp_path, limit=None, run_dir=None, advance=lambda n: None, columns=columns).table
    assert described["last"] + 1 == settled.num_rows == replayed.num_rows
    assert replayed.to_pylist() == settled.select(columns).to_pylist()


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("[", "is not YAML"),
        ("5", "neither a list nor a mapping"),
        ([], "at least 1 item"),
        ([{"name": "x", "by": "user_id"}], "give it one of"),
        ({"features": {"asof": FEATURES}, "rows": {}}, "unknown key"),
        ({"features": {"asof": FEATURES}, "asof": {"tick": 5}}, "did you mean `tick_s`"),
        ([{"name": "bid", "by": "user_id", "count": "shown"}], "a name that is taken"),
    ],
)
def test_a_file_that_holds_no_features_is_refused_in_words(run_dir: RunDir, features: object, words: str, capsys):
    assert asof(run_dir, features) == 2
    assert words in capsys.readouterr().err
    assert not (run_dir.side_tables / "asof_features").exists()
