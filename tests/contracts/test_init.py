"""From a file as it is to a finished run: `exfm init`, the check, and the stream to its end, with nothing edited."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipelines.checks import check_config
from pipelines.cli import app
from pipelines.config import load
from pipelines.results import counts_hold
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, to_the_end
from tests.support.streams import foreign_files
from tests.support.streams.published_files import PUBLISHED

pytestmark = pytest.mark.broker
ROWS = 3000
TOPICS = ("impressions", "feedback", "examples", "dead_letters")
_numbers = itertools.count()


def run_of(broker, source: Path, folder: Path, name: str | None = None) -> Finished:
    """The run of what `exfm init` writes about `source`; `name`: of the public data set that it is."""
    out = folder / "mine.yaml"
    said = CliRunner().invoke(app, ["init", *([name] if name else []), str(source), "-o", str(out)])
    assert said.exit_code == 0, said.output
    assert "--until-end" in said.output.splitlines()[-1]
    here = [f"kafka.{name}.topic=init-{name}-{next(_numbers)}" for name in TOPICS]
    config = load(out, [f"kafka.bootstrap_servers={broker.bootstrap_servers}", *here])
    assert not check_config(config).stops
    finished = to_the_end(config, folder / "run")
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["dead_letters"] == 0
    assert_learned_the_lake(finished)
    return finished


@pytest.mark.slow
def test_the_shops_views_run_unedited(broker, tmp_path, real_stream):
    source = real_stream("jd_browse_stream.parquet")
    recorded = pq.read_table(source)
    finished = run_of(broker, source, tmp_path)
    assert finished.lake.num_rows == recorded.num_rows
    assert pc.sum(finished.lake["label_ctr"]).as_py() == pc.sum(recorded["label"]).as_py()
    assert set(finished.lake["vertical"].to_pylist()) == {str(cate) for cate in recorded["cate"].to_pylist()}


def test_text_ids_without_a_time_run_in_the_order_of_the_file(broker, tmp_path):
    source = foreign_files.csv_of_strings(tmp_path / "rows.csv", ROWS)
    finished = run_of(broker, source, tmp_path)
    lines = [line.split(",") for line in source.read_text().splitlines()[1:]]
    lake = finished.lake.sort_by("event_time_ms")
    assert lake["user"].to_pylist() == [user for user, *_ in lines]
    assert lake["label_ctr"].to_pylist() == [int(label) for *_, label in lines]


@pytest.mark.slow
def test_a_table_without_names_runs(broker, tmp_path):
    source = foreign_files.headerless_tsv(tmp_path / "train.txt.gz", ROWS)
    finished = run_of(broker, source, tmp_path)
    assert finished.lake.num_rows == ROWS
    assert finished.config.features.dense_names == tuple(f"column{n:02}" for n in range(1, 14))
    assert finished.config.features.sparse_names == tuple(f"column{n:02}" for n in range(14, 40))


@pytest.mark.slow
def test_json_lines_with_records_and_lists_run(broker, tmp_path):
    finished = run_of(broker, foreign_files.json_lines(tmp_path / "events.jsonl", ROWS), tmp_path)
    assert finished.lake.num_rows == ROWS
    names = set(finished.lake.column_names)
    assert {"user_id", "user_geo_country", "clicked_items"} <= names
    assert {student.name for student in finished.config.students} == {"search", "home"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "talkingdata" else pytest.mark.slow)
        for name in ("talkingdata", "taobao", "movielens-1m", "yambda")
    ],
)
def test_a_public_data_set_runs_from_its_published_files(broker, tmp_path, name):
    known, write = PUBLISHED[name]
    folder = tmp_path / "published"
    folder.mkdir()
    write(folder)
    finished = run_of(broker, folder, tmp_path, known)
    rows = pq.read_table(tmp_path / "mine.parquet")
    for task, label in finished.config.source.labels.items():
        settled = finished.lake.filter(pc.is_valid(finished.lake[f"label_{task}"]))
        assert settled.num_rows == rows.num_rows
        within = pc.sum(settled[f"label_{task}"]).as_py()
        assert 0.98 * pc.sum(rows[label.column]).as_py() <= within <= pc.sum(rows[label.column]).as_py()
